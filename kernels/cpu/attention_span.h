// The pages of one span of one kv head, in either format.
#pragma once
#include "attention_plan.h"
#include "kv_layout.h"
#include "simd.h"

namespace tg {
namespace TG_NS {

enum { SPAN_PAGES = TG_SPAN / TG_PAGE };

// Keys and values of a sequence and kv head.
struct HeadCache {
  HeadCache(const AttentionArgs& args, int32_t sequence, int32_t kv_head)
      : layout(args.model->kv_format, args.model->block_size, args.layer->kv_heads, args.layer->head_dim),
        base((const char*)args.layer->kv),
        table(args.tables + (int64_t)args.table_rows[sequence] * args.table_width),
        kv_head(kv_head) {}

  const char* page(int32_t position) const {
    return base + layout.page_of(table[position / layout.block_size], kv_head, position);
  }

  KvLayout layout;
  const char* base;
  const int32_t* table;
  int32_t kv_head;
};

// Pages that hold keys [from, to) of a span, positions counted from the span's first.
struct SpanPages {
  SpanPages(const HeadCache& cache, int32_t span, int32_t key_from, int32_t key_to)
      : layout(cache.layout), first(span * TG_SPAN) {
    from = key_from > first ? key_from - first : 0;
    to = key_to - first < TG_SPAN ? key_to - first : (int32_t)TG_SPAN;
    for (int32_t p = from / TG_PAGE; p * TG_PAGE < to; p++) page[p] = cache.page(first + p * TG_PAGE);
  }

  const KvLayout& layout;
  int32_t first;  // position of the span's first key
  int32_t from, to;
  const char* page[SPAN_PAGES];
};

// How the dot products read pages. keys: dimensions 2 * pair and 2 * pair + 1 of a page's 16 tokens. values: dimensions
// [16 * block, 16 * block + 16) of its tokens 2 * pair and 2 * pair + 1.
struct Bf16Pages : SpanPages {
  static constexpr bool kScaled = false;
  using SpanPages::SpanPages;

  void keys(int p, int pair, F& even, F& odd) const { split(page[p] + pair * 64, even, odd); }
  void values(int p, int pair, int block, F& even, F& odd) const {
    split(page[p] + layout.values + (pair * layout.dim + block * 16) * 4, even, odd);
  }
  F key_scales(int) const { return zero(); }
  F value_scales(int) const { return zero(); }

 private:
  static void split(const char* at, F& even, F& odd) {
    const I pairs = load((const int32_t*)at);
    even = even_bf16(pairs);
    odd = odd_bf16(pairs);
  }
};

struct Int8Pages : SpanPages {
  static constexpr bool kScaled = true;
  using SpanPages::SpanPages;

  void keys(int p, int pair, F& even, F& odd) const {
    const int8_t* at = (const int8_t*)page[p] + pair * 2 * TG_PAGE;
    even = to_float(load(at));
    odd = to_float(load(at + TG_PAGE));
  }
  void values(int p, int pair, int block, F& even, F& odd) const {
    const int8_t* at = (const int8_t*)page[p] + layout.values + pair * 2 * layout.dim + block * 16;
    even = to_float(load(at));
    odd = to_float(load(at + layout.dim));
  }
  F key_scales(int p) const { return load((const float*)(page[p] + layout.key_scales)); }
  F value_scales(int p) const { return load((const float*)(page[p] + layout.value_scales)); }
};

}  // namespace TG_NS
}  // namespace tg
