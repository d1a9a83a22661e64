// A row of logits, looked at once from end to end, so that later looks may skip what is far below its top.
#pragma once
#include <float.h>
#include <math.h>

#include "simd.h"

namespace tg {
namespace TG_NS {

constexpr int kChunk = 256;

struct Row {
  const float* logits;
  int count;
  float* maxima;  // [chunks * 16]: of each chunk's sixteen vectors, the largest in each lane
  float peak;
  bool usable;  // its largest is a finite number, and none is a NaN
};

inline int chunks_of(int count) { return (count + kChunk - 1) / kChunk; }

// Where a chunk ends.
inline int chunk_end(int from, int count) { return from + kChunk < count ? from + kChunk : count; }

// Bits of the lanes that hold one of `left` more values.
inline uint32_t first_lanes(int left) { return left < 16 ? (1u << left) - 1 : 0xffffu; }

// Sixteen values, or as many as are left and -inf in the other lanes.
inline F load_or_least(const float* p, int left) {
  if (left >= 16) return load(p);
  alignas(64) float v[16];
  store(v, splat(-INFINITY));
  memcpy(v, p, sizeof(float) * (size_t)left);
  return load(v);
}

// Fills `maxima`.
inline Row scan(const float* logits, int count, float* maxima) {
  const F limit = splat(FLT_MAX);
  F top = splat(-INFINITY);
  uint32_t bad = 0;
  for (int from = 0; from < count; from += kChunk) {
    const float* p = logits + from;
    F best[4] = {splat(-INFINITY), splat(-INFINITY), splat(-INFINITY), splat(-INFINITY)};
    if (count - from >= kChunk) {
      for (int i = 0; i < kChunk; i += 64) {
        for (int j = 0; j < 4; j++) {
          F x = load(p + i + 16 * j);
          bad |= not_at_most(x, limit);
          best[j] = max(x, best[j]);
        }
      }
    } else {
      for (int i = 0; i < count - from; i += 16) {
        F x = load_or_least(p + i, count - from - i);
        bad |= not_at_most(x, limit);
        best[0] = max(x, best[0]);
      }
    }
    F chunk = max(max(best[0], best[1]), max(best[2], best[3]));
    store(maxima + from / kChunk * 16, chunk);
    top = max(chunk, top);
  }
  float peak = largest(top);
  return {logits, count, maxima, peak, !bad && peak >= -FLT_MAX};
}

// Calls visit(first id, values, bits of the lanes at or above `level`) for each vector that has such a lane, in order.
template <typename Visit>
inline void visit_at_least(const Row& row, float level, Visit visit) {
  const F least = splat(level);
  for (int from = 0; from < row.count; from += kChunk) {
    if (!at_least(load(row.maxima + from / kChunk * 16), least)) continue;
    for (int i = from, end = chunk_end(from, row.count); i < end; i += 16) {
      F x = load_or_least(row.logits + i, row.count - i);
      uint32_t lanes = at_least(x, least) & first_lanes(row.count - i);
      if (lanes) visit(i, x, lanes);
    }
  }
}

// The lowest id of those with the largest logit.
inline int32_t best_of(const Row& row) {
  const F least = splat(row.peak);
  int from = 0;
  while (!at_least(load(row.maxima + from / kChunk * 16), least)) from += kChunk;
  for (int i = from;; i += 16) {
    uint32_t lanes = at_least(load_or_least(row.logits + i, row.count - i), least);
    if (lanes) return i + __builtin_ctz(lanes);
  }
}

inline int count_at_least(const float* values, int count, float level) {
  const F least = splat(level);
  int found = 0;
  for (int i = 0; i < count; i += 16) {
    uint32_t lanes = at_least(load_or_least(values + i, count - i), least) & first_lanes(count - i);
    found += __builtin_popcount(lanes);
  }
  return found;
}

// A level with at least k logits at or above it, and where few are equal not many more. 0 < k <= count.
inline float level_of_largest(const Row& row, int k) {
  // Each maximum stands for a logit of its own, so the k-th largest maximum is such a level.
  const int maxima = chunks_of(row.count) * 16;
  const bool few = k <= maxima / 4;
  const float* values = few ? row.maxima : row.logits;
  const int count = few ? maxima : row.count;
  float high = row.peak, low = row.peak, step = 1;
  int held;
  for (;; high = low, step *= 2) {
    low = row.peak - step;
    held = count_at_least(values, count, low);
    if (held >= k) break;
  }
  while (held > 2 * k + 64) {
    float middle = low / 2 + high / 2;
    if (!(low < middle && middle < high)) break;
    int found = count_at_least(values, count, middle);
    if (found >= k) {
      low = middle;
      held = found;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace TG_NS
}  // namespace tg
