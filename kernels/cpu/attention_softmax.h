// Softmax of a row over one span, and the merging of spans.
#pragma once
#include "attention_scratch.h"
#include "simd.h"

namespace tg {
namespace TG_NS {

// 2^x for x up to 127, to a relative 3e-6; 2^-100 below that; NaN for NaN. x = n + f, |f| <= 1/2, and a polynomial of degree
// 4 in f of least relative error. Its results become bf16, which is a thousand times coarser.
inline F exp2_for_bf16(F x) {
  const F to_integer = splat(12582912.0f);  // 1.5 * 2^23: in its neighbourhood float32 has integers only
  x = max(splat(-100.0f), x);
  const F shifted = x + to_integer, f = x - (shifted - to_integer);
  F p = fma(splat(0.009570100344717503f), f, splat(0.05591785907745361f));
  p = fma(p, f, splat(0.240247443318367f));
  p = fma(p, f, splat(0.6931217908859253f));
  p = fma(p, f, splat(0.9999992847442627f));
  return as_float(as_int(p) + shift_left(as_int(shifted), 23));
}

// Sixteen weights, rounded to bf16.
inline void store_weights(float* p, F x) { store(p, as_float(shift_left(round_bf16(x), 16))); }
#if TG_LEVEL >= 2
inline void store_weights(uint16_t* p, F x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x.v)); }
#endif

struct Peak {
  float peak, total;
};

// Turns `scores` [TG_SPAN] of a row into `weights` [TG_SPAN] 2^(score * factor - peak), bf16 as bf16 or float32, in the
// sixteens that hold keys [from, to), which is not empty; in these a key outside weighs 0. `total` sums the weights before
// they are rounded. int8 scales of keys and values, where the cache has them, are applied.
template <typename Cache, typename Weight>
inline Peak soften(float* scores, Weight* weights, int from, int to, const Cache& cache, float factor) {
  const F none = splat(-INFINITY);
  F top = none;
  for (int at = from & ~15; at < to; at += 16) {
    F x = load(scores + at);
    if (Cache::kScaled) {
      x = x * cache.key_scales(at / 16);
      store(scores + at, x);
    }
    if (at < from || at + 16 > to) x = between(from > at ? from - at : 0, to < at + 16 ? to - at : 16, x, none);
    top = max(x, top);
  }
  const float peak = largest(top) * factor;
  const F scale = splat(factor), shift = splat(-peak);
  F total = zero();
  for (int at = from & ~15; at < to; at += 16) {
    F x = exp2_for_bf16(fma(load(scores + at), scale, shift));
    F weighed = Cache::kScaled ? x * cache.value_scales(at / 16) : x;
    if (at < from || at + 16 > to) {
      const int first = from > at ? from - at : 0, end = to < at + 16 ? to - at : 16;
      x = between(first, end, x, zero());
      weighed = between(first, end, weighed, zero());
    }
    total = total + x;
    store_weights(weights + at, weighed);
  }
  return {peak, sum(total)};
}

// Adds the keys that `sum` [dim] stands for to what row `row` of `into` has seen so far.
inline void merge(const Partial& into, int row, int dim, Peak peak, const float* sum) {
  float* out = into.sum + (int64_t)row * dim;
  if (into.total[row] == 0.0f) {
    into.peak[row] = peak.peak;
    into.total[row] = peak.total;
    memcpy(out, sum, 4 * (size_t)dim);
    return;
  }
  const float ln2 = 0.69314718056f, top = into.peak[row] > peak.peak ? into.peak[row] : peak.peak;
  const F old = exp(splat((into.peak[row] - top) * ln2)), fresh = exp(splat((peak.peak - top) * ln2));
  for (int d = 0; d < dim; d += 16) store(out + d, fma(load(sum + d), fresh, load(out + d) * old));
  alignas(64) float lanes[16];
  store(lanes, fma(splat(peak.total), fresh, splat(into.total[row]) * old));
  into.total[row] = lanes[0];
  into.peak[row] = top;
}

// The output of row `row`. A zero is always +0, whatever signs underflow left.
inline void finish(const Partial& of, int row, int dim, int head_dim, float* out) {
  const F inverse = splat(1.0f / of.total[row]);
  const float* sum = of.sum + (int64_t)row * dim;
  int d = 0;
  for (; d + 16 <= head_dim; d += 16) store(out + d, fma(load(sum + d), inverse, zero()));
  if (d < head_dim) store_first(out + d, fma(load(sum + d), inverse, zero()), head_dim - d);
}

}  // namespace TG_NS
}  // namespace tg
