// One rank's walk through a layer of experts: route, gather the live slots, gate and up, down, mix.
#include <string.h>

#include "forward.h"

namespace tg {

// Where rows are few every rank prepares, routes and gathers all of them for itself, which saves the barriers between.
void Forward::sparse(const TgLayer& layer, const Rows& rows) {
  const TgLinear &gate_up = layer.expert_gate_up[0], &down = layer.expert_down[0];
  const int32_t hidden = model_.hidden;
  const bool alone = rows.count <= kOwnRows && (int64_t)rows.count * layer.active * padded(hidden) <= kOwnValues;
  const MoeArgs moe = route(layer, rows, alone);
  const Activations input = prepare(rows.x, hidden, layer.mlp_norm, gate_up, rows.count);
  const Activations slots = gather(input, moe, alone);
  multiply_experts(layer.expert_gate_up, slots, moe, scratch_.inner, down.k, SWIGLU);
  pool_.barrier();
  const Activations inner = prepare(scratch_.inner, down.k, nullptr, down, slots.m);
  multiply_experts(layer.expert_down, inner, moe, scratch_.outputs, hidden, STORE);
  pool_.barrier();
  kernels_.moe->mix(moe, scratch_.outputs, rows.x, rank_, ranks_);
  pool_.barrier();
}

MoeArgs Forward::route(const TgLayer& layer, const Rows& rows, bool alone) {
  const Routing& to = alone ? own_.routing : scratch_.routing;
  const MoeArgs moe = {&layer,    rows.count,   model_.hidden, to.logits,     rows.experts,
                       to.starts, to.slot_rows, to.row_slots,  to.row_weights};
  const Activations input = prepare(rows.x, model_.hidden, layer.mlp_norm, layer.router, rows.count);
  const LinearArgs args = {&layer.router, input, to.logits, layer.experts, STORE};
  if (alone) {
    kernels_.linear->linear(args, 0, 1);
    kernels_.moe->route(moe);
    return moe;
  }
  kernels_.linear->linear(args, rank_, ranks_);
  pool_.barrier();
  if (rank_ == 0) kernels_.moe->route(moe);
  pool_.barrier();
  return moe;
}

// The rows of each slot, expert behind expert.
Activations Forward::gather(const Activations& from, const MoeArgs& moe, bool alone) {
  const Inputs& room = alone ? own_.gathered : scratch_.gathered;
  Activations out = from;
  out.m = moe.expert_starts[moe.layer->experts];
  out.data = room.data;
  out.scale = room.scale;
  out.sums = room.sums;
  const int64_t bytes = (int64_t)from.stride * (from.format == TG_BF16 ? 2 : 1), groups = from.stride / 32;
  for (int32_t slot = alone ? 0 : first(out.m), end = alone ? out.m : last(out.m); slot < end; slot++) {
    const int64_t row = moe.slot_rows[slot];
    memcpy((char*)room.data + slot * bytes, (const char*)from.data + row * bytes, (size_t)bytes);
    if (from.format == TG_BF16) continue;
    room.scale[slot] = from.scale[row];
    memcpy(room.sums + slot * groups, from.sums + row * groups, sizeof(int32_t) * (size_t)groups);
  }
  if (!alone) pool_.barrier();
  return out;
}

void Forward::multiply_experts(const TgLinear* weights, const Activations& x, const MoeArgs& moe, float* out,
                               int64_t stride, Epilogue epilogue) {
  const int64_t bytes = (int64_t)x.stride * (x.format == TG_BF16 ? 2 : 1), groups = x.stride / 32;
  for (int32_t expert = 0; expert < moe.layer->experts; expert++) {
    const int64_t start = moe.expert_starts[expert];
    Activations mine = x;
    mine.m = moe.expert_starts[expert + 1] - (int32_t)start;
    if (mine.m == 0) continue;
    mine.data = (const char*)x.data + start * bytes;
    mine.scale = x.scale + start;
    mine.sums = x.sums + start * groups;
    multiply(weights[expert], mine, out + start * stride, stride, epilogue);
  }
}

}  // namespace tg
