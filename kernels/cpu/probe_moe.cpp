// Routing and mixing of experts on plain arrays, for tests.
#include "kernels.h"
#include "probe.h"

namespace tg {
namespace {

const MoeKernels* moe_at(int level) {
#ifdef TG_HAVE_AVX512
  if (level == TG_AVX512) return &avx512::moe_kernels;
#endif
#ifdef TG_HAVE_AVX2
  if (level == TG_AVX2) return &avx2::moe_kernels;
#endif
  return level == TG_SCALAR ? &scalar::moe_kernels : nullptr;
}

}  // namespace
}  // namespace tg

using namespace tg;

// Both take the arrays of MoeArgs (kernels.h) and return 0, or -1 where the level is not there.
TG_PROBE int32_t tg_probe_moe_route(int32_t level, int32_t tokens, int32_t experts, int32_t active, int32_t renormalise,
                                    const float* router_logits, const int32_t* row_experts, int32_t* expert_starts,
                                    int32_t* slot_rows, int32_t* row_slots, float* row_weights) {
  const MoeKernels* kernels = moe_at(level);
  if (!kernels) return -1;
  TgLayer layer = {};
  layer.experts = experts, layer.active = active, layer.renormalise = renormalise;
  MoeArgs args = {};
  args.layer = &layer, args.tokens = tokens, args.router_logits = router_logits, args.experts = row_experts;
  args.expert_starts = expert_starts, args.slot_rows = slot_rows, args.row_slots = row_slots, args.row_weights = row_weights;
  run_ranks(1, false, [&](int, int) { kernels->route(args); });
  return 0;
}

TG_PROBE int32_t tg_probe_moe_mix(int32_t level, int32_t tokens, int32_t hidden, int32_t active, int32_t* row_slots,
                                  float* row_weights, const float* y, float* x, int32_t ranks) {
  const MoeKernels* kernels = moe_at(level);
  if (!kernels) return -1;
  TgLayer layer = {};
  layer.active = active;
  MoeArgs args = {};
  args.layer = &layer, args.tokens = tokens, args.hidden = hidden, args.row_slots = row_slots, args.row_weights = row_weights;
  run_ranks(ranks, false, [&](int rank, int of) { kernels->mix(args, y, x, rank, of); });
  return 0;
}
