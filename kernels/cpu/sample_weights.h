// Weights of tokens: e^((logit - peak) / temperature), 1 for the largest logit.
#pragma once
#include "sample_row.h"

namespace tg {
namespace TG_NS {

struct Weighing {
  float peak, temperature, inverse;

  // The exponent, its quotient rounded as a division would round it but for rare last bits.
  F exponent(F logits) const {
    const F inverse = splat(this->inverse);
    F away = max(logits - splat(peak), splat(-1e30f));  // no infinity, which would turn into a NaN below
    F quotient = away * inverse;
    return fma(fma(quotient, splat(-temperature), away), inverse, quotient);
  }
  F operator()(F logits) const { return exp(exponent(logits)); }
  // The logit at which a weight is about `weight`.
  float level(float weight) const { return peak + temperature * logf(weight); }
  // A logit that nothing of at least this weight lies below, rounding included.
  float below(float weight) const { return level(weight) - 1e-4f * temperature - 1e-4f * fabsf(peak); }
};

// A weight that no token has but 0.
constexpr float kNoWeight = 1e-38f;

inline Weighing weighing(float peak, float temperature) { return {peak, temperature, 1 / temperature}; }

// Adds up many float32 vectors with the error of a few: in turn by 16, by 16 of those, and these in float64.
class Total {
 public:
  void add(F chunk) {
    part_ = part_ + chunk;
    if (++added_ % 16 == 0) flush();
  }
  double value() {
    flush();
    return total_;
  }

 private:
  void flush() {
    total_ += (double)sum(part_);
    part_ = zero();
  }
  F part_ = zero();
  int added_ = 0;
  double total_ = 0;
};

}  // namespace TG_NS
}  // namespace tg
