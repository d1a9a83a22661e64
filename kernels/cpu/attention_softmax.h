// Softmax of a row over one span, and the merging of spans.
#pragma once
#include "attention_scratch.h"
#include "simd.h"

namespace tg {
namespace TG_NS {

// 2^x for x up to 127, to a relative 8e-5; 2^-100 below that; NaN for NaN. x = n + f, |f| <= 1/2, and a polynomial of degree
// 3 in f of least relative error. Its results become bf16, which is 25 times coarser.
inline F exp2_for_bf16(F x) {
  const F to_integer = splat(12582912.0f);  // 1.5 * 2^23: in its neighbourhood float32 has integers only
  x = max(splat(-100.0f), x);
  const F shifted = x + to_integer, f = x - (shifted - to_integer);
  F p = fma(splat(0.0551716573536396f), f, splat(0.2426111251115799f));
  p = fma(p, f, splat(0.6932609677314758f));
  p = fma(p, f, splat(0.9999280571937561f));
  return as_float(as_int(p) + shift_left(as_int(shifted), 23));
}

// Sixteen or thirty-two weights, rounded to bf16.
inline void store_weights(float* p, F x) { store(p, as_float(shift_left(round_bf16(x), 16))); }
inline void store_weights(float* p, F x, F next) {
  store_weights(p, x);
  store_weights(p + 16, next);
}
#if TG_LEVEL >= 2
inline void store_weights(uint16_t* p, F x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x.v)); }
inline void store_weights(uint16_t* p, F x, F next) {
  _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(next.v, x.v));
}
#endif

// Softmax of one row over one span. A key of [from, to), which is not empty, weighs 2^(score * factor - peak); other keys
// of the sixteens that these lie in weigh 0.
template <typename Pages>
class RowSoftmax {
 public:
  // `scores` [TG_SPAN] are overwritten where the cache has scales.
  RowSoftmax(const Pages& pages, float* scores, int from, int to, float factor)
      : pages_(pages), scores_(scores), from_(from), to_(to), factor_(factor) {}

  float find_peak() const {
    const F none = splat(-INFINITY);
    F top[4] = {none, none, none, none};
    int v = from_ / 16;
    for (; v < first_whole(); v++) top[0] = max(seen(v, score(v), none), top[0]);
    for (; v + 4 <= end_whole(); v += 4)
      for (int i = 0; i < 4; i++) top[i] = max(score(v + i), top[i]);
    for (; v < end_whole(); v++) top[1] = max(score(v), top[1]);
    for (; 16 * v < to_; v++) top[2] = max(seen(v, score(v), none), top[2]);
    return largest(max(max(top[0], top[1]), max(top[2], top[3]))) * factor_;
  }

  // Writes `weights` [TG_SPAN], bf16 as bf16 or float32, in those sixteens, once the peak was found. Returns their total
  // before they are rounded.
  template <typename Weight>
  float weigh(float peak, Weight* weights) const {
    const F scale = splat(factor_), shift = splat(-peak);
    auto weight = [&](int v) { return exp2_for_bf16(fma(load(scores_ + 16 * v), scale, shift)); };
    auto edge = [&](int v) {
      const F x = weight(v);
      store_weights(weights + 16 * v, seen(v, scaled(v, x), zero()));
      return seen(v, x, zero());
    };
    int v = from_ / 16;
    F total = zero();
    for (; v < first_whole(); v++) total = total + edge(v);
    for (; v + 2 <= end_whole(); v += 2) {
      const F x = weight(v), next = weight(v + 1);
      total = total + x + next;
      store_weights(weights + 16 * v, scaled(v, x), scaled(v + 1, next));
    }
    for (; v < end_whole(); v++) {
      const F x = weight(v);
      total = total + x;
      store_weights(weights + 16 * v, scaled(v, x));
    }
    for (; 16 * v < to_; v++) total = total + edge(v);
    return sum(total);
  }

 private:
  // Sixteens of which every key is seen.
  int first_whole() const { return (from_ + 15) / 16 < end_whole() ? (from_ + 15) / 16 : end_whole(); }
  int end_whole() const { return to_ / 16 > from_ / 16 ? to_ / 16 : from_ / 16; }

  F seen(int v, F x, F other) const {
    const int first = from_ - 16 * v, end = to_ - 16 * v;
    return between(first > 0 ? first : 0, end < 16 ? end : 16, x, other);
  }

  F score(int v) const {
    const F x = load(scores_ + 16 * v);
    if (!Pages::kScaled) return x;
    const F scaled = x * pages_.key_scales(v);
    store(scores_ + 16 * v, scaled);
    return scaled;
  }
  F scaled(int v, F x) const { return Pages::kScaled ? x * pages_.value_scales(v) : x; }

  const Pages& pages_;
  float* const scores_;
  const int from_, to_;
  const float factor_;
};

// Adds the keys that `sum` [dim] stands for to what row `row` of `into` has seen so far.
inline void merge(const Partial& into, int row, int dim, Peak peak, const float* sum) {
  float* out = into.sum + (int64_t)row * dim;
  if (into.total[row] == 0.0f) {
    into.peak[row] = peak.peak;
    into.total[row] = peak.total;
    memcpy(out, sum, 4 * (size_t)dim);
    return;
  }
  // One of the two keeps its weights: 2^0 is exactly 1.
  const float lead = into.peak[row] - peak.peak;
  const F less = exp(splat(-fabsf(lead) * 0.69314718056f));
  const F old = lead >= 0.0f ? splat(1.0f) : less, fresh = lead <= 0.0f ? splat(1.0f) : less;
  for (int d = 0; d < dim; d += 16) store(out + d, fma(load(sum + d), fresh, load(out + d) * old));
  alignas(64) float lanes[16];
  store(lanes, fma(splat(peak.total), fresh, splat(into.total[row]) * old));
  into.total[row] = lanes[0];
  if (!(lead >= 0.0f)) into.peak[row] = peak.peak;
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
