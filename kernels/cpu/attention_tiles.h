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

inline void unpack_pair(F even, F odd, uint16_t* out) {
  const I bits = shift_right(as_int(even), 16);  // exact: an int8 has at most eight significant bits
  store((int32_t*)out, as_int(odd) + bits);
}

// Keys of page `p` in the form [dim / 2][16][2]: where they lie, or in `room`. `fetch` is given a turn a row.
inline const char* tile_keys(const Bf16Pages& pages, int p, uint16_t*, Fetch) { return pages.page[p]; }
inline const char* tile_keys(const Int8Pages& pages, int p, uint16_t* room, Fetch fetch) {
  for (int pair = 0; pair < pages.layout.dim / 2; pair++) {
    F even, odd;
    fetch.turn();
    pages.keys(p, pair, even, odd);
    unpack_pair(even, odd, room + pair * 32);
  }
  return (const char*)room;
}

// Values of page `p` in the form [8][dim][2]. Tokens from `valid` on, which may be garbage, become zero in bf16; in int8
// anything times 0 is 0.
inline void tile_values(const Bf16Pages& pages, int p, int valid, uint16_t* out, Fetch fetch) {
  const int dim = pages.layout.dim, pairs = valid < TG_PAGE ? valid / 2 : TG_PAGE / 2;
  const int32_t* from = (const int32_t*)(pages.page[p] + pages.layout.values);
  int32_t* to = (int32_t*)out;
  for (int i = 0; i < pairs * dim; i += 16) {
    fetch.turn();
    store(to + i, load(from + i));
  }
  if (pairs == TG_PAGE / 2) return;
  memset(to + pairs * dim, 0, (size_t)(TG_PAGE / 2 - pairs) * dim * 4);
  for (int i = pairs * dim; valid % 2 && i < (pairs + 1) * dim; i += 16) store(to + i, load(from + i) & splat(0xffff));
}
inline void tile_values(const Int8Pages& pages, int p, int, uint16_t* out, Fetch fetch) {
  const int dim = pages.layout.dim;
  for (int pair = 0; pair < TG_PAGE / 2; pair++)
    for (int block = 0; block < dim / 16; block++) {
      F even, odd;
      fetch.turn();
      pages.values(p, pair, block, even, odd);
      unpack_pair(even, odd, out + (pair * dim + block * 16) * 2);
    }
}

// A step of 32 keys or values where pages may be missing at either end of the span.
template <typename Pages>
inline const char* step_keys(const Pages& pages, int p, uint16_t* room, const Ahead* ahead = nullptr) {
  const int there = p < pages.from_page() ? pages.from_page() : p < pages.to_page() ? p : pages.to_page() - 1;
  // Any keys will do for a missing page: their scores are masked.
  return tile_keys(pages, there, room, ahead ? ahead->scoring(there, pages.layout.dim / 2) : Fetch());
}
template <typename Pages>
inline void step_values(const Pages& pages, int p, uint16_t* out, const Ahead* ahead = nullptr) {
  if (p >= pages.from_page() && p < pages.to_page()) {
    tile_values(pages, p, pages.to - p * TG_PAGE, out, ahead ? ahead->summing(p, pages.layout.dim / 2) : Fetch());
  } else {
    memset(out, 0, (size_t)TG_PAGE * pages.layout.dim * sizeof *out);
  }
}

// Keys and values of a span for many rows: all of them made at once.
template <typename Pages>
class TileSpan {
 public:
  // `keys` and `values` are room for TG_SPAN of them.
  TileSpan(const Pages& pages, uint16_t* keys, uint16_t* values) : values_(values) {
    const int size = TG_PAGE * pages.layout.dim;
    for (int p = pages.from_page() & ~1; p < ((pages.to_page() + 1) & ~1); p++) {
      keys_[p] = step_keys(pages, p, keys + p * size);
      step_values(pages, p, values + p * size);
    }
  }
  const char* keys(int page) const { return keys_[page]; }  // [dim / 2][16][2]
  const uint16_t* values() const { return values_; }        // [TG_SPAN / 2][dim][2]

 private:
  const uint16_t* const values_;
  const char* keys_[SPAN_PAGES];
};

// Scores of rows with keys [from, to), multiples of 32: queries bf16 [rows, dim], scores [rows, TG_SPAN].
template <bool two, typename Span>
inline void tile_scores(const Span& span, int dim, int from, int to, const uint16_t* queries, float* scores) {
  tiles_read_memory();
  for (int step = from; step < to; step += STEP) {
    auto right = [&](int i, int half, int64_t& stride) {
      stride = 64;
      return span.keys(step / TG_PAGE + half) + i * 16 * 64;
    };
    tile_products<two>(dim / 32, (const char*)queries, 2 * dim, 64, right, scores + step, TG_SPAN);
  }
}

// Sums of rows over keys [from, to), multiples of 32: weights bf16 [rows, TG_SPAN], sums [rows, dim].
template <bool two>
inline void tile_sums(const uint16_t* values, int dim, int from, int to, const uint16_t* weights, float* sums) {
  tiles_read_memory();
  for (int block = 0; block < dim / 16; block += 2) {
    auto right = [&](int i, int half, int64_t& stride) {
      stride = 4 * dim;
      return (const char*)(values + (from + i * STEP) * dim + block * 32 + half * 32);
    };
    tile_products<two>((to - from) / STEP, (const char*)(weights + from), 2 * TG_SPAN, 64, right, sums + block * 16, dim);
  }
}

// The same for at most 16 rows, where what takes time is reading the cache: it is done once and in order, and what must be
// rewritten goes through `room` for 32 keys.
template <typename Pages>
inline void stream_scores(const Pages& pages, const Ahead& ahead, int from, int to, const uint16_t* queries, float* scores,
                          uint16_t* room) {
  const int dim = pages.layout.dim;
  for (int step = from; step < to; step += STEP) {
    const char* keys[2];
    for (int half = 0; half < 2; half++) {
      keys[half] = step_keys(pages, step / TG_PAGE + half, room + half * TG_PAGE * dim, &ahead);
    }
    tiles_read_memory();
    auto right = [&](int i, int half, int64_t& stride) {
      stride = 64;
      return keys[half] + i * 16 * 64;
    };
    tile_products<false>(dim / 32, (const char*)queries, 2 * dim, 64, right, scores + step, TG_SPAN);
  }
}

template <typename Pages>
inline void stream_sums(const Pages& pages, const Ahead& ahead, int rows, int from, int to, const uint16_t* weights, float* sums,
                        uint16_t* room) {
  const int dim = pages.layout.dim;
  memset(sums, 0, sizeof *sums * rows * dim);
  for (int step = from; step < to; step += STEP) {
    for (int half = 0; half < 2; half++)
      step_values(pages, step / TG_PAGE + half, room + half * TG_PAGE * dim, &ahead);
    tiles_read_memory();
    _tile_loadd(4, weights + step, 2 * TG_SPAN);
    for (int d = 0; d < dim; d += 32) {
      _tile_loadd(0, sums + d, 4 * dim);
      _tile_loadd(1, sums + d + 16, 4 * dim);
      _tile_loadd(6, room + 2 * d, 4 * dim);
      _tile_loadd(7, room + 2 * d + 32, 4 * dim);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_stored(0, sums + d, 4 * dim);
      _tile_stored(1, sums + d + 16, 4 * dim);
    }
  }
}

}  // namespace TG_NS
}  // namespace tg
