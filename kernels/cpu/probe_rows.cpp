// Runs embedding and row preparation at one level on plain arrays, for tests and benchmarks.
#include "kernels.h"
#include "probe.h"

namespace {

const tg::RowKernels* table(int32_t level) {
  switch (level) {
#ifdef TG_HAVE_AVX512
    case TG_AVX512:
      return &tg::avx512::row_kernels;
#endif
#ifdef TG_HAVE_AVX2
    case TG_AVX2:
      return &tg::avx2::row_kernels;
#endif
    case TG_SCALAR:
      return &tg::scalar::row_kernels;
    default:
      return nullptr;
  }
}

}  // namespace

// -1 where the level was not built. See RowKernels::prepare; `data`, `scale` and `sums` have `padded` values a row.
TG_PROBE int32_t tg_probe_prepare(int32_t level, int32_t format, int32_t rotated, int32_t rows, int32_t width, int32_t padded,
                                  const float* x, int64_t stride, const float* norm, float eps, void* data, float* scale,
                                  int32_t* sums, int32_t ranks) {
  const tg::RowKernels* kernels = table(level);
  if (!kernels) return -1;
  const tg::Activations out = {format, rows, width, padded, data, scale, sums, rotated};
  tg::run_ranks(ranks, false, [&](int rank, int of) {
    kernels->prepare(x, stride, norm, eps, out, rows * rank / of, rows * (rank + 1) / of);
  });
  return 0;
}

// -1 where the level was not built. See RowKernels::embed; `embedding` is bf16 [vocab, hidden], x float32 [tokens, hidden].
TG_PROBE int32_t tg_probe_embed(int32_t level, const uint16_t* embedding, int32_t vocab, int32_t hidden,
                                const int32_t* ids, int32_t tokens, float* x, int32_t ranks) {
  const tg::RowKernels* kernels = table(level);
  if (!kernels) return -1;
  TgModel model = {};
  model.vocab = vocab;
  model.hidden = hidden;
  model.embedding = embedding;
  tg::run_ranks(ranks, false, [&](int rank, int of) { kernels->embed(model, ids, tokens, x, rank, of); });
  return 0;
}
