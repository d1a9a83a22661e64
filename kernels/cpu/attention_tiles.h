// Attention's dot products on AMX tiles.
#pragma once
#include <new>

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
    tile_store<0>(scores + step, 4 * TG_SPAN);
    tile_store<1>(scores + step + 16, 4 * TG_SPAN);
  }
}

template <typename Pages>
inline void stream_sums(const Pages& pages, const Ahead& ahead, int rows, int from, int to, const uint16_t* weights,
                        float* sums, uint16_t* room) {
  const int dim = pages.layout.dim;
  memset(sums, 0, sizeof *sums * rows * dim);
  for (int step = from; step < to; step += STEP) {
    for (int half = 0; half < 2; half++)
      step_values(pages, step / TG_PAGE + half, room + half * TG_PAGE * dim, &ahead);
    tile_load<4>(weights + step, 2 * TG_SPAN);
    for (int d = 0; d < dim; d += 32) {
      tile_load<0>(sums + d, 4 * dim);
      tile_load<1>(sums + d + 16, 4 * dim);
      tile_load<6>(room + 2 * d, 4 * dim);
      tile_load<7>(room + 2 * d + 32, 4 * dim);
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
  Peak peaks[TILE_ROWS];
  for (int r = 0; r < work.rows; r++)
    peaks[r] = work.soften(pages, r, scratch.scores() + r * TG_SPAN, scratch.weights() + r * TG_SPAN, first, end);
  stream_sums(pages, ahead, work.rows, first, end, scratch.weights(), scratch.sums(), scratch.values());
  for (int r = 0; r < work.rows; r++) work.add(r, peaks[r], scratch.sums() + r * work.dim);
  release_tiles();
}

// A row of matrix products, each of 32 rows by 2 x 16 columns, whose tiles are multiplied in turns, so that they can go on
// while the vector units do something else.
template <typename Operands>
class TileJob {
 public:
  TileJob(const Operands& operands, int products, int length) : o_(operands), turns_(products * length), length_(length) {}

  int turns() const { return turns_; }

  void turn() {
    if (at_ == 0) {
      tile_zero<0>();
      tile_zero<1>();
      tile_zero<2>();
      tile_zero<3>();
    }
    const char* left = o_.left(product_, at_);
    const int64_t left_stride = o_.left_stride(), right_stride = o_.right_stride();
    tile_load<4>(left, left_stride);
    tile_load<6>(o_.right(product_, at_, 0), right_stride);
    tile_dot_bf16<0, 4, 6>();
    tile_load<7>(o_.right(product_, at_, 1), right_stride);
    tile_dot_bf16<1, 4, 7>();
    tile_load<5>(left + TILE_ROWS * left_stride, left_stride);
    tile_dot_bf16<2, 5, 6>();
    tile_dot_bf16<3, 5, 7>();
    if (++at_ < length_) return;
    float* out = o_.out(product_);
    const int64_t stride = o_.out_stride();
    tile_store<0>(out, 4 * stride);
    tile_store<1>(out + 16, 4 * stride);
    tile_store<2>(out + TILE_ROWS * stride, 4 * stride);
    tile_store<3>(out + TILE_ROWS * stride + 16, 4 * stride);
    at_ = 0;
    product_++;
  }

 private:
  const Operands o_;
  const int turns_, length_;
  int product_ = 0, at_ = 0;
};

// Scores with keys from `from` on: a product for 32 keys, over the dimensions. queries bf16 [32, dim], scores [32, TG_SPAN].
template <typename Span>
struct ScoreOperands {
  const Span* span;
  int dim, from;
  const uint16_t* queries;
  float* scores;

  const char* left(int, int i) const { return (const char*)queries + i * 64; }
  const char* right(int product, int i, int half) const {
    return span->keys((from + product * STEP) / TG_PAGE + half) + i * 16 * 64;
  }
  float* out(int product) const { return scores + from + product * STEP; }
  int64_t left_stride() const { return 2 * dim; }
  int64_t right_stride() const { return 64; }
  int64_t out_stride() const { return TG_SPAN; }
};

// Sums of values from `from` on: a product for 32 dimensions, over the keys. weights bf16 [32, TG_SPAN], sums [32, dim].
struct SumOperands {
  const uint16_t* values;
  int dim, from;
  const uint16_t* weights;
  float* sums;

  const char* left(int, int i) const { return (const char*)(weights + from + i * STEP); }
  const char* right(int product, int i, int half) const {
    return (const char*)(values + (from + i * STEP) * dim + product * 64 + half * 32);
  }
  float* out(int product) const { return sums + product * 32; }
  int64_t left_stride() const { return 2 * TG_SPAN; }
  int64_t right_stride() const { return 4 * dim; }
  int64_t out_stride() const { return dim; }
};

// ROWS rows of a piece with one span: scores, weights, sums. Rows behind the piece's last are computed and dropped.
template <typename Pages>
class TileGroup {
 public:
  TileGroup(const PieceWork& work, const Pages& pages, const TileSpan<Pages>& span, int row)
      : work_(work),
        pages_(pages),
        row_(row),
        rows_(work.rows - row < ROWS ? work.rows - row : (int)ROWS),
        from_(work.from(pages, row) & ~(STEP - 1)),
        to_((work.to(pages, row + rows_ - 1) + STEP - 1) & ~(STEP - 1)),
        scores_(work.scratch.scores() + row / ROWS % 2 * ROWS * TG_SPAN),
        weights_(work.scratch.weights() + row / ROWS % 2 * ROWS * TG_SPAN),
        score_job_({&span, work.dim, from_, (const uint16_t*)work.scratch.queries() + row * work.dim, scores_},
                   steps(), work.dim / 32),
        sum_job_({span.values(), work.dim, from_, weights_, work.scratch.sums()}, work.dim / 32, steps()) {}

  TileJob<ScoreOperands<TileSpan<Pages>>>& scores() { return score_job_; }
  TileJob<SumOperands>& sums() { return sum_job_; }
  int rows() const { return rows_; }

  void soften(int r) {
    peaks_[r] = work_.soften(pages_, row_ + r, scores_ + r * TG_SPAN, weights_ + r * TG_SPAN, from_, to_);
  }
  void add() const {
    for (int r = 0; r < rows_; r++) work_.add(row_ + r, peaks_[r], work_.scratch.sums() + r * work_.dim);
  }

 private:
  int steps() const { return to_ > from_ ? (to_ - from_) / STEP : 0; }

  const PieceWork& work_;
  const Pages& pages_;
  const int row_, rows_, from_, to_;
  float* const scores_;
  uint16_t* const weights_;
  TileJob<ScoreOperands<TileSpan<Pages>>> score_job_;
  TileJob<SumOperands> sum_job_;
  Peak peaks_[ROWS];
};

// Many rows with one span. While the vector units make weights of a group's scores, the tiles make the next group's scores
// and the previous group's sums.
template <typename Pages>
inline void attend_many_by_tiles(const PieceWork& work, const Pages& pages) {
  const TileSpan<Pages> span(pages, work.scratch.keys(), work.scratch.values());
  tile_rows(2 * TILE_ROWS).use();
  using Group = TileGroup<Pages>;
  alignas(Group) char room[3][sizeof(Group)];
  Group* groups[3] = {nullptr, nullptr, new (room[0]) Group(work, pages, span, 0)};
  for (int i = 0; i < groups[2]->scores().turns(); i++) groups[2]->scores().turn();
  for (int row = 0, count = 1; groups[2]; row += ROWS, count++) {
    groups[0] = groups[1];
    groups[1] = groups[2];
    groups[2] = row + ROWS < work.rows ? new (room[count % 3]) Group(work, pages, span, row + ROWS) : nullptr;
    const int score_turns = groups[2] ? groups[2]->scores().turns() : 0;
    const int sum_turns = groups[0] ? groups[0]->sums().turns() : 0, turns = score_turns + sum_turns;
    int turn = 0;
    for (int r = 0, rows = groups[1]->rows(); r < rows; r++) {
      for (; turn < turns * (r + 1) / rows; turn++) {
        if (turn < score_turns) {
          groups[2]->scores().turn();
        } else {
          groups[0]->sums().turn();
        }
      }
      groups[1]->soften(r);
    }
    if (groups[0]) groups[0]->add();
  }
  for (int i = 0; i < groups[1]->sums().turns(); i++) groups[1]->sums().turn();
  groups[1]->add();
  release_tiles();
}

}  // namespace TG_NS
}  // namespace tg
