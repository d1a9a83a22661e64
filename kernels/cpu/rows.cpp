// What happens to a row between matrix products: embedding, RMS norm, and rounding to bf16 or int8.
#include "kernels.h"
#include "narrow.h"
#include "simd.h"

namespace tg {
namespace TG_NS {
namespace {

// Calls step(values, i) for each sixteen of a row's values, i from `from` on; beyond its width they are zero.
template <typename Step>
inline void each(const float* x, int width, Step step) {
  int i = 0;
  for (; i + 16 <= width; i += 16) step(load(x + i), i);
  if (i < width) step(load_first(x + i, width - i), i);
}

// The norm's weights, or ones where there is no norm: x is then multiplied by exactly 1.
struct Weights {
  const float* at;  // or null
  int width;

  F operator()(F x, int i) const {
    if (!at) return x;
    return x * (i + 16 <= width ? load(at + i) : load_first(at + i, width - i));
  }
};

// 1 / rms(x) of Zhang and Sennrich 2019, arXiv 1910.07467.
float inverse_rms(float squares, int width, float eps) { return 1.0f / sqrtf(squares / (float)width + eps); }

void to_bf16_row(const float* x, int width, const Weights& weights, float eps, uint16_t* out, int stride) {
  F inverse = splat(1.0f);
  if (weights.at) {
    F squares[2] = {zero(), zero()};
    each(x, width, [&](F v, int i) { squares[i / 16 % 2] = fma(v, v, squares[i / 16 % 2]); });
    inverse = splat(inverse_rms(sum(squares[0] + squares[1]), width, eps));
  }
  each(x, width, [&](F v, int i) { store_halves(out + i, round_bf16(weights(v * inverse, i))); });
  const int done = (width + 15) / 16 * 16;
  memset(out + done, 0, (size_t)(stride - done) * sizeof *out);
}

// Symmetric, to nearest, ties to even: value = round(v * 127 / largest |v|), where v is the row times the weights; the
// rms goes into the scale alone. A row with a NaN or an infinity becomes zeros with a NaN for its scale, so that
// everything made of it is NaN; one whose scale would be a denormal becomes zeros.
void to_int8_row(const float* x, int width, const Weights& weights, float eps, int8_t* out, int stride, float* scale,
                 int32_t* sums) {
  const I magnitude = splat(0x7fffffff);
  F squares[2] = {zero(), zero()};
  I top = splat(0);  // as bits, whose order is that of the numbers, with infinity and NaN above them
  each(x, width, [&](F v, int i) {
    squares[i / 16 % 2] = fma(v, v, squares[i / 16 % 2]);
    top = max(top, as_int(weights(v, i)) & magnitude);
  });
  const float largest = largest_bits(top);
  const float inverse = weights.at ? inverse_rms(sum(squares[0] + squares[1]), width, eps) : 1.0f;
  const bool finite = isfinite(largest);
  *scale = finite ? largest / 127.0f * inverse : NAN;
  memset(sums, 0, (size_t)(stride / 32) * sizeof *sums);
  const bool any = finite && *scale > 0.0f;
  if (!any) {
    memset(out, 0, (size_t)stride);
    return;
  }
  const F up = splat(127.0f / largest);
  int i = 0;
  for (; i + 32 <= width; i += 32) {
    const I low = to_int(weights(load(x + i), i) * up), high = to_int(weights(load(x + i + 16), i + 16) * up);
    store_bytes(out + i, low);
    store_bytes(out + i + 16, high);
    sums[i / 32] = sum(low + high);
  }
  if (i < stride) memset(out + i, 0, (size_t)(stride - i));
  for (; i < width; i += 16) {
    const I value = to_int(weights(load_first(x + i, width - i), i) * up);
    store_bytes(out + i, value);
    sums[i / 32] += sum(value);
  }
}

// 1 in lanes whose number lacks bit N, -1 in the others.
template <int N>
struct Signs {
  alignas(64) float at[16];
  constexpr Signs() : at() {
    for (int i = 0; i < 16; i++) at[i] = i & N ? -1.0f : 1.0f;
  }
};

// Lanes i and i ^ N become their sum and their difference.
template <int N>
inline F butterfly(F x) {
  static constexpr Signs<N> signs;
  return fma(load(signs.at), x, exchange<N>(x));
}

// Sixty-four values times the Hadamard matrix of that order (Sylvester's), by the fast Walsh-Hadamard transform.
inline void rotate(F* v) {
  for (int i = 0; i < 4; i++) v[i] = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(v[i]))));
  const F a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
  v[0] = a + c, v[1] = b + d, v[2] = a - c, v[3] = b - d;
}

// As to_int8_row, of a row rotated in its 64s; its width is a multiple of that. Over 8, as is the weight.
void to_rotated_row(const float* x, int width, const Weights& weights, float eps, int8_t* out, float* scale,
                    int32_t* sums) {
  const I magnitude = splat(0x7fffffff);
  F squares[2] = {zero(), zero()}, v[4];
  I top = splat(0);
  for (int i = 0; i < width; i += 64) {
    for (int j = 0; j < 4; j++) {
      const F value = load(x + i + 16 * j);
      squares[j % 2] = fma(value, value, squares[j % 2]);
      v[j] = weights(value, i + 16 * j);
    }
    rotate(v);
    for (int j = 0; j < 4; j++) top = max(top, as_int(v[j]) & magnitude);
  }
  const float largest = largest_bits(top);
  const float inverse = weights.at ? inverse_rms(sum(squares[0] + squares[1]), width, eps) : 1.0f;
  const bool finite = isfinite(largest);
  *scale = finite ? largest / 127.0f * inverse * 0.125f : NAN;
  if (!(finite && *scale > 0.0f)) {
    memset(out, 0, (size_t)width);
    memset(sums, 0, (size_t)(width / 32) * sizeof *sums);
    return;
  }
  const F up = splat(127.0f / largest);
  for (int i = 0; i < width; i += 64) {
    for (int j = 0; j < 4; j++) v[j] = weights(load(x + i + 16 * j), i + 16 * j);
    rotate(v);
    for (int j = 0; j < 4; j += 2) {
      const I low = to_int(v[j] * up), high = to_int(v[j + 1] * up);
      store_bytes(out + i + 16 * j, low);
      store_bytes(out + i + 16 * j + 16, high);
      sums[(i + 16 * j) / 32] = sum(low + high);
    }
  }
}

void prepare(const float* x, int64_t stride, const float* norm, float eps, const Activations& out, int32_t from,
             int32_t to) {
  const Weights weights = {norm, out.k};
  for (int32_t row = from; row < to; row++) {
    const float* source = x + row * stride;
    const int64_t at = (int64_t)row * out.stride;
    // The caller's buffers are his to fill; `Activations` is what their readers see.
    if (out.format == TG_BF16)
      to_bf16_row(source, out.k, weights, eps, (uint16_t*)out.data + at, out.stride);
    else if (out.rotated)
      to_rotated_row(source, out.k, weights, eps, (int8_t*)out.data + at, (float*)out.scale + row,
                     (int32_t*)out.sums + at / 32);
    else
      to_int8_row(source, out.k, weights, eps, (int8_t*)out.data + at, out.stride, (float*)out.scale + row,
                  (int32_t*)out.sums + at / 32);
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
