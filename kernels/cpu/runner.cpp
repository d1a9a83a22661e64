// A model with its scratch memory: how much a step needs, and where it lies.
#include "runner.h"

#include <algorithm>
#include <new>

namespace tg {
namespace {

void widen(Sizes& s, const TgLinear& weight) { s.width = std::max(s.width, padded(weight.k)); }

Inputs take_inputs(Arena& arena, int64_t rows, int64_t values) {
  Inputs inputs;
  inputs.data = arena.take<uint16_t>(values);
  inputs.scale = arena.take<float>(rows);
  inputs.sums = arena.take<int32_t>(values / 32);
  return inputs;
}

Routing take_routing(Arena& arena, const Sizes& s, int64_t rows) {
  Routing routing;
  routing.logits = arena.take<float>(rows * s.experts);
  routing.starts = arena.take<int32_t>(s.experts + 1);
  routing.slot_rows = arena.take<int32_t>(rows * s.active);
  routing.row_slots = arena.take<int32_t>(rows * s.active);
  routing.row_weights = arena.take<float>(rows * s.active);
  return routing;
}

void lay_out(Arena& arena, const TgModel& model, const Sizes& s, Scratch& scratch) {
  const int64_t tokens = s.tokens;
  const int64_t slots = tokens * s.active;
  scratch.x = arena.take<float>(tokens * model.hidden);
  scratch.cos = arena.take<float>(tokens * (model.rope_dim / 2));
  scratch.sin = arena.take<float>(tokens * (model.rope_dim / 2));
  scratch.owners = arena.take<int32_t>(tokens);
  scratch.qkv = arena.take<float>(tokens * s.qkv);
  scratch.queries = arena.take<uint16_t>(tokens * s.queries);
  scratch.attended = arena.take<float>(tokens * s.heads);
  scratch.inner = arena.take<float>(std::max(std::min<int64_t>(tokens, kInnerRows), slots) * s.inner);
  scratch.inputs = take_inputs(arena, std::max(tokens, slots), std::max(tokens, slots) * s.width);
  scratch.attention = arena.take<char>(attention_scratch_bytes(model, s.ranks));
  scratch.last_x = arena.take<float>(tokens * model.hidden);
  scratch.last_attended = arena.take<float>(tokens * s.heads);
  scratch.last_experts = arena.take<int32_t>(tokens);
  scratch.logits = arena.take<float>(std::min<int64_t>(tokens, kLogitRows) * model.vocab);
  scratch.sampling = arena.take<char>(sample_scratch_bytes(model.vocab, s.ranks));
  scratch.next = arena.take<TgSampling>(tokens);
  scratch.gathered = take_inputs(arena, slots, slots * padded(model.hidden));
  scratch.routing = take_routing(arena, s, tokens);
  scratch.outputs = arena.take<float>(slots * model.hidden);
  for (int rank = 0; rank < s.ranks; rank++) {
    Own& own = scratch.own[rank];
    own.inputs = take_inputs(arena, kOwnValues / 64, kOwnValues);
    own.gathered = take_inputs(arena, kOwnValues / 64, kOwnValues);
    own.routing = take_routing(arena, s, kOwnRows);
  }
}

}  // namespace

Sizes sizes_of(const TgModel& model, int32_t tokens, int32_t ranks) {
  Sizes s = {};
  s.tokens = tokens;
  s.ranks = ranks;
  widen(s, model.head);
  for (int32_t i = 0; i < model.layer_count; i++) {
    const TgLayer& layer = model.layers[i];
    widen(s, layer.qkv);
    widen(s, layer.out);
    s.qkv = std::max(s.qkv, layer.qkv.n);
    s.heads = std::max(s.heads, layer.heads * layer.head_dim);
    s.queries = std::max(s.queries, layer.heads * ((layer.head_dim + 31) / 32 * 32));
    const TgLinear& down = layer.kind == TG_MOE ? layer.expert_down[0] : layer.down;
    widen(s, down);
    s.inner = std::max(s.inner, down.k);
    if (layer.kind == TG_MOE) {
      s.experts = std::max(s.experts, layer.experts);
      s.active = std::max(s.active, layer.active);
    }
  }
  return s;
}

}  // namespace tg

bool TgRunner::reserve() {
  const tg::Sizes sizes = tg::sizes_of(model, max_tokens, pool.threads());
  own.reset(new (std::nothrow) tg::Own[pool.threads()]);
  if (!own) return false;
  scratch.own = own.get();
  tg::lay_out(arena, model, sizes, scratch);
  if (!arena.reserve()) return false;
  tg::lay_out(arena, model, sizes, scratch);
  return true;
}
