// The draw: every token left has a random time of arrival, Exp(1) / weight, and the first one wins (the exponential race
// of kernels/ops/sample.py, whose times these are, bit for bit).
#pragma once
#include "sample_cut.h"

namespace tg {
namespace TG_NS {

// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
inline uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

inline uint64_t race_key(uint64_t seed, int64_t position) {
  return mix(mix(seed) + ((uint64_t)position + 1) * 0x9E3779B97F4A7C15u);
}

// A 32-bit finaliser (Wellons, "Prospecting for hash functions", 2018) over sixteen ids, already multiplied by kSpread,
// and the halves of the key.
constexpr uint32_t kSpread = 0x9E3779B9u;
inline I hashes(I spread_ids, uint64_t key) {
  I h = spread_ids ^ splat((int32_t)key);
  h = (h ^ shift_right(h, 16)) * splat(0x7FEB352D);
  h = (h ^ shift_right(h, 15)) + splat((int32_t)(key >> 32));
  h = h * splat((int32_t)0x846CA68Bu);
  return h ^ shift_right(h, 16);
}

// Exp(1) of a hash: -log(1 - v), v = (h + 1/2) / 2^32. Float32 has few digits left of 1 - v where v is small.
inline float time_of(uint32_t h) {
  const double unit = 1.0 / 4294967296.0;
  if (h < 1u << 24) return (float)-log1p(((double)h + 0.5) * -unit);
  float rest = ((float)h + 0.5f) * (float)-unit + 1.0f;
  return -(float)log((double)rest);
}

class Race {
 public:
  Race(const Weighing& weigh, const Cut& cut, uint64_t key) : weigh_(weigh), cut_(cut), key_(key) {}

  // The winner. `best` is the lowest id of the largest logit, which no cut takes away.
  int32_t run(const Row& row, int32_t best) {
    alignas(64) int32_t ids[16];
    for (int i = 0; i < 16; i++) ids[i] = (int32_t)((uint32_t)i * kSpread);
    const I spread = load(ids);
    store(ids, hashes(splat((int32_t)((uint32_t)best * kSpread)), key_));
    lead(time_of((uint32_t)ids[0]), best);
    // v below is at most its token's time, and read as an integer a float32 is at least 2^23 (log2 of it + 127). So a
    // token can come before the leader only if that is at most log2 of the leader's time times the token's weight.
    const F peak = splat(weigh_.peak);
    const F slope = splat(weigh_.inverse * 1.44269504f * kUnit);
    visit_at_least(row, cut_.logit, [&](int first, F logits, uint32_t lanes) {
      I h = hashes(spread + splat((int32_t)((uint32_t)first * kSpread)), key_);
      F v = to_float(as_int(to_float(shift_right(h, 8))));
      lanes &= at_least(fma(logits - peak, slope, splat(limit_)), v);
      if (lanes) arrive(first, logits, h, lanes);
    });
    return winner_;
  }

 private:
  static constexpr float kUnit = 8388608;  // 2^23

  void lead(float time, int32_t id) {
    time_ = time;
    winner_ = id;
    // 24 because v counts 2^-24; the rest is for rounding.
    limit_ = (127 + 24 + log2f(time) + 1e-3f) * kUnit;
  }

  void arrive(int first, F logits, I hash, uint32_t lanes) {
    alignas(64) float x[16], weights[16];
    alignas(64) int32_t h[16];
    store(x, logits);
    store(weights, weigh_(logits));
    store(h, hash);
    for (; lanes; lanes &= lanes - 1) {
      int lane = __builtin_ctz(lanes);
      int32_t id = first + lane;
      if (x[lane] == cut_.logit && id > cut_.id) continue;
      if (weights[lane] < cut_.weight || !(weights[lane] > 0)) continue;
      float time = time_of((uint32_t)h[lane]) / weights[lane];
      if (time < time_ || (time == time_ && id < winner_)) lead(time, id);
    }
  }

  const Weighing& weigh_;
  const Cut& cut_;
  uint64_t key_;
  float time_ = 0, limit_ = 0;
  int32_t winner_ = 0;
};

}  // namespace TG_NS
}  // namespace tg
