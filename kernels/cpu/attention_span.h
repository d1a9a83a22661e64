// The pages of one span of one kv head, in either format.
#pragma once
#include "attention_plan.h"
#include "kv_layout.h"
#include "simd.h"

namespace tg {
namespace TG_NS {

enum { SPAN_PAGES = TG_SPAN / TG_PAGE };

// Keys [from, to) of a span of a sequence and kv head, positions counted from the span's first, and where their pages are.
struct SpanPages {
  SpanPages(const AttentionArgs& args, const Unit& unit, int32_t span)
      : layout(args.model->kv_format, args.model->block_size, args.layer->kv_heads, args.layer->head_dim),
        first(span * TG_SPAN),
        from(unit.key_from > first ? unit.key_from - first : 0),
        to(unit.key_to - first < TG_SPAN ? unit.key_to - first : (int32_t)TG_SPAN) {
    const int32_t* table = args.tables + (int64_t)args.table_rows[unit.sequence] * args.table_width;
    const int32_t position = first + from / TG_PAGE * TG_PAGE;
    int32_t block = position / layout.block_size, inside = position % layout.block_size;
    for (int32_t p = from_page(); p < to_page(); p++) {
      page[p] = (const char*)args.layer->kv + layout.page_at(table[block], unit.kv_head, inside);
      inside += TG_PAGE;
      if (inside < layout.block_size) continue;
      inside = 0;
      block++;
    }
  }

  int32_t from_page() const { return from / TG_PAGE; }
  int32_t to_page() const { return (to + TG_PAGE - 1) / TG_PAGE; }

  KvLayout layout;
  int32_t first;  // position of the span's first key
  int32_t from, to;
  const char* page[SPAN_PAGES];
};

// How the dot products read pages. keys: dimensions 2 * pair and 2 * pair + 1 of a page's 16 tokens. values: dimensions
// [16 * block, 16 * block + 16) of its tokens 2 * pair and 2 * pair + 1.
struct Bf16Pages : SpanPages {
  static constexpr bool kScaled = false;
  explicit Bf16Pages(const SpanPages& pages) : SpanPages(pages) {}

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
  explicit Int8Pages(const SpanPages& pages) : SpanPages(pages) {}

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

// Asks for some memory, a line or so a turn, while something else is done in that many turns. Many requests at once would
// keep the core waiting: it has room for few.
class Fetch {
 public:
  Fetch() = default;
  Fetch(const char* at, int64_t bytes, int turns) : at_(at), lines_((int)(bytes / 64)), turns_(turns) {}

  void turn() {
    for (due_ += lines_; due_ >= turns_; due_ -= turns_, at_ += 64) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const char* at_ = nullptr;
  int lines_ = 0, turns_ = 1, due_ = 0;
};

// What to fetch while a page is worked on: blocks lie anywhere, so that the processor cannot guess the next page.
class Ahead {
 public:
  Ahead(const SpanPages& now, const SpanPages* next) : now_(now), next_(next) {}

  // While page `p` is scored: its values.
  Fetch scoring(int p, int turns) const {
    return {now_.page[p] + now_.layout.values, now_.layout.page - now_.layout.values, turns};
  }
  // While the values of page `p` are summed: keys of the next span.
  Fetch summing(int p, int turns) const {
    const int i = p - now_.from_page();
    if (!next_ || i >= next_->to_page() - next_->from_page()) return {};
    return {next_->page[next_->from_page() + i], next_->layout.values, turns};
  }

 private:
  const SpanPages& now_;
  const SpanPages* const next_;
};

}  // namespace TG_NS
}  // namespace tg
