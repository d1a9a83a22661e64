// The end of a linear kernel: a bias, and what the caller wants done with the result.
#pragma once
#include "kernels.h"
#include "packing.h"
#include "simd.h"

namespace tg {
namespace TG_NS {

// For rows [row, row + rows) and the columns of blocks [block, block + blocks); sums(r, b) are those of row `row` + r and
// block `block` + b, as F. Blocks of a paired weight come in pairs.
template <typename Sums>
inline void finish(const LinearArgs& args, const Packing& p, int row, int rows, int block, int blocks, Sums sums) {
  auto bias = [&](int b) {
    return args.weight->bias ? load_first(args.weight->bias + p.output(block + b), p.columns(block + b)) : zero();
  };
  auto output = [&](int r, int b) { return args.out + (row + r) * args.stride + p.output(block + b); };
  if (args.epilogue == SWIGLU) {
    for (int b = 0; b < blocks; b += 2) {
      const F gate_bias = bias(b), up_bias = bias(b + 1);
      for (int r = 0; r < rows; r++) {
        F gate = sums(r, b) + gate_bias, up = sums(r, b + 1) + up_bias;
        store_first(output(r, b), gate / (splat(1.0f) + exp(-gate)) * up, p.columns(block + b));
      }
    }
    return;
  }
  for (int b = 0; b < blocks; b++) {
    const F block_bias = bias(b);
    const int columns = p.columns(block + b);
    for (int r = 0; r < rows; r++) {
      F y = sums(r, b) + block_bias;
      if (args.epilogue == ADD) y = load_first(output(r, b), columns) + y;
      store_first(output(r, b), y, columns);
    }
  }
}

}  // namespace TG_NS
}  // namespace tg
