// Linear kernels on vectors, in the order of additions that abi.h's numeric contract sets.
//
// ROWS rows go against BLOCKS neighbouring blocks of columns, read side by side: so many chains of additions are under way.
#pragma once
#include "kernels.h"
#include "packed_lanes.h"
#include "packing.h"
#include "simd.h"

namespace tg {
namespace TG_NS {

// Bytes before its use that a line of weights is asked for.
constexpr int64_t kAhead = 2048;

// Where in a block's stream to ask for lines now: at its end, in the block that is read next in its stead.
template <int BLOCKS>
inline int64_t ahead(int64_t at, int64_t block_bytes) {
  at += kAhead;
  return at < block_bytes ? at : at + (BLOCKS - 1) * block_bytes;
}

inline I load_line(const uint8_t* at) { return load((const int32_t*)at); }

inline int32_t load_quad(const void* at) {
  int32_t quad;
  memcpy(&quad, at, 4);
  return quad;
}

template <int ROWS, int BLOCKS>
inline void store_sums(const F (&sums)[ROWS][BLOCKS], float* y) {
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
    for (int b = 0; b < BLOCKS; b++) store(y + (r * BLOCKS + b) * 16, sums[r][b]);
}

struct Bf16 {
  template <int ROWS, int BLOCKS>
  static void dot(const LinearArgs& args, const Packing& p, int row, const uint8_t* weights, float* y) {
    const int64_t bytes = p.block_bytes;
    const uint16_t* x = (const uint16_t*)args.x.data + (int64_t)row * args.x.stride;
    F sums[ROWS][BLOCKS] = {};
    for (int64_t at = 0; at < bytes; at += 1024, x += 32) {
      const uint8_t* next = weights + ahead<BLOCKS>(at, bytes);
      F even[ROWS][BLOCKS] = {}, odd[ROWS][BLOCKS] = {};
      for (int i = 0; i < 16; i++) {
        F w_even[BLOCKS], w_odd[BLOCKS];
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; b++) {
          __builtin_prefetch(next + b * bytes + i * 64);
          const I pairs = load_line(weights + at + b * bytes + i * 64);
          w_even[b] = even_bf16(pairs), w_odd[b] = odd_bf16(pairs);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
          const I pair = splat(load_quad(x + r * args.x.stride + 2 * i));
          const F x_even = even_bf16(pair), x_odd = odd_bf16(pair);
#pragma GCC unroll 8
          for (int b = 0; b < BLOCKS; b++) {
            even[r][b] = fma(x_even, w_even[b], even[r][b]);
            odd[r][b] = fma(x_odd, w_odd[b], odd[r][b]);
          }
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; b++) sums[r][b] = sums[r][b] + (even[r][b] + odd[r][b]);
    }
    store_sums(sums, y);
  }
};

// Weights are kept 128 above their value, which starting at -128 times the sum of the inputs takes back.
inline int32_t int8_start(const Activations& x, int row, int inputs) {
  const int32_t* sums = x.sums + (int64_t)row * (x.stride / 32);
  int32_t all = 0;
  for (int i = 0; i < inputs / 32; i++) all += sums[i];
  return -128 * all;
}

// The scales of an int8 block's columns.
inline F int8_scales(const uint8_t* block, const Packing& p) {
  return load((const float*)(block + 16 * (int64_t)p.inputs));
}

struct Int8 {
  template <int ROWS, int BLOCKS>
  static void dot(const LinearArgs& args, const Packing& p, int row, const uint8_t* weights, float* y) {
    const int64_t bytes = p.block_bytes, values = 16 * (int64_t)p.inputs;
    const int8_t* x = (const int8_t*)args.x.data + (int64_t)row * args.x.stride;
    I sums[ROWS][BLOCKS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      const I start = splat(int8_start(args.x, row + r, p.inputs));
#pragma GCC unroll 8
      for (int b = 0; b < BLOCKS; b++) sums[r][b] = start;
    }
    for (int64_t at = 0; at < values; at += 256, x += 16) {
      const uint8_t* next = weights + ahead<BLOCKS>(at, bytes);
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; b++) {
          __builtin_prefetch(next + b * bytes + i * 64);
          const I w = load_line(weights + at + b * bytes + i * 64);
#pragma GCC unroll 8
          for (int r = 0; r < ROWS; r++)
            sums[r][b] = dot_bytes(sums[r][b], w, splat(load_quad(x + r * args.x.stride + 4 * i)));
        }
      }
    }
    F scaled[ROWS][BLOCKS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
      for (int b = 0; b < BLOCKS; b++)
        scaled[r][b] = to_float(sums[r][b]) * (splat(args.x.scale[row + r]) * int8_scales(weights + b * bytes, p));
    store_sums(scaled, y);
  }
};

// The sum of a row's inputs in one group.
inline float group_sum(const int32_t* sums, int group, int size) {
  return (float)(size == 32 ? sums[group] : sums[2 * group] + sums[2 * group + 1]);
}

struct Int4 {
  template <int ROWS, int BLOCKS>
  static void dot(const LinearArgs& args, const Packing& p, int row, const uint8_t* weights, float* y) {
    const int64_t bytes = p.block_bytes, values = 8 * (int64_t)p.group, step = p.group_bytes;
    const int8_t* x = (const int8_t*)args.x.data + (int64_t)row * args.x.stride;
    const int32_t* x_sums = args.x.sums + (int64_t)row * (args.x.stride / 32);
    const I low = splat(0x0f0f0f0f);
    F sums[ROWS][BLOCKS] = {};
    for (int64_t from = 0, g = 0; from < bytes; from += step, g++) {
      const uint8_t* next = weights + ahead<BLOCKS>(from, bytes);
      I dots[ROWS][BLOCKS] = {};
      for (int64_t at = 0; at < values; at += 64, x += 8) {
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; b++) {
          __builtin_prefetch(next + b * bytes + at);
          const I pair = load_line(weights + from + b * bytes + at);
          const I first = pair & low, second = shift_right(pair, 4) & low;
#pragma GCC unroll 8
          for (int r = 0; r < ROWS; r++) {
            const int8_t* inputs = x + r * args.x.stride;
            dots[r][b] = dot_bytes(dots[r][b], first, splat(load_quad(inputs)));
            dots[r][b] = dot_bytes(dots[r][b], second, splat(load_quad(inputs + 4)));
          }
        }
      }
#pragma GCC unroll 8
      for (int b = 0; b < BLOCKS; b++) {
        __builtin_prefetch(next + b * bytes + values);
        const uint16_t* line = (const uint16_t*)(weights + from + b * bytes + values);
        const F scale = load_half(line), min = load_half(line + 16);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
          sums[r][b] = fma(to_float(dots[r][b]), scale, sums[r][b]);
          sums[r][b] = fma(splat(group_sum(x_sums + r * (args.x.stride / 32), (int)g, p.group)), min, sums[r][b]);
        }
      }
    }
    F scaled[ROWS][BLOCKS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
      for (int b = 0; b < BLOCKS; b++) scaled[r][b] = sums[r][b] * splat(args.x.scale[row + r]);
    store_sums(scaled, y);
  }
};

template <int VALUE>
struct Count {
  constexpr int operator()() const { return VALUE; }
};

// All rows against BLOCKS blocks.
template <typename Format, int ROWS, int BLOCKS>
inline void all_rows(const LinearArgs& args, const Packing& p, int block) {
  const uint8_t* weights = (const uint8_t*)args.weight->data + block * p.block_bytes;
  const Finish<BLOCKS> finish(args, p, block);
  alignas(64) float room[ROWS * BLOCKS * 16];
  float* y = room;
  int row = 0;
  auto take = [&](auto rows) {
    Format::template dot<rows(), BLOCKS>(args, p, row, weights, y);
    finish.rows(row, rows(), [=](int r, int b) { return load(y + (r * BLOCKS + b) * 16); });
    row += rows();
  };
  while (row + ROWS <= args.x.m) take(Count<ROWS>());
  if constexpr (ROWS > 4) {
    if (args.x.m - row >= 4) take(Count<4>());
  }
  if constexpr (ROWS > 2) {
    if (args.x.m - row >= 2) take(Count<2>());
  }
  if constexpr (ROWS > 1) {
    if (row < args.x.m) take(Count<1>());
  }
}

template <typename Format, int ROWS, int BLOCKS>
inline void multiply_vectors(const LinearArgs& args, const Packing& p, int from, int to) {
  int block = from;
  for (; block + BLOCKS <= to; block += BLOCKS) all_rows<Format, ROWS, BLOCKS>(args, p, block);
  if constexpr (BLOCKS > 2) {
    if (to - block >= 2) {
      all_rows<Format, ROWS, 2>(args, p, block);
      block += 2;
    }
  }
  if (block < to) all_rows<Format, ROWS, 1>(args, p, block);
}

}  // namespace TG_NS
}  // namespace tg
