// What happens to a row between matrix products: embedding, RMS norm, and rounding to bf16 or int8.
#include "kernels.h"
#include "narrow.h"
#include "simd.h"

namespace tg {
namespace TG_NS {
namespace {

// A row as it is asked for: `x`, or its RMS norm (Zhang and Sennrich 2019, arXiv 1910.07467) x / rms(x) * weight.
struct Source {
  const float* x;
  const float* weight;  // or null: x itself
  int width;
  float inverse_rms;

  F at(int i) const { return normed(load(x + i), weight ? load(weight + i) : zero()); }
  F tail(int i) const {
    return normed(load_first(x + i, width - i), weight ? load_first(weight + i, width - i) : zero());
  }

 private:
  F normed(F value, F scale) const { return weight ? value * splat(inverse_rms) * scale : value; }
};

// Calls step(values, i) for each sixteen inputs; beyond the width they are zero.
template <typename Step>
inline void each(const Source& source, Step step) {
  int i = 0;
  for (; i + 16 <= source.width; i += 16) step(source.at(i), i);
  if (i < source.width) step(source.tail(i), i);
}

float inverse_rms(const float* x, int width, float eps) {
  F sums[4] = {zero(), zero(), zero(), zero()};
  each({x, nullptr, width, 0}, [&](F v, int i) { sums[i / 16 % 4] = fma(v, v, sums[i / 16 % 4]); });
  const float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  return 1.0f / sqrtf(total / (float)width + eps);
}

void to_bf16_row(const Source& source, uint16_t* out, int stride) {
  int done = 0;
  each(source, [&](F v, int i) {
    store_halves(out + i, round_bf16(v));
    done = i + 16;
  });
  memset(out + done, 0, (size_t)(stride - done) * sizeof *out);
}

// Symmetric, to nearest, ties to even: value = round(x * 127 / largest). A row with a NaN or an infinity becomes zeros
// with a NaN for its scale, so that everything made of it is NaN; one whose scale would be a denormal becomes zeros.
void to_int8_row(const Source& source, int8_t* out, int stride, float* scale, int32_t* sums) {
  F top = zero(), check = zero();
  each(source, [&](F v, int) {
    top = max(top, abs(v));
    check = fma(v, zero(), check);
  });
  const bool finite = sum(check) == 0.0f;
  const float amax = finite ? largest(top) : 0.0f;
  *scale = finite ? amax / 127.0f : NAN;
  const F up = splat(finite && *scale > 0.0f ? 127.0f / amax : 0.0f);
  int done = 0;
  memset(sums, 0, (size_t)(stride / 32) * sizeof *sums);
  each(source, [&](F v, int i) {
    // Not v * up where that is NaN times zero.
    const I value = finite ? to_int(v * up) : splat(0);
    store_bytes(out + i, value);
    sums[i / 32] += sum(value);
    done = i + 16;
  });
  memset(out + done, 0, (size_t)(stride - done));
}

void prepare(const float* x, int64_t stride, const float* norm, float eps, const Activations& out, int32_t from,
             int32_t to) {
  for (int32_t row = from; row < to; row++) {
    Source source{x + row * stride, norm, out.k, 0.0f};
    if (norm) source.inverse_rms = inverse_rms(source.x, out.k, eps);
    const int64_t at = (int64_t)row * out.stride;
    if (out.format == TG_BF16) {
      to_bf16_row(source, (uint16_t*)out.data + at, out.stride);
    } else {
      // The caller's buffers are his to fill; `Activations` is what their readers see.
      to_int8_row(source, (int8_t*)out.data + at, out.stride, (float*)out.scale + row,
                  (int32_t*)out.sums + at / 32);
    }
  }
}

void embed(const TgModel& model, const int32_t* ids, int32_t tokens, float* x, int rank, int ranks) {
  const int hidden = model.hidden;
  const int32_t from = (int32_t)((int64_t)tokens * rank / ranks), to = (int32_t)((int64_t)tokens * (rank + 1) / ranks);
  for (int32_t row = from; row < to; row++) {
    const uint16_t* source = model.embedding + (int64_t)ids[row] * hidden;
    float* out = x + (int64_t)row * hidden;
    for (int i = 0; i < hidden; i++) out[i] = from_bf16(source[i]);
  }
}

}  // namespace

extern const RowKernels row_kernels = {embed, prepare};

}  // namespace TG_NS
}  // namespace tg
