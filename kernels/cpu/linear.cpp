// Products of rows with packed weights: y = x W^T + bias, and what follows it.
//
// Few rows go by vectors, which read the weights as fast as memory gives them; more go by tiles where there are any.
#include "kernels.h"
#include "linear_finish.h"
#include "linear_tiles.h"
#include "linear_vector.h"
#include "packing.h"

namespace tg {
namespace TG_NS {
namespace {

template <typename Format>
void by_vectors(const LinearArgs& args, const Packing& p, int from, int to) {
#if TG_LEVEL >= 2
  if (args.x.m > 4) return multiply_vectors<Format, 8, 2>(args, p, from, to);
  if (args.x.m > 2) return multiply_vectors<Format, 4, 2>(args, p, from, to);
  return multiply_vectors<Format, 2, 4>(args, p, from, to);
#else
  return multiply_vectors<Format, 1, 2>(args, p, from, to);
#endif
}

void linear(const LinearArgs& args, int rank, int ranks) {
  const TgLinear& w = *args.weight;
  const Packing p(w.format, w.group, w.n, w.k, w.paired);
  const int unit = w.paired ? 2 : 1;
  const int64_t units = p.blocks / unit;
  const int from = unit * (int)(units * rank / ranks), to = unit * (int)(units * (rank + 1) / ranks);
#if TG_LEVEL >= 3
  if (tiles_pay(w.format, args.x.m)) return multiply_tiles(args, p, from, to);
#endif
  if (w.format == TG_BF16) return by_vectors<Bf16>(args, p, from, to);
  if (w.format == TG_INT8) return by_vectors<Int8>(args, p, from, to);
  return by_vectors<Int4>(args, p, from, to);
}

}  // namespace

const LinearKernels linear_kernels = {linear};

}  // namespace TG_NS
}  // namespace tg
