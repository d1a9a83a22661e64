// Attention's dot products on AMX tiles.
#pragma once
#include "amx.h"
#include "attention_piece.h"

namespace tg {
namespace TG_NS {

enum { TILE_ROWS = 16, STEP = 32 };  // STEP: keys that a tile of weights spans

// Tiles 0 to 3: results, upper rows left and right, lower rows left and right; 4 and 5: left operands; 6 and 7: right ones.
inline Tiles tile_rows(int rows) {
  const int upper = rows < TILE_ROWS ? rows : (int)TILE_ROWS;
  Tiles tiles;
  for (int t = 0; t < 8; t++) tiles.set(t, t < 6 ? upper : (int)TILE_ROWS, 64);
  return tiles;
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

// Values of a step of 32 keys lie as tiles, [dim / 16][16 pairs][16][2]; `out` is where those of page `p` begin. Tokens from
// `valid` on, which may be garbage, become zero in bf16; in int8 anything times 0 is 0.
enum { VALUE_TILE = 16 * 32 };
inline void tile_values(const Bf16Pages& pages, int p, int valid, uint16_t* out, Fetch fetch) {
  const int dim = pages.layout.dim;
  const int32_t* from = (const int32_t*)(pages.page[p] + pages.layout.values);
  for (int pair = 0; pair < TG_PAGE / 2; pair++) {
    const I keep = splat(2 * pair + 2 <= valid ? -1 : 2 * pair + 1 == valid ? 0xffff : 0);
    for (int block = 0; block < dim / 16; block++) {
      fetch.turn();
      store((int32_t*)(out + block * VALUE_TILE + pair * 32), load(from + pair * dim + block * 16) & keep);
    }
  }
}
inline void tile_values(const Int8Pages& pages, int p, int, uint16_t* out, Fetch fetch) {
  for (int pair = 0; pair < TG_PAGE / 2; pair++)
    for (int block = 0; block < pages.layout.dim / 16; block++) {
      F even, odd;
      fetch.turn();
      pages.values(p, pair, block, even, odd);
      unpack_pair(even, odd, out + block * VALUE_TILE + pair * 32);
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
inline void step_values(const Pages& pages, int p, uint16_t* step, const Ahead* ahead = nullptr) {
  const int dim = pages.layout.dim;
  uint16_t* out = step + p % 2 * (VALUE_TILE / 2);
  if (p >= pages.from_page() && p < pages.to_page()) {
    tile_values(pages, p, pages.to - p * TG_PAGE, out, ahead ? ahead->summing(p, dim / 2) : Fetch());
  } else {
    for (int block = 0; block < dim / 16; block++) memset(out + block * VALUE_TILE, 0, VALUE_TILE);
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
      step_values(pages, p, values + p / 2 * 2 * size);
    }
  }
  const char* keys(int page) const { return keys_[page]; }  // [dim / 2][16][2]
  const uint16_t* values() const { return values_; }        // [TG_SPAN / 32][dim / 16][16][16][2]

 private:
  const uint16_t* const values_;
  const char* keys_[SPAN_PAGES];
};

// Up to 16 rows with one span, where what takes time is reading the cache: it is read once and in order, and what must be
// rewritten goes through room for one step.
template <typename Pages>
inline void stream_scores(const Pages& pages, const Ahead& ahead, int from, int to, const uint16_t* queries, float* scores,
                          uint16_t* room) {
  const int dim = pages.layout.dim;
  for (int step = from; step < to; step += STEP) {
    const char* keys[2];
    for (int half = 0; half < 2; half++)
      keys[half] = step_keys(pages, step / TG_PAGE + half, room + half * TG_PAGE * dim, &ahead);
    tile_zero<0>();
    tile_zero<1>();
    for (int d = 0; d < dim; d += 32) {
      tile_load<4>(queries + d, 2 * dim);
      tile_load<6>(keys[0] + d * 32, 64);
      tile_load<7>(keys[1] + d * 32, 64);
      tile_dot_bf16<0, 4, 6>();
      tile_dot_bf16<1, 4, 7>();
    }
    tile_store<0>(scores + step, 4 * SCORE_STRIDE);
    tile_store<1>(scores + step + 16, 4 * SCORE_STRIDE);
  }
}

template <typename Pages>
inline void stream_sums(const Pages& pages, const Ahead& ahead, int rows, int from, int to, const uint16_t* weights,
                        float* sums, uint16_t* room) {
  const int dim = pages.layout.dim;
  memset(sums, 0, sizeof *sums * rows * dim);
  for (int step = from; step < to; step += STEP) {
    for (int half = 0; half < 2; half++)
      step_values(pages, step / TG_PAGE + half, room, &ahead);
    tile_load<4>(weights + step, 2 * WEIGHT_STRIDE);
    for (int d = 0; d < dim; d += 32) {
      tile_load<0>(sums + d, 4 * dim);
      tile_load<1>(sums + d + 16, 4 * dim);
      tile_load<6>(room + d / 16 * VALUE_TILE, 64);
      tile_load<7>(room + (d / 16 + 1) * VALUE_TILE, 64);
      tile_dot_bf16<0, 4, 6>();
      tile_dot_bf16<1, 4, 7>();
      tile_store<0>(sums + d, 4 * dim);
      tile_store<1>(sums + d + 16, 4 * dim);
    }
  }
}

template <typename Pages>
inline void attend_few_by_tiles(const PieceWork& work, const Pages& pages, const Ahead& ahead) {
  const AttentionScratch& scratch = work.scratch;
  const int first = pages.from & ~(STEP - 1), end = (pages.to + STEP - 1) & ~(STEP - 1);
  tile_rows(work.rows).use();
  stream_scores(pages, ahead, first, end, (const uint16_t*)scratch.queries(), scratch.scores(), scratch.keys());
  const Peak* peaks = work.soften(pages, 0, work.rows, scratch.scores(), scratch.weights(), WEIGHT_STRIDE, first, end);
  stream_sums(pages, ahead, work.rows, first, end, scratch.weights(), scratch.sums(), scratch.values());
  work.add(0, work.rows, peaks, scratch.sums());
  release_tiles();
}

// [32 rows] x [2 x 16 columns], summed over `length` pairs of tiles; `left(i)` and `right(i, half)` say where these begin.
template <typename Left, typename Right>
inline void tile_product(int length, Left left, int64_t left_stride, Right right, int64_t right_stride, float* out,
                         int64_t out_stride) {
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  for (int i = 0; i < length; i++) {
    tile_load<4>(left(i), left_stride);
    tile_load<6>(right(i, 0), right_stride);
    tile_dot_bf16<0, 4, 6>();
    tile_load<7>(right(i, 1), right_stride);
    tile_dot_bf16<1, 4, 7>();
    tile_load<5>(left(i) + TILE_ROWS * left_stride, left_stride);
    tile_dot_bf16<2, 5, 6>();
    tile_dot_bf16<3, 5, 7>();
  }
  tile_store<0>(out, 4 * out_stride);
  tile_store<1>(out + 16, 4 * out_stride);
  tile_store<2>(out + TILE_ROWS * out_stride, 4 * out_stride);
  tile_store<3>(out + TILE_ROWS * out_stride + 16, 4 * out_stride);
}

// Scores of 32 rows with keys [from, to): queries bf16 [32, dim], scores [32, SCORE_STRIDE].
template <typename Span>
inline void tile_scores(const Span& span, int dim, int from, int to, const uint16_t* queries, float* scores) {
  auto left = [&](int i) { return (const char*)queries + i * 64; };
  for (int step = from; step < to; step += STEP) {
    auto right = [&](int i, int half) { return span.keys(step / TG_PAGE + half) + i * 16 * 64; };
    tile_product(dim / 32, left, 2 * dim, right, 64, scores + step, SCORE_STRIDE);
  }
}

// Their sums: weights bf16 [32, WEIGHT_STRIDE], sums [32, dim].
inline void tile_sums(const uint16_t* values, int dim, int from, int to, const uint16_t* weights, float* sums) {
  auto left = [&](int i) { return (const char*)(weights + from + i * STEP); };
  for (int d = 0; d < dim; d += 32) {
    auto right = [&](int i, int half) {
      return (const char*)(values + (from + i * STEP) * dim + (d / 16 + half) * VALUE_TILE);
    };
    tile_product((to - from) / STEP, left, 2 * WEIGHT_STRIDE, right, 64, sums + d, dim);
  }
}

// Many rows with one span, ROWS at a time; those behind the last are computed and dropped. Tiles and vectors take turns:
// while tiles are at work, half of the vector units are not.
template <typename Pages>
inline void attend_many_by_tiles(const PieceWork& work, const Pages& pages) {
  const AttentionScratch& scratch = work.scratch;
  const TileSpan<Pages> span(pages, scratch.keys(), scratch.values());
  tile_rows(ROWS).use();
  for (int row = 0; row < work.rows; row += ROWS) {
    const int rows = work.rows - row < ROWS ? work.rows - row : (int)ROWS;
    const int from = work.from(pages, row) & ~(STEP - 1);
    const int to = (work.to(pages, row + rows - 1) + STEP - 1) & ~(STEP - 1);
    if (from >= to) continue;
    tile_scores(span, work.dim, from, to, (const uint16_t*)scratch.queries() + row * work.dim, scratch.scores());
    const Peak* peaks = work.soften(pages, row, rows, scratch.scores(), scratch.weights(), WEIGHT_STRIDE, from, to);
    tile_sums(span.values(), work.dim, from, to, scratch.weights(), scratch.sums());
    work.add(row, rows, peaks, scratch.sums());
  }
  release_tiles();
}

}  // namespace TG_NS
}  // namespace tg
