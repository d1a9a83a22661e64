// Where a packed weight keeps what. pack.cpp writes it, linear.cpp reads it.
//
// Outputs lie in blocks of 16 columns, each block whole and at a multiple of 64 bytes. A paired weight alternates blocks of
// the gate and of the up, from the first 16 of each on. Lines of 64 bytes hold 16 columns' next inputs, so that a line
// serves a vector and a row of a tile alike; columns and inputs beyond the weight's are zero.
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
  int32_t format, group, n, k, paired;

  int32_t half() const { return n / 2; }
  int32_t blocks() const { return paired ? 2 * ((half() + 15) / 16) : (n + 15) / 16; }
  // The output of a block's first column, and how many of its 16 are outputs.
  int32_t output(int32_t block) const { return paired ? block / 2 * 16 + block % 2 * half() : block * 16; }
  int32_t columns(int32_t block) const {
    int32_t left = paired ? half() - block / 2 * 16 : n - block * 16;
    return left < 16 ? left : 16;
  }
  int32_t inputs() const {
    int32_t whole = format == TG_BF16 ? 32 : format == TG_INT8 ? 64 : group;
    return (k + whole - 1) / whole * whole;
  }
  int64_t group_bytes() const { return 8 * (int64_t)group + 64; }
  int64_t block_bytes() const {
    if (format == TG_BF16) return 32 * (int64_t)inputs();
    if (format == TG_INT8) return 16 * (int64_t)inputs() + 64;
    return inputs() / group * group_bytes();
  }
  // Within a group, the place of (input, column)'s code; the nibble is the high one where input % 8 >= 4.
  static int32_t code_at(int32_t input, int32_t column) { return input / 8 * 64 + column * 4 + input % 4; }
};

}  // namespace TG_NS
}  // namespace tg
