// The end of a linear kernel: a bias, and what the caller wants done with the result.
#pragma once
#include "kernels.h"
#include "packing.h"
#include "simd.h"

namespace tg {
namespace TG_NS {

// What becomes of the sums of BLOCKS neighbouring blocks of columns; those of a paired weight come in pairs.
template <int BLOCKS>
struct Finish {
  Finish() = default;
  Finish(const LinearArgs& args, const Packing& p, int block) : epilogue(args.epilogue), stride(args.stride) {
    for (int b = 0; b < BLOCKS; b++) {
      const int output = p.output(block + b);
      columns[b] = p.columns(block + b);
      out[b] = args.out + output;
      bias[b] = args.weight->bias ? load_first(args.weight->bias + output, columns[b]) : zero();
    }
  }

  // sums(r, b) are those of row `row` + r and of the b-th block, as F. The loops' constants lie in locals: the compiler
  // must take a vector's store for a change of anything else.
  template <typename Sums>
  inline void rows(int row, int rows, const Sums& sums) const {
    const int64_t step = stride;
    if (epilogue == SWIGLU) {
#pragma GCC unroll 4
      for (int b = 0; b + 1 < BLOCKS; b += 2) {
        const F gate_bias = bias[b], up_bias = bias[b + 1];
        const int count = columns[b];
        float* to = out[b] + row * step;
        for (int r = 0; r < rows; r++, to += step) {
          const F gate = sums(r, b) + gate_bias, up = sums(r, b + 1) + up_bias;
          store_first(to, gate / (splat(1.0f) + exp(-gate)) * up, count);
        }
      }
      return;
    }
    const bool adds = epilogue == ADD;
#pragma GCC unroll 4
    for (int b = 0; b < BLOCKS; b++) {
      const F block_bias = bias[b];
      const int count = columns[b];
      float* to = out[b] + row * step;
      for (int r = 0; r < rows; r++, to += step) {
        const F y = sums(r, b) + block_bias;
        store_first(to, adds ? load_first(to, count) + y : y, count);
      }
    }
  }

  int epilogue;
  int64_t stride;
  int columns[BLOCKS];
  float* out[BLOCKS];
  F bias[BLOCKS];
};

}  // namespace TG_NS
}  // namespace tg
