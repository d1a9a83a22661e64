// Where a packed weight keeps what. pack.cpp writes it, linear.cpp reads it.
//
// Outputs lie in blocks of 16 columns, each block whole and at a multiple of 64 bytes. A paired weight alternates blocks
// of the gate and of the up, from the first 16 of each on. Lines of 64 bytes hold 16 columns' next inputs, so that a line
// serves a vector and a row of a tile alike. What lies beyond the weight's columns and inputs is zero.
//   TG_BF16  [k / 2][16][2] bf16, k padded to a multiple of 32
//   TG_INT8  [k / 4][16][4] uint8, value + 128, k padded to a multiple of 64; then float32 scales [16]
//   TG_INT4  k padded to a multiple of the group; for each group
//              [group / 8][16][4] codes: in the low nibbles four inputs, in the high ones the next four
//              float16 scales [16], float16 minima [16]
#pragma once
#include <stdint.h>

#include "abi.h"
#include "simd.h"

namespace tg {
namespace TG_NS {

struct Packing {
  Packing(int32_t format, int32_t group, int32_t n, int32_t k, int32_t paired)
      : format(format), group(group), n(n), k(k), paired(paired) {
    const int32_t whole = format == TG_BF16 ? 32 : format == TG_INT8 ? 64 : group;
    half = n / 2;
    blocks = paired ? 2 * ((half + 15) / 16) : (n + 15) / 16;
    inputs = (k + whole - 1) / whole * whole;
    group_bytes = 8 * group + 64;
    if (format == TG_BF16) block_bytes = 32 * (int64_t)inputs;
    if (format == TG_INT8) block_bytes = 16 * (int64_t)inputs + 64;
    if (format == TG_INT4) block_bytes = (int64_t)(inputs / group) * group_bytes;
  }

  int32_t format, group, n, k, paired;
  int32_t half, blocks;
  int32_t inputs;       // padded
  int32_t group_bytes;  // TG_INT4: of 16 columns
  int64_t block_bytes = 0;

  // The output of a block's first column, and how many of its 16 are outputs.
  int32_t output(int32_t block) const { return paired ? block / 2 * 16 + block % 2 * half : block * 16; }
  int32_t columns(int32_t block) const {
    const int32_t left = paired ? half - block / 2 * 16 : n - block * 16;
    return left < 16 ? left : 16;
  }
  // Within a group, the place of (input, column)'s code; the nibble is the high one where input % 8 >= 4.
  static int32_t code_at(int32_t input, int32_t column) { return input / 8 * 64 + column * 4 + input % 4; }
};

}  // namespace TG_NS
}  // namespace tg
