// Linear kernels on tiles: 16 rows against a block of 16 columns, several of each at once.
//
// Rows go by chunks whose inputs stay in the second-level cache; within a chunk a few blocks of weights are read once from
// memory and serve all its rows. The bits are those of linear_vector.h.
#pragma once
#include "amx.h"
#include "kernels.h"
#include "linear_finish.h"
#include "linear_tiles_int4.h"
#include "linear_vector.h"
#include "packing.h"
#include "simd.h"

#if TG_LEVEL >= 3

namespace tg {
namespace TG_NS {

// Whether tiles beat vectors at so many rows, as measured; four bits have to be made bytes and be stored for tiles.
inline bool tiles_pay(int32_t format, int32_t rows) { return rows >= (format == TG_INT4 ? 16 : 3); }

constexpr int kChunk = 512;  // rows

// Tiles 0 to 3 sum, 4 and 5 hold rows, 6 and 7 columns. Of the sums those of the first sixteen rows come first.
template <int ROW_TILES>
inline void use_tiles(int rows, int columns) {
  const int first = rows < 16 ? rows : 16, second = rows - first;
  Tiles tiles;
  for (int i = 0; i < 4; i++) tiles.set(i, ROW_TILES == 2 && i >= columns && second ? second : first, 64);
  tiles.set(4, first, 64);
  if (second) tiles.set(5, second, 64);
  tiles.set(6, 16, 64);
  tiles.set(7, 16, 64);
  tiles.use();
}

inline void prefetch_tile(const uint8_t* lines) {
  for (int i = 0; i < 16; i++) __builtin_prefetch(lines + i * 64);
}

template <int FORMAT, int SUM, int A, int B>
inline void tile_dot() {
  if constexpr (FORMAT == TG_BF16) tile_dot_bf16<SUM, A, B>();
  if constexpr (FORMAT == TG_INT8) tile_dot_bytes<SUM, A, B>();
}

// What the sums of COLUMN_TILES blocks become, and the scales of their columns (TG_INT8).
template <int FORMAT, int COLUMN_TILES>
struct Panel {
  Panel() = default;
  Panel(const LinearArgs& args, const Packing& p, int block) : finish(args, p, block) {
    for (int b = 0; FORMAT == TG_INT8 && b < COLUMN_TILES; b++)
      scales[b] = int8_scales((const uint8_t*)args.weight->data + (block + b) * p.block_bytes, p);
  }

  Finish<COLUMN_TILES> finish;
  F scales[COLUMN_TILES];
};

// The sums of a pass of tiles, 32 bits each, of a row side by side; and how many rows of them are finished.
template <int FORMAT, int COLUMN_TILES>
struct Sums {
  // Little by little, so that vectors work while tiles are at the next pass.
  inline void finish(int some) {
    const int left = rows - done;
    if (some > left) some = left;
    if (some <= 0) return;
    const int32_t* from = y + done * COLUMN_TILES * 16;
    if constexpr (FORMAT == TG_BF16) {
      panel->finish.rows(row + done, some, [=](int r, int b) { return as_float(load(from + (r * COLUMN_TILES + b) * 16)); });
    } else {
      const int32_t* of_rows = starts + done;
      const float* scale = row_scales + done;
      const F* scales = panel->scales;
      panel->finish.rows(row + done, some, [=](int r, int b) {
        const I sum = load(from + (r * COLUMN_TILES + b) * 16) + splat(of_rows[r]);
        return to_float(sum) * (splat(scale[r]) * scales[b]);
      });
    }
    done += some;
  }

  const Panel<FORMAT, COLUMN_TILES>* panel = nullptr;
  int row = 0, rows = 0, done = 0;
  const int32_t* starts = nullptr;    // of the rows, TG_INT8
  const float* row_scales = nullptr;  // likewise
  alignas(64) int32_t y[1024];
};

// Sums the products of up to ROW_TILES * 16 rows and COLUMN_TILES blocks, ROW_TILES * COLUMN_TILES <= 4, and meanwhile
// finishes those of the pass before. FORMAT is TG_BF16 or TG_INT8; `fetch`: the weights are still to come from memory.
template <int FORMAT, int ROW_TILES, int COLUMN_TILES>
inline void pass(const LinearArgs& args, const Packing& p, int block, bool fetch, Sums<FORMAT, COLUMN_TILES>& sums,
                 Sums<FORMAT, COLUMN_TILES>& before) {
  constexpr int64_t value_bytes = FORMAT == TG_BF16 ? 2 : 1, y_stride = COLUMN_TILES * 64;
  constexpr bool two = ROW_TILES == 2;
  const int64_t block_bytes = p.block_bytes, x_stride = args.x.stride * value_bytes;
  const uint8_t* x = (const uint8_t*)args.x.data + sums.row * x_stride;
  const uint8_t* weights = (const uint8_t*)args.weight->data + block * block_bytes;
  const int steps = (int)(p.inputs * value_bytes / 64), rows_a_step = (before.rows + steps - 1) / steps;
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  for (int step = 0; step < steps; step++, x += 64) {
    const uint8_t* w = weights + step * 1024;
    const uint8_t* next = weights + ahead<COLUMN_TILES>(step * 1024, block_bytes);
    if (fetch) prefetch_tile(next);
    tile_load<4>(x, x_stride);
    tile_load<6>(w, 64);
    tile_dot<FORMAT, 0, 4, 6>();
    if constexpr (two) {
      tile_load<5>(x + 16 * x_stride, x_stride);
      tile_dot<FORMAT, COLUMN_TILES, 5, 6>();
    }
    if constexpr (COLUMN_TILES > 1) {
      if (fetch) prefetch_tile(next + block_bytes);
      tile_load<7>(w + block_bytes, 64);
      tile_dot<FORMAT, 1, 4, 7>();
      if constexpr (two) tile_dot<FORMAT, 3, 5, 7>();
    }
    if constexpr (COLUMN_TILES > 2) {
      if (fetch) prefetch_tile(next + 2 * block_bytes);
      tile_load<6>(w + 2 * block_bytes, 64);
      tile_dot<FORMAT, 2, 4, 6>();
    }
    if constexpr (COLUMN_TILES > 3) {
      if (fetch) prefetch_tile(next + 3 * block_bytes);
      tile_load<7>(w + 3 * block_bytes, 64);
      tile_dot<FORMAT, 3, 4, 7>();
    }
    before.finish(rows_a_step);
  }
  int32_t* y = sums.y;
  tile_store<0>(y, y_stride);
  if constexpr (two) tile_store<COLUMN_TILES>(y + 16 * COLUMN_TILES * 16, y_stride);
  if constexpr (COLUMN_TILES > 1) tile_store<1>(y + 16, y_stride);
  if constexpr (COLUMN_TILES > 1 && two) tile_store<3>(y + 16 + 16 * COLUMN_TILES * 16, y_stride);
  if constexpr (COLUMN_TILES > 2) tile_store<2>(y + 32, y_stride);
  if constexpr (COLUMN_TILES > 3) tile_store<3>(y + 48, y_stride);
}

// Rows [row, row + rows), at most a chunk, against as many of the blocks [from, to) as go into whole panels: up to the
// one that is returned. `starts` are those of the rows.
template <int FORMAT, int ROW_TILES, int COLUMN_TILES>
inline int chunk(const LinearArgs& args, const Packing& p, int row, int rows, int from, int to, const int32_t* starts) {
  constexpr int most = 16 * ROW_TILES;
  Panel<FORMAT, COLUMN_TILES> panels[2];
  Sums<FORMAT, COLUMN_TILES> sums[2];
  int block = from, turn = 0, shape = 0;
  for (int side = 0; block + COLUMN_TILES <= to; block += COLUMN_TILES, side ^= 1) {
    panels[side] = Panel<FORMAT, COLUMN_TILES>(args, p, block);
    for (int at = 0; at < rows; at += most, turn ^= 1) {
      auto &now = sums[turn], &before = sums[turn ^ 1];
      now.panel = &panels[side];
      now.row = row + at, now.rows = rows - at < most ? rows - at : most, now.done = 0;
      if (FORMAT == TG_INT8) now.starts = starts + at, now.row_scales = args.x.scale + row + at;
      if (now.rows != shape) use_tiles<ROW_TILES>(shape = now.rows, COLUMN_TILES);
      if (ROW_TILES == 2 && now.rows <= 16)
        pass<FORMAT, 1, COLUMN_TILES>(args, p, block, at == 0, now, before);
      else
        pass<FORMAT, ROW_TILES, COLUMN_TILES>(args, p, block, at == 0, now, before);
    }
  }
  sums[turn ^ 1].finish(most);
  return block;
}

template <int FORMAT>
inline void by_tiles(const LinearArgs& args, const Packing& p, int from, int to) {
  int32_t starts[kChunk];
  for (int row = 0; row < args.x.m; row += kChunk) {
    const int rows = args.x.m - row < kChunk ? args.x.m - row : kChunk;
    for (int r = 0; FORMAT == TG_INT8 && r < rows; r++) starts[r] = int8_start(args.x, row + r, p.inputs);
    int block = from;
    if (rows <= 16) block = chunk<FORMAT, 1, 4>(args, p, row, rows, block, to, starts);
    block = chunk<FORMAT, 2, 2>(args, p, row, rows, block, to, starts);
    chunk<FORMAT, 2, 1>(args, p, row, rows, block, to, starts);
  }
}

inline void multiply_tiles(const LinearArgs& args, const Packing& p, int from, int to) {
  if (p.format == TG_BF16) by_tiles<TG_BF16>(args, p, from, to);
  if (p.format == TG_INT8) by_tiles<TG_INT8>(args, p, from, to);
  if (p.format == TG_INT4) int4_by_tiles(args, p, from, to);
  release_tiles();
}

}  // namespace TG_NS
}  // namespace tg

#endif
