// Top-k, top-p and min-p: which tokens of a row are left.
#pragma once
#include <algorithm>

#include "sample_weights.h"

namespace tg {
namespace TG_NS {

// A token stands in order by falling logit, and among equals by rising id.
struct Candidate {
  float logit;
  float weight;
  int32_t id;
  bool operator<(const Candidate& other) const {
    return logit > other.logit || (logit == other.logit && id < other.id);
  }
};

// What is left: the tokens in order down to that of `logit` and `id`, as far as they have at least `weight`.
struct Cut {
  float logit = -INFINITY;
  int32_t id = INT32_MAX;
  float weight = 0;
};

// Memory of one rank.
struct Scratch {
  float* edited;         // [vocab]
  float* maxima;         // [chunks * 16], of the row
  float* edited_maxima;  // and of it as edited
  // Tokens in any order, [vocab + 16] each.
  float* logits;
  float* weights;
  int32_t* ids;
  Candidate* order;  // [vocab]
};

// The tokens at or above `low` and below `high`, by rising id, with their weights; how many.
inline int gather(const Row& row, const Weighing& weigh, float low, float high, const Scratch& to) {
  static const int32_t kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const F above = splat(high);
  const I places = load(kLanes);
  int count = 0;
  visit_at_least(row, low, [&](int first, F logits, uint32_t lanes) {
    lanes &= ~at_least(logits, above);
    pack(to.logits + count, logits, lanes);
    pack(to.ids + count, places + splat(first), lanes);
    count += __builtin_popcount(lanes);
  });
  for (int i = 0; i < count; i += 16) store(to.weights + i, weigh(load(to.logits + i)));
  return count;
}

// The k largest at the beginning of `order`, in no order themselves but for the last one of them. 0 < k <= count.
inline void select_largest(const Row& row, int k, const Scratch& to) {
  int count = 0;
  visit_at_least(row, level_of_largest(row, k), [&](int first, F logits, uint32_t lanes) {
    alignas(64) float values[16];
    store(values, logits);
    for (; lanes; lanes &= lanes - 1) {
      int lane = __builtin_ctz(lanes);
      to.order[count++] = {values[lane], 0, first + lane};
    }
  });
  std::nth_element(to.order, to.order + k - 1, to.order + count);
}

// Where tokens in order reach a weight of `target`, those before them having `base`. All `count` > 0 of them lie from
// `low` to `top`, and together suffice, but for rounding.
inline void cut_mass(const Scratch& tokens, int count, float low, float top, double base, double target, Cut* cut) {
  const int padded = (count + 15) / 16 * 16;
  for (int i = count; i < padded; i++) tokens.logits[i] = -INFINITY, tokens.weights[i] = 0;
  // Narrow a bracket of levels: the tokens at or above `high` do not suffice, those at or above `low` do.
  float high = INFINITY;
  int held = 0, reach = count;
  double mass = base;
  for (float above = top; reach - held > 64;) {
    float middle = low / 2 + above / 2;
    if (!(low < middle && middle < above)) break;
    const F least = splat(middle);
    Total total;
    int found = 0;
    for (int i = 0; i < padded; i += 16) {
      F logits = load(tokens.logits + i);
      total.add(zero_where_less(logits, least, load(tokens.weights + i)));
      found += __builtin_popcount(at_least(logits, least));
    }
    double tried = base + total.value();
    if (tried < target && found < reach) {  // rounding must not leave nothing in between
      high = above = middle;
      held = found;
      mass = tried;
    } else {
      low = middle;
      reach = found;
    }
  }
  const F from = splat(low), to = splat(high);
  Candidate* end = tokens.order;
  for (int i = 0; i < count; i += 16) {
    F logits = load(tokens.logits + i);
    uint32_t lanes = at_least(logits, from) & ~at_least(logits, to) & first_lanes(count - i);
    for (; lanes; lanes &= lanes - 1) {
      int j = i + __builtin_ctz(lanes);
      *end++ = {tokens.logits[j], tokens.weights[j], tokens.ids[j]};
    }
  }
  std::sort(tokens.order, end);
  Candidate* last = tokens.order;
  for (mass += (double)last->weight; mass < target && last + 1 < end; mass += (double)last->weight) last++;
  cut->logit = last->logit;
  cut->id = last->id;
}

// Top-p over the whole row.
inline void cut_row_mass(const Row& row, const Weighing& weigh, double top_p, const Scratch& scratch, Cut* cut) {
  constexpr int kLevels = 4;
  static const float kWeights[kLevels] = {1e-1f, 1e-2f, 1e-3f, 1e-5f};
  float levels[kLevels];
  F least[kLevels];
  for (int j = 0; j < kLevels; j++) levels[j] = weigh.level(kWeights[j]), least[j] = splat(levels[j]);
  Total whole, above[kLevels];
  for (int from = 0; from < row.count; from += kChunk) {
    F all = zero(), part[kLevels] = {zero(), zero(), zero(), zero()};
    for (int i = from, end = chunk_end(from, row.count); i < end; i += 16) {
      F logits = load_or_least(row.logits + i, row.count - i);
      F weights = weigh(logits);
      all = all + weights;
      for (int j = 0; j < kLevels; j++) part[j] = part[j] + zero_where_less(logits, least[j], weights);
    }
    whole.add(all);
    for (int j = 0; j < kLevels; j++) above[j].add(part[j]);
  }
  const double target = top_p * whole.value();
  double base = 0;
  float high = INFINITY;
  for (int j = 0; j < kLevels; j++) {
    double mass = above[j].value();
    if (mass >= target) {
      int count = gather(row, weigh, levels[j], high, scratch);
      cut_mass(scratch, count, levels[j], high < row.peak ? high : row.peak, base, target, cut);
      return;
    }
    base = mass;
    high = levels[j];
  }
  const float low = weigh.below(kNoWeight);
  if (int rest = gather(row, weigh, low, high, scratch)) cut_mass(scratch, rest, low, high, base, target, cut);
}

inline Cut cut_of(const Row& row, const Weighing& weigh, const TgSampling& want, const Scratch& scratch) {
  Cut cut;
  const bool nucleus = want.top_p < 1;
  if (0 < want.top_k && want.top_k < row.count) {
    const int k = want.top_k;
    select_largest(row, k, scratch);
    cut.logit = scratch.order[k - 1].logit;
    cut.id = scratch.order[k - 1].id;
    if (nucleus) {
      for (int i = 0; i < k; i++) scratch.logits[i] = scratch.order[i].logit, scratch.ids[i] = scratch.order[i].id;
      for (int i = k; i % 16; i++) scratch.logits[i] = -INFINITY;
      Total total;
      for (int i = 0; i < k; i += 16) {
        F weights = weigh(load(scratch.logits + i));
        store(scratch.weights + i, weights);
        total.add(weights);
      }
      cut_mass(scratch, k, cut.logit, row.peak, 0, (double)want.top_p * total.value(), &cut);
    }
  } else if (nucleus) {
    cut_row_mass(row, weigh, want.top_p, scratch, &cut);
  }
  if (want.min_p > 0) {
    cut.weight = want.min_p;
    float level = weigh.below(want.min_p);
    if (level > cut.logit) cut.logit = level, cut.id = INT32_MAX;
  }
  return cut;
}

}  // namespace TG_NS
}  // namespace tg
