// Attention's dot products on AMX tiles: up to ROWS rows with the keys or values of a span.
#pragma once
#include <immintrin.h>

#include "attention_span.h"

namespace tg {
namespace TG_NS {

enum { TILE_ROWS = 16, STEP = 32 };  // STEP: keys that a tile of weights spans

// Two stacks of `upper` and `lower` rows (tiles 0, 1 and 2, 3: results; 4 and 5: left operands), 6 and 7: right operands.
class TileShape {
 public:
  TileShape(int upper, int lower) {
    for (int t = 0; t < 8; t++) bytes_[t] = 64;
    rows_[0] = rows_[1] = rows_[4] = (uint8_t)upper;
    rows_[2] = rows_[3] = rows_[5] = (uint8_t)(lower ? lower : 1);
    rows_[6] = rows_[7] = TILE_ROWS;
  }
  void load() const { __asm__ volatile("ldtilecfg %0" ::"m"(*this)); }

 private:
  uint8_t palette_ = 1, start_row_ = 0, reserved_[14] = {};
  uint16_t bytes_[16] = {};
  uint8_t rows_[16] = {};
};
static_assert(sizeof(TileShape) == 64, "what LDTILECFG reads");

// The intrinsics do not tell the compiler that tiles are loaded from memory.
inline void tiles_read_memory() { __asm__ volatile("" ::: "memory"); }

// [2 or 1 stacks of rows] x [2 x 16 columns], summed over `count` left tiles of `left_step` bytes each; right operands
// come from right(i, half).
template <bool two, typename Right>
inline void tile_products(int count, const char* left, int64_t left_stride, int64_t left_step, Right right, float* out,
                          int64_t out_stride) {
  _tile_zero(0);
  _tile_zero(1);
  if (two) {
    _tile_zero(2);
    _tile_zero(3);
  }
  int64_t right_stride;
  for (int i = 0; i < count; i++) {
    _tile_loadd(4, left + i * left_step, left_stride);
    const char* first = right(i, 0, right_stride);
    _tile_loadd(6, first, right_stride);
    _tile_dpbf16ps(0, 4, 6);
    const char* second = right(i, 1, right_stride);
    _tile_loadd(7, second, right_stride);
    _tile_dpbf16ps(1, 4, 7);
    if (two) {
      _tile_loadd(5, left + TILE_ROWS * left_stride + i * left_step, left_stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out, 4 * out_stride);
  _tile_stored(1, out + 16, 4 * out_stride);
  if (two) {
    _tile_stored(2, out + TILE_ROWS * out_stride, 4 * out_stride);
    _tile_stored(3, out + TILE_ROWS * out_stride + 16, 4 * out_stride);
  }
}

// Keys and values of a span as tiles want them: bf16, values of 32 keys one behind the other, none of them garbage.
struct TileSpan {
  const char* keys[SPAN_PAGES];  // each [dim / 2][16][2]
  const uint16_t* values;        // [TG_SPAN / 2][dim][2]
};

inline void unpack_pair(F even, F odd, uint16_t* out) {
  const I bits = shift_right(as_int(even), 16);  // exact: an int8 has at most eight significant bits
  store((int32_t*)out, as_int(odd) + bits);
}

// `keys` and `values` are room for TG_SPAN of each. Steps of 32 keys that [pages.from, pages.to) touches are filled: values
// outside of these bounds are zero.
inline TileSpan tile_span(const Bf16Pages& pages, uint16_t*, uint16_t* values) {
  TileSpan span;
  span.values = values;
  const int dim = pages.layout.dim, from = pages.from / TG_PAGE, to = (pages.to + TG_PAGE - 1) / TG_PAGE;
  const size_t page_bytes = (size_t)TG_PAGE * dim * 2;
  for (int p = from & ~1; p < ((to + 1) & ~1); p++) {
    char* out = (char*)values + p * page_bytes;
    if (p < from || p >= to) {
      span.keys[p] = pages.page[p < from ? from : to - 1];  // any will do: its scores are masked
      memset(out, 0, page_bytes);
      continue;
    }
    span.keys[p] = pages.page[p];
    const int valid = pages.to - p * TG_PAGE;
    const int pairs = valid >= TG_PAGE ? TG_PAGE / 2 : valid / 2;
    memcpy(out, pages.page[p] + pages.layout.values, (size_t)pairs * dim * 4);
    if (pairs == TG_PAGE / 2) continue;
    memset(out + (size_t)pairs * dim * 4, 0, (size_t)(TG_PAGE / 2 - pairs) * dim * 4);
    if (valid % 2 == 0) continue;
    const int32_t* source = (const int32_t*)(pages.page[p] + pages.layout.values) + pairs * dim;
    int32_t* last = (int32_t*)out + pairs * dim;
    for (int d = 0; d < dim; d += 16) store(last + d, load(source + d) & splat(0xffff));
  }
  return span;
}

inline TileSpan tile_span(const Int8Pages& pages, uint16_t* keys, uint16_t* values) {
  TileSpan span;
  span.values = values;
  const int dim = pages.layout.dim, from = pages.from / TG_PAGE, to = (pages.to + TG_PAGE - 1) / TG_PAGE;
  for (int p = from & ~1; p < ((to + 1) & ~1); p++) {
    uint16_t* key_page = keys + p * TG_PAGE * dim;
    uint16_t* value_page = values + p * TG_PAGE * dim;
    span.keys[p] = (const char*)key_page;
    if (p < from || p >= to) {
      memset(key_page, 0, (size_t)TG_PAGE * dim * 2);
      memset(value_page, 0, (size_t)TG_PAGE * dim * 2);
      continue;
    }
    F even, odd;
    for (int pair = 0; pair < dim / 2; pair++) {
      pages.keys(p, pair, even, odd);
      unpack_pair(even, odd, key_page + pair * 32);
    }
    for (int pair = 0; pair < TG_PAGE / 2; pair++)
      for (int block = 0; block < dim / 16; block++) {
        pages.values(p, pair, block, even, odd);
        unpack_pair(even, odd, value_page + (pair * dim + block * 16) * 2);
      }
  }
  return span;
}

// Scores of rows with keys [from, to), multiples of 32: queries bf16 [rows, dim], scores [rows, TG_SPAN].
template <bool two>
inline void tile_scores(const TileSpan& span, int dim, int from, int to, const uint16_t* queries, float* scores) {
  tiles_read_memory();
  for (int step = from; step < to; step += STEP) {
    const char* const* keys = span.keys + step / TG_PAGE;
    auto right = [&](int i, int half, int64_t& stride) {
      stride = 64;
      return keys[half] + i * 16 * 64;
    };
    tile_products<two>(dim / 32, (const char*)queries, 2 * dim, 64, right, scores + step, TG_SPAN);
  }
}

// Sums of rows over keys [from, to), multiples of 32: weights bf16 [rows, TG_SPAN], sums [rows, dim].
template <bool two>
inline void tile_values(const TileSpan& span, int dim, int from, int to, const uint16_t* weights, float* sums) {
  tiles_read_memory();
  for (int block = 0; block < dim / 16; block += 2) {
    const uint16_t* values = span.values + from * dim + block * 32;
    auto right = [&](int i, int half, int64_t& stride) {
      stride = 4 * dim;
      return (const char*)(values + i * STEP * dim + half * 32);
    };
    tile_products<two>((to - from) / STEP, (const char*)(weights + from), 2 * TG_SPAN, 64, right, sums + block * 16, dim);
  }
}

}  // namespace TG_NS
}  // namespace tg
