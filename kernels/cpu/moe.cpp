// The choice of experts for each row, and the sum of what they made of it.
#include "kernels.h"
#include "simd.h"

namespace tg {
namespace TG_NS {
namespace {

int chosen_by(const MoeArgs& args, int row) {
  const int all = args.layer->active, wanted = args.experts ? args.experts[row] : all;
  return wanted < 1 ? 1 : wanted < all ? wanted : all;
}

// The `count` largest logits, largest first, of equals the lower expert first: by insertion.
void largest_of(const float* logits, int experts, int count, float* values, int32_t* ids) {
  for (int expert = 0; expert < experts; expert++) {
    const float logit = logits[expert];
    if (expert >= count && !(logit > values[count - 1])) continue;
    int at = expert < count ? expert : count - 1;
    for (; at > 0 && logit > values[at - 1]; at--) values[at] = values[at - 1], ids[at] = ids[at - 1];
    values[at] = logit, ids[at] = expert;
  }
}

F exp_from(const float* logits, int count, F largest) {
  return between(0, count < 16 ? count : 16, exp(load_first(logits, count < 16 ? count : 16) - largest), zero());
}

// Makes the chosen logits into their shares of the softmax over all experts, or over the chosen ones.
void weigh(const float* logits, int experts, bool renormalise, float* values, int count) {
  const F largest = splat(values[0]);
  F total = zero();
  for (int i = 0; i < experts; i += 16) total = total + exp_from(logits + i, experts - i, largest);
  const F whole = splat(sum(total));
  for (int i = 0; i < count; i += 16) {
    const int some = count - i < 16 ? count - i : 16;
    store_first(values + i, exp_from(values + i, some, largest) / whole, some);
  }
  if (!renormalise) return;
  float chosen = 0.0f;
  for (int i = 0; i < count; i++) chosen += values[i];
  for (int i = 0; i < count; i++) values[i] /= chosen;
}

void route(const MoeArgs& args) {
  const int experts = args.layer->experts, active = args.layer->active;
  int32_t* starts = args.expert_starts;
  for (int expert = 0; expert <= experts; expert++) starts[expert] = 0;
  for (int row = 0; row < args.tokens; row++) {
    const float* logits = args.router_logits + (int64_t)row * experts;
    float* weights = args.row_weights + (int64_t)row * active;
    int32_t* ids = args.row_slots + (int64_t)row * active;
    const int count = chosen_by(args, row);
    largest_of(logits, experts, count, weights, ids);
    weigh(logits, experts, args.layer->renormalise, weights, count);
    for (int i = 0; i < count; i++) starts[ids[i] + 1]++;
    for (int i = count; i < active; i++) ids[i] = -1, weights[i] = 0.0f;
  }
  for (int expert = 0; expert < experts; expert++) starts[expert + 1] += starts[expert];
  // From experts to slots; each start runs up to the next one and is put back after.
  for (int row = 0; row < args.tokens; row++) {
    int32_t* ids = args.row_slots + (int64_t)row * active;
    for (int i = 0; i < active && ids[i] >= 0; i++) {
      const int32_t slot = starts[ids[i]]++;
      args.slot_rows[slot] = row;
      ids[i] = slot;
    }
  }
  for (int expert = experts; expert > 0; expert--) starts[expert] = starts[expert - 1];
  starts[0] = 0;
}

void mix(const MoeArgs& args, const float* y, float* x, int rank, int ranks) {
  const int active = args.layer->active, hidden = args.hidden;
  const int from = (int)((int64_t)args.tokens * rank / ranks), to = (int)((int64_t)args.tokens * (rank + 1) / ranks);
  for (int row = from; row < to; row++) {
    const int32_t* slots = args.row_slots + (int64_t)row * active;
    const float* weights = args.row_weights + (int64_t)row * active;
    for (int at = 0; at < hidden; at += 16) {
      const int lanes = hidden - at < 16 ? hidden - at : 16;
      F made = zero();
      for (int i = 0; i < active && slots[i] >= 0; i++)
        made = fma(splat(weights[i]), load_first(y + (int64_t)slots[i] * hidden + at, lanes), made);
      float* out = x + (int64_t)row * hidden + at;
      store_first(out, load_first(out, lanes) + made, lanes);
    }
  }
}

}  // namespace

const MoeKernels moe_kernels = {route, mix};

}  // namespace TG_NS
}  // namespace tg
