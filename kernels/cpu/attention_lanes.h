// Attention's dot products on vector registers, to the bits of the tiles.
//
// A lane is a key while scores are made, and a dimension while values are summed. For levels without tiles, and for few
// rows, where reading the cache is what takes time.
#pragma once
#include "attention_piece.h"

namespace tg {
namespace TG_NS {

#if TG_LEVEL >= 2
enum { LANE_ROWS = 4, LANE_BLOCKS = 2 };  // as many as the registers hold
#else
enum { LANE_ROWS = 2, LANE_BLOCKS = 1 };
#endif

// Scores of R rows with the keys of pages [from, to): queries float32 [R, dim], scores [R, SCORE_STRIDE].
template <int R, typename Pages>
inline void lane_scores(const Pages& pages, const Ahead* ahead, int from, int to, const float* queries, float* scores) {
  const int dim = pages.layout.dim;
  for (int p = from; p < to; p++) {
    Fetch fetch = ahead ? ahead->scoring(p, dim / 2) : Fetch();
    F total[R];
    for (int r = 0; r < R; r++) total[r] = zero();
    for (int d = 0; d < dim; d += 32) {
      F even[R], odd[R];
      for (int r = 0; r < R; r++) even[r] = odd[r] = zero();
      for (int i = d; i < d + 32; i += 2) {
        fetch.turn();
        F key_even, key_odd;
        pages.keys(p, i / 2, key_even, key_odd);
        for (int r = 0; r < R; r++) {
          even[r] = fma(splat(queries[r * dim + i]), key_even, even[r]);
          odd[r] = fma(splat(queries[r * dim + i + 1]), key_odd, odd[r]);
        }
      }
      for (int r = 0; r < R; r++) total[r] = total[r] + (even[r] + odd[r]);
    }
    for (int r = 0; r < R; r++) store(scores + r * SCORE_STRIDE + p * TG_PAGE, total[r]);
  }
}

// Adds a pair of values to R rows.
template <int R, int B, bool both, typename Pages>
inline void lane_pair(const Pages& pages, int pair, int block, const float* weights, F (&even)[R][B], F (&odd)[R][B]) {
  for (int b = 0; b < B; b++) {
    F value_even, value_odd;
    pages.values(pair / 8, pair % 8, block + b, value_even, value_odd);
    for (int r = 0; r < R; r++) {
      even[r][b] = fma(splat(weights[r * SCORE_STRIDE + 2 * pair]), value_even, even[r][b]);
      if (both) odd[r][b] = fma(splat(weights[r * SCORE_STRIDE + 2 * pair + 1]), value_odd, odd[r][b]);
    }
  }
}

// Sums of R rows over keys [from, to) with `from` even: weights float32 [R, SCORE_STRIDE], sums [R, dim]. The keys of a dot
// product's 32 that are left out would weigh 0; what the cache holds there may be anything.
template <int R, int B, typename Pages>
inline void lane_values(const Pages& pages, const Ahead* ahead, int from, int to, const float* weights, float* sums) {
  const int dim = pages.layout.dim;
  memset(sums, 0, sizeof(float) * R * dim);
  for (int step = from & ~31; step < to; step += 32) {
    const int begin = step > from ? step : from, end = step + 32 < to ? step + 32 : to;
    Fetch fetch[2];
    for (int key = begin; ahead && key < end; key += TG_PAGE)
      fetch[key / TG_PAGE % 2] = ahead->summing(key / TG_PAGE, dim / 16 / B * (TG_PAGE / 2));
    for (int block = 0; block < dim / 16; block += B) {
      F even[R][B], odd[R][B];
      for (int r = 0; r < R; r++)
        for (int b = 0; b < B; b++) even[r][b] = odd[r][b] = zero();
      int pair = begin / 2;
      for (; 2 * pair + 2 <= end; pair++) {
        fetch[pair / (TG_PAGE / 2) % 2].turn();
        lane_pair<R, B, true>(pages, pair, block, weights, even, odd);
      }
      if (2 * pair < end) lane_pair<R, B, false>(pages, pair, block, weights, even, odd);
      for (int r = 0; r < R; r++)
        for (int b = 0; b < B; b++) {
          float* at = sums + r * dim + (block + b) * 16;
          store(at, load(at) + (even[r][b] + odd[r][b]));
        }
    }
  }
}

// R rows from `row` on with one span.
template <int R, typename Pages>
inline void lane_rows(const PieceWork& work, const Pages& pages, const Ahead* ahead, int row) {
  const int first = work.from(pages, row) & ~15, end = work.to(pages, row + R - 1);
  if (first >= end) return;
  const int pages_end = (end + 15) / 16;
  const float* queries = (const float*)work.scratch.queries() + row * work.dim;
  float* scores = work.scratch.scores();
  float* sums = work.scratch.sums();
  lane_scores<R>(pages, ahead, first / 16, pages_end, queries, scores);
  const Peak* peaks = work.soften(pages, row, R, scores, scores, SCORE_STRIDE, first, pages_end * 16);
  lane_values<R, LANE_BLOCKS>(pages, ahead, first, end, scores, sums);
  work.add(row, R, peaks, sums);
}

template <typename Pages>
inline void attend_by_lanes(const PieceWork& work, const Pages& pages, const Ahead& ahead) {
  int row = 0;
  auto fetch = [&] { return row ? nullptr : &ahead; };  // what follows finds the span in a cache
  for (; row + LANE_ROWS <= work.rows; row += LANE_ROWS) lane_rows<LANE_ROWS>(work, pages, fetch(), row);
  switch (work.rows - row) {
    case 3: return lane_rows<3>(work, pages, fetch(), row);
    case 2: return lane_rows<2>(work, pages, fetch(), row);
    case 1: return lane_rows<1>(work, pages, fetch(), row);
  }
}

}  // namespace TG_NS
}  // namespace tg
