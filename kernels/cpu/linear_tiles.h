// Linear kernels on tiles: 16 rows against a block of 16 columns, several of each at once.
//
// Rows go by chunks whose inputs stay in the second-level cache; within a chunk a few blocks of weights are read once from
// memory and serve all its rows. The bits are those of linear_vector.h.
#pragma once
#include "amx.h"
#include "kernels.h"
#include "linear_finish.h"
#include "linear_vector.h"
#include "packing.h"
#include "simd.h"

#if TG_LEVEL >= 3

namespace tg {
namespace TG_NS {

// Whether tiles beat vectors at so many rows.
inline bool tiles_pay(int32_t format, int32_t rows) { return format != TG_INT4 && rows >= 3; }

constexpr int kChunk = 512;  // rows

// Tiles 0 to 3 sum, 4 and 5 hold rows, 6 and 7 columns. Of the sums those of the first sixteen rows come first.
template <int ROW_TILES>
inline void use_tiles(int rows, int columns) {
  Tiles tiles;
  for (int i = 0; i < 4; i++) tiles.set(i, ROW_TILES == 2 && i >= columns ? rows - 16 : rows < 16 ? rows : 16, 64);
  tiles.set(4, rows < 16 ? rows : 16, 64);
  if (ROW_TILES == 2) tiles.set(5, rows - 16, 64);
  tiles.set(6, 16, 64);
  tiles.set(7, 16, 64);
  tiles.use();
}

template <int FORMAT, int SUM, int A, int B>
inline void tile_dot() {
  if constexpr (FORMAT == TG_BF16) tile_dot_bf16<SUM, A, B>();
  if constexpr (FORMAT == TG_INT8) tile_dot_bytes<SUM, A, B>();
}

// The sums of up to ROW_TILES * 16 rows and COLUMN_TILES blocks, ROW_TILES * COLUMN_TILES <= 4, to y: 32 bits each, of a row
// side by side. FORMAT is TG_BF16 or TG_INT8; `fetch`: ask for the lines that come next.
template <int FORMAT, int ROW_TILES, int COLUMN_TILES>
inline void dot_tiles(const uint8_t* x, int64_t x_stride, const uint8_t* weights, int64_t block_bytes, int steps, bool fetch,
                      int32_t* y) {
  constexpr int64_t y_stride = COLUMN_TILES * 64;
  constexpr bool two = ROW_TILES == 2;
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  for (int step = 0; step < steps; step++) {
    const int64_t at = step * 1024;
    const uint8_t* w = weights + at;
    if (fetch) {
      const uint8_t* next = weights + ahead<COLUMN_TILES>(at, block_bytes);
      for (int b = 0; b < COLUMN_TILES; b++)
        for (int i = 0; i < 16; i++) __builtin_prefetch(next + b * block_bytes + i * 64);
    }
    tile_load<4>(x + step * 64, x_stride);
    if constexpr (two) tile_load<5>(x + step * 64 + 16 * x_stride, x_stride);
    tile_load<6>(w, 64);
    tile_dot<FORMAT, 0, 4, 6>();
    if constexpr (two) tile_dot<FORMAT, COLUMN_TILES, 5, 6>();
    if constexpr (COLUMN_TILES > 1) {
      tile_load<7>(w + block_bytes, 64);
      tile_dot<FORMAT, 1, 4, 7>();
      if constexpr (two) tile_dot<FORMAT, 3, 5, 7>();
    }
    if constexpr (COLUMN_TILES > 2) {
      tile_load<6>(w + 2 * block_bytes, 64);
      tile_dot<FORMAT, 2, 4, 6>();
    }
    if constexpr (COLUMN_TILES > 3) {
      tile_load<7>(w + 3 * block_bytes, 64);
      tile_dot<FORMAT, 3, 4, 7>();
    }
  }
  tile_store<0>(y, y_stride);
  if constexpr (two) tile_store<COLUMN_TILES>(y + 16 * COLUMN_TILES * 16, y_stride);
  if constexpr (COLUMN_TILES > 1) tile_store<1>(y + 16, y_stride);
  if constexpr (COLUMN_TILES > 1 && two) tile_store<3>(y + 16 + 16 * COLUMN_TILES * 16, y_stride);
  if constexpr (COLUMN_TILES > 2) tile_store<2>(y + 32, y_stride);
  if constexpr (COLUMN_TILES > 3) tile_store<3>(y + 48, y_stride);
}

// What the rows of a chunk start their int8 sums with.
struct Starts {
  int32_t of[kChunk];
};

template <int FORMAT, int ROW_TILES, int COLUMN_TILES>
inline void some_rows(const LinearArgs& args, const Packing& p, int row, int rows, int block, const int32_t* starts,
                      bool fetch) {
  alignas(64) int32_t y[ROW_TILES * 16 * COLUMN_TILES * 16];
  const int64_t bytes = p.block_bytes(), value_bytes = FORMAT == TG_BF16 ? 2 : 1, x_stride = args.x.stride * value_bytes;
  const uint8_t* x = (const uint8_t*)args.x.data + row * x_stride;
  const uint8_t* weights = (const uint8_t*)args.weight->data + block * bytes;
  dot_tiles<FORMAT, ROW_TILES, COLUMN_TILES>(x, x_stride, weights, bytes, (int)(p.inputs() * value_bytes / 64), fetch, y);
  finish(args, p, row, rows, block, COLUMN_TILES, [&](int r, int b) {
    const I sum = load(y + (r * COLUMN_TILES + b) * 16);
    if constexpr (FORMAT == TG_BF16) return as_float(sum);
    return to_float(sum + splat(starts[r])) * (splat(args.x.scale[row + r]) * int8_scales(weights + b * bytes, p));
  });
}

// Rows [row, row + rows), at most a chunk, against the blocks [from, to).
template <int FORMAT, int ROW_TILES, int COLUMN_TILES>
inline int chunk_blocks(const LinearArgs& args, const Packing& p, int row, int rows, int from, int to, const int32_t* starts) {
  const int whole = rows / (16 * ROW_TILES) * (16 * ROW_TILES), rest = rows - whole;
  int block = from;
  for (; block + COLUMN_TILES <= to; block += COLUMN_TILES) {
    if (whole) use_tiles<ROW_TILES>(16 * ROW_TILES, COLUMN_TILES);
    for (int at = 0; at < whole; at += 16 * ROW_TILES)
      some_rows<FORMAT, ROW_TILES, COLUMN_TILES>(args, p, row + at, 16 * ROW_TILES, block, starts + at, at == 0);
    if constexpr (ROW_TILES == 2) {
      if (rest > 16) {
        use_tiles<2>(rest, COLUMN_TILES);
        some_rows<FORMAT, 2, COLUMN_TILES>(args, p, row + whole, rest, block, starts + whole, !whole);
        continue;
      }
    }
    if (rest) {
      use_tiles<1>(rest, COLUMN_TILES);
      some_rows<FORMAT, 1, COLUMN_TILES>(args, p, row + whole, rest, block, starts + whole, !whole);
    }
  }
  return block;
}

template <int FORMAT>
inline void by_tiles(const LinearArgs& args, const Packing& p, int from, int to) {
  int32_t starts[kChunk];
  for (int row = 0; row < args.x.m; row += kChunk) {
    const int rows = args.x.m - row < kChunk ? args.x.m - row : kChunk;
    for (int r = 0; FORMAT == TG_INT8 && r < rows; r++) starts[r] = int8_start(args.x, row + r, p.inputs());
    int block = from;
    if (rows <= 16) {
      block = chunk_blocks<FORMAT, 1, 4>(args, p, row, rows, block, to, starts);
    }
    block = chunk_blocks<FORMAT, 2, 2>(args, p, row, rows, block, to, starts);
    chunk_blocks<FORMAT, 2, 1>(args, p, row, rows, block, to, starts);
  }
}

inline void multiply_tiles(const LinearArgs& args, const Packing& p, int from, int to) {
  if (p.format == TG_BF16) by_tiles<TG_BF16>(args, p, from, to);
  if (p.format == TG_INT8) by_tiles<TG_INT8>(args, p, from, to);
  release_tiles();
}

}  // namespace TG_NS
}  // namespace tg

#endif
