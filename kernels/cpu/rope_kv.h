// What happens to fresh queries, keys and values before attention: head norms, rotary embedding, the cache write.
#pragma once
#include "kernels.h"
#include "kv_layout.h"
#include "simd.h"

namespace tg {
namespace TG_NS {

// x [dim] * norm [dim] / sqrt(mean(x^2) + eps).
inline void norm_head(float* x, const float* norm, int dim, float eps) {
  F squares = zero();
  for (int d = 0; d < dim; d += 16) {
    const F part = load_first(x + d, dim - d < 16 ? dim - d : 16);
    squares = fma(part, part, squares);
  }
  const F inverse = splat(1.0f / sqrtf(sum(squares) / (float)dim + eps));
  for (int d = 0; d < dim; d += 16) {
    const int n = dim - d < 16 ? dim - d : 16;
    store_first(x + d, load_first(x + d, n) * inverse * load_first(norm + d, n), n);
  }
}

// Rotates x[i] and x[half + i] by the i-th angle (RoFormer, arXiv 2104.09864).
inline void rotate(float* x, const float* cos, const float* sin, int half) {
  for (int d = 0; d < half; d += 16) {
    const int n = half - d < 16 ? half - d : 16;
    const F a = load_first(x + d, n), b = load_first(x + half + d, n);
    const F c = load_first(cos + d, n), s = load_first(sin + d, n);
    store_first(x + d, fma(a, c, -(b * s)), n);
    store_first(x + half + d, fma(b, c, a * s), n);
  }
}

// bf16 of x [head_dim], padded with zeros to `dim`.
inline void round_head(const float* x, int head_dim, int dim, uint16_t* out) {
  for (int d = 0; d < dim; d += 16) {
    const int n = head_dim - d < 16 ? (head_dim > d ? head_dim - d : 0) : 16;
    alignas(64) int32_t bits[16];
    store(bits, round_bf16(load_first(x + d, n)));
    for (int i = 0; i < 16; i++) out[d + i] = (uint16_t)bits[i];
  }
}

// int8 of x [head_dim], padded with zeros to `dim`; the scale is returned, and is NaN where x is not finite.
inline float quantise_head(const float* x, int head_dim, int dim, int8_t* out) {
  F most = zero(), poison = zero();
  for (int d = 0; d < head_dim; d += 16) {
    const F part = load_first(x + d, head_dim - d < 16 ? head_dim - d : 16);
    most = max(abs(part), most);
    poison = fma(part, zero(), poison);
  }
  const float amax = largest(most), scale = amax / 127.0f + sum(poison);
  const F inverse = splat(scale > 0.0f ? 127.0f / amax : 0.0f);
  for (int d = 0; d < dim; d += 16) {
    const int n = head_dim - d < 16 ? (head_dim > d ? head_dim - d : 0) : 16;
    alignas(64) int32_t values[16];
    store(values, to_int(load_first(x + d, n) * inverse));
    for (int i = 0; i < 16; i++) out[d + i] = (int8_t)values[i];
  }
  return scale;
}

// Where a token's keys and values go. Tokens of a page may be written by several threads at once: each writes its own
// bytes and no others.
struct Slot {
  char* page;
  int token;  // of the page
  const KvLayout& layout;

  void write_bf16(const uint16_t* keys, const uint16_t* values) const {
    uint16_t* at = (uint16_t*)page + token * 2;
    for (int d = 0; d < layout.dim; d += 2) memcpy(at + d * TG_PAGE, keys + d, 4);
    at = (uint16_t*)(page + layout.values) + token / 2 * layout.dim * 2 + token % 2;
    for (int d = 0; d < layout.dim; d++) at[2 * d] = values[d];
  }
  void write_int8(const int8_t* keys, float key_scale, const int8_t* values, float value_scale) const {
    int8_t* at = (int8_t*)page + token;
    for (int d = 0; d < layout.dim; d++) at[d * TG_PAGE] = keys[d];
    memcpy(page + layout.values + token * layout.dim, values, (size_t)layout.dim);
    memcpy(page + layout.key_scales + token * 4, &key_scale, 4);
    memcpy(page + layout.value_scales + token * 4, &value_scale, 4);
  }
};

inline void write_slot(const Slot& slot, int32_t kv_format, const float* key, const float* value, int head_dim) {
  const int dim = slot.layout.dim;
  if (kv_format == TG_KV_BF16) {
    uint16_t keys[TG_MAX_HEAD_DIM], values[TG_MAX_HEAD_DIM];
    round_head(key, head_dim, dim, keys);
    round_head(value, head_dim, dim, values);
    slot.write_bf16(keys, values);
  } else {
    int8_t keys[TG_MAX_HEAD_DIM], values[TG_MAX_HEAD_DIM];
    const float key_scale = quantise_head(key, head_dim, dim, keys);
    const float value_scale = quantise_head(value, head_dim, dim, values);
    slot.write_int8(keys, key_scale, values, value_scale);
  }
}

// Shared out by (row, head), a key head with its values.
inline void rope_kv(const RopeKvArgs& args, int rank, int ranks) {
  const TgModel& model = *args.model;
  const TgLayer& layer = *args.layer;
  const int head_dim = layer.head_dim, half = model.rope_dim / 2, heads = layer.heads, kv_heads = layer.kv_heads;
  const KvLayout layout(model.kv_format, model.block_size, kv_heads, head_dim);
  const int64_t parts = heads + kv_heads, items = args.tokens * parts;
  for (int64_t item = items * rank / ranks, end = items * (rank + 1) / ranks; item < end; item++) {
    const int row = (int)(item / parts), part = (int)(item % parts);
    float* x = args.qkv + ((int64_t)row * (heads + 2 * kv_heads) + part) * head_dim;
    const float* norm = part < heads ? layer.q_norm : layer.k_norm;
    if (norm) norm_head(x, norm, head_dim, model.norm_eps);
    rotate(x, args.cos + (int64_t)row * half, args.sin + (int64_t)row * half, half);
    if (part < heads) {
      round_head(x, head_dim, layout.dim, args.queries + ((int64_t)row * heads + part) * layout.dim);
      continue;
    }
    const int32_t position = args.positions[row];
    const int32_t* table = args.tables + (int64_t)args.table_rows[args.owners[row]] * args.table_width;
    const int32_t block = table[position / layout.block_size], inside = position % layout.block_size;
    char* page = (char*)layer.kv + layout.page_at(block, part - heads, inside);
    write_slot({page, position % TG_PAGE, layout}, model.kv_format, x, x + kv_heads * head_dim, head_dim);
  }
}

}  // namespace TG_NS
}  // namespace tg
