// Runs the sampler at one level on plain arrays.
#include "kernels.h"
#include "probe.h"

namespace tg {
static const SampleKernels* at_level(int32_t level) {
  switch (level) {
    case TG_SCALAR: return &scalar::sample_kernels;
#ifdef TG_HAVE_AVX2
    case TG_AVX2: return &avx2::sample_kernels;
#endif
#ifdef TG_HAVE_AVX512
    case TG_AVX512: return &avx512::sample_kernels;
#endif
    default: return nullptr;
  }
}
}  // namespace tg

TG_PROBE int64_t tg_probe_sample_scratch(int32_t vocab, int32_t ranks) { return tg::sample_scratch_bytes(vocab, ranks); }

// 0, or -1 where the level was not built. `scratch` is of tg_probe_sample_scratch(...) bytes at a multiple of 64.
TG_PROBE int32_t tg_probe_sample(int32_t level, int32_t ranks, int32_t threads, const float* logits, int64_t stride,
                                 int32_t rows, int32_t vocab, const TgSampling* sampling, TgChosen* chosen,
                                 void* scratch) {
  const tg::SampleKernels* kernels = tg::at_level(level);
  if (!kernels) return -1;
  const tg::SampleArgs args = {logits, stride, rows, vocab, sampling, chosen, scratch};
  tg::run_ranks(ranks, threads, [&](int rank, int of) { kernels->sample(args, rank, of); });
  return 0;
}
