// Linear kernels on tiles for weights of four bits.
//
// Codes become bytes on their way to a tile, and each group of inputs has sums of its own, which vectors scale and add up
// while tiles are at the next groups.
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

constexpr int kGroups = 2;  // at a time; a group and a block have a tile of sums
constexpr int kSpan = 64;   // groups whose sums of inputs are at hand

// One or two tiles of rows, all of the same height, against BLOCKS (1 or 2) blocks of columns.
template <int BLOCKS>
class Int4Pass {
 public:
  Int4Pass(const LinearArgs& args, const Packing& p, int block, int row, int rows)
      : args_(args), p_(p), weights_((const uint8_t*)args.weight->data + block * p.block_bytes),
        x_((const int8_t*)args.x.data + (int64_t)row * args.x.stride), row_(row), height_(rows < 16 ? rows : 16),
        tiles_((rows + 15) / 16), groups_(p.inputs / p.group) {}

  // `fetch`: the weights are still to come from memory.
  void run(const Finish<BLOCKS>& finish, bool fetch) {
    const int rows = height_ * tiles_;
    for (int i = 0; i < rows * BLOCKS; i++) store(totals_ + i * 16, zero());
    unpack(0);
    for (int group = 0; group < groups_; group += kGroups) {
      if (group % kSpan == 0) {
        add_up();
        read_input_sums(group);
      }
      turn_ ^= 1;
      for (int tile = 0; tile < tiles_; tile++) step(group, tile, fetch);
    }
    add_up();
    const float *scales = args_.x.scale + row_, *totals = totals_;
    finish.rows(row_, rows, [=](int r, int b) { return load(totals + (r * BLOCKS + b) * 16) * splat(scales[r]); });
  }

  // Tiles 0 to 3 sum, 4 and 5 hold rows, 6 and 7 columns.
  static void use_tiles(int height, int group) {
    Tiles tiles;
    for (int i = 0; i < 4; i++) tiles.set(i, height, 64);
    tiles.set(4, height, group), tiles.set(5, height, group);
    tiles.set(6, group / 4, 64), tiles.set(7, group / 4, 64);
    tiles.use();
  }

 private:
  // The groups from `group` on, of which there may be one only.
  void step(int group, int tile, bool fetch) {
    const bool both = group + 1 < groups_;
    const int8_t* x = x_ + 16 * tile * args_.x.stride + group * p_.group;
    dot<0>(x, codes_[turn_ ^ 1]);
    if (both) dot<1>(x, codes_[turn_ ^ 1]);
    if (tile == 0) {
      if (fetch) ask_for(group);
      unpack(group + kGroups);
    }
    add_up();
    tile_store<0>(sums_[0][0], 64);
    if (both) tile_store<1>(sums_[1][0], 64);
    if (BLOCKS == 2) tile_store<2>(sums_[0][16], 64);
    if (BLOCKS == 2 && both) tile_store<3>(sums_[1][16], 64);
    summed_group_ = group, summed_tile_ = tile, summed_ = both ? 2 : 1;
  }

  template <int GROUP>
  void dot(const int8_t* x, const uint8_t* codes) {
    const int bytes = 16 * p_.group;
    tile_zero<GROUP>();
    tile_load<4 + GROUP>(x + GROUP * p_.group, args_.x.stride);
    tile_load<6>(codes + GROUP * bytes, 64);
    tile_dot_bytes<GROUP, 4 + GROUP, 6>();
    if constexpr (BLOCKS == 2) {
      tile_zero<2 + GROUP>();
      tile_load<7>(codes + (kGroups + GROUP) * bytes, 64);
      tile_dot_bytes<2 + GROUP, 4 + GROUP, 7>();
    }
  }

  void ask_for(int group) {
    const uint8_t* next = weights_ + ahead<BLOCKS>((int64_t)group * p_.group_bytes, p_.block_bytes);
    for (int b = 0; b < BLOCKS; b++)
      for (int at = 0; at < kGroups * p_.group_bytes; at += 64) __builtin_prefetch(next + b * p_.block_bytes + at);
  }

  void unpack(int group) {
    const I low = splat(0x0f0f0f0f);
    for (int b = 0; b < BLOCKS; b++)
      for (int g = group; g < groups_ && g < group + kGroups; g++) {
        const uint8_t* lines = weights_ + b * p_.block_bytes + (int64_t)g * p_.group_bytes;
        uint8_t* codes = codes_[turn_] + (b * kGroups + g - group) * 16 * p_.group;
        for (int at = 0; at < 8 * p_.group; at += 64, codes += 128) {
          const I pair = load_line(lines + at);
          store((int32_t*)codes, pair & low);
          store((int32_t*)(codes + 64), shift_right(pair, 4) & low);
        }
      }
  }

  void read_input_sums(int group) {
    const int count = groups_ - group < kSpan ? groups_ - group : kSpan;
    for (int r = 0; r < height_ * tiles_; r++)
      for (int g = 0; g < count; g++)
        input_sums_[r][g] = group_sum(args_.x.sums + (int64_t)(row_ + r) * (args_.x.stride / 32), group + g, p_.group);
  }

  // The sums that the last step left.
  void add_up() {
    if (summed_ == 2) add_up<2>();
    if (summed_ == 1) add_up<1>();
    summed_ = 0;
  }

  template <int COUNT>
  void add_up() {
    const int rows = height_;
    for (int b = 0; b < BLOCKS; b++) {
      F scale[COUNT], min[COUNT];
#pragma GCC unroll 2
      for (int g = 0; g < COUNT; g++) {
        const int64_t end = (int64_t)(summed_group_ + g + 1) * p_.group_bytes;
        const uint16_t* line = (const uint16_t*)(weights_ + b * p_.block_bytes + end - 64);
        scale[g] = load_half(line), min[g] = load_half(line + 16);
      }
      float* total = totals_ + (summed_tile_ * 16 * BLOCKS + b) * 16;
      const float* inputs = &input_sums_[summed_tile_ * 16][summed_group_ % kSpan];
      const int32_t* sums = sums_[0][b * 16];
      for (int r = 0; r < rows; r++, total += BLOCKS * 16, inputs += kSpan, sums += 16) {
        F sum = load(total);
#pragma GCC unroll 2
        for (int g = 0; g < COUNT; g++) {
          sum = fma(to_float(load(sums + g * BLOCKS * 256)), scale[g], sum);
          sum = fma(splat(inputs[g]), min[g], sum);
        }
        store(total, sum);
      }
    }
  }

  const LinearArgs& args_;
  const Packing& p_;
  const uint8_t* weights_;
  const int8_t* x_;
  const int row_, height_, tiles_, groups_;
  int turn_ = 0;
  int summed_ = 0, summed_group_ = 0, summed_tile_ = 0;
  alignas(64) int32_t sums_[kGroups][BLOCKS * 16][16];
  alignas(64) uint8_t codes_[2][kGroups * BLOCKS * 64 * 16];
  alignas(64) float totals_[32 * BLOCKS * 16];
  alignas(64) float input_sums_[32][kSpan];
};

// As many of the blocks [from, to) as go by BLOCKS: up to the one that is returned.
template <int BLOCKS>
inline int int4_panels(const LinearArgs& args, const Packing& p, int from, int to) {
  int block = from, shape = 0;
  for (; block + BLOCKS <= to; block += BLOCKS) {
    const Finish<BLOCKS> finish(args, p, block);
    for (int row = 0, some = 0; row < args.x.m; row += some) {
      const int left = args.x.m - row;
      some = left >= 32 ? 32 : left > 16 ? 16 : left;
      const int height = some < 16 ? some : 16;
      if (height != shape) Int4Pass<BLOCKS>::use_tiles(shape = height, p.group);
      Int4Pass<BLOCKS>(args, p, block, row, some).run(finish, row == 0);
    }
  }
  return block;
}

inline void int4_by_tiles(const LinearArgs& args, const Packing& p, int from, int to) {
  const int block = int4_panels<2>(args, p, from, to);
  int4_panels<1>(args, p, block, to);
}

}  // namespace TG_NS
}  // namespace tg

#endif
