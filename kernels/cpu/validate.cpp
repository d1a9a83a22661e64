// What a caller may pass: checked before anything is read or written through it.
#include "validate.h"

#include <math.h>

#include "kernels.h"

namespace tg {
namespace {

constexpr int32_t kMost = 1 << 24;  // of any size of a model, so that products fit their types

bool within(int64_t value, int64_t low, int64_t high) { return low <= value && value <= high; }

bool is_aligned(const void* pointer) { return pointer && (uintptr_t)pointer % 64 == 0; }

bool is_sound(const TgLinear& weight, int64_t n, int64_t k, bool paired) {
  const int32_t group = weight.group;
  const bool grouped = weight.format == TG_INT4 ? (group == 32 || group == 64) && k % group == 0 : group == 0;
  const bool rotates = weight.rotated == 1 && weight.format == TG_INT8 && k % 64 == 0;
  const bool known = within(weight.format, TG_BF16, TG_INT4) && grouped && (rotates || weight.rotated == 0);
  return known && weight.n == n && weight.k == k && within(n, 1, kMost) && within(k, 1, kMost) &&
         weight.paired == (paired ? 1 : 0) && (!paired || n % 2 == 0) && is_aligned(weight.data);
}

bool is_gated(const TgLinear& gate_up, const TgLinear& down, int32_t hidden) {
  return is_sound(gate_up, 2 * (int64_t)down.k, hidden, true) && is_sound(down, hidden, down.k, false);
}

bool is_sound(const TgLayer& layer, const TgModel& model) {
  const int64_t heads = layer.heads, kv_heads = layer.kv_heads, dim = layer.head_dim;
  if (!within(heads, 1, kMost) || !within(kv_heads, 1, heads) || heads % kv_heads != 0) return false;
  if (!within(dim, 1, TG_MAX_HEAD_DIM) || model.rope_dim > dim || layer.window < 0 || !layer.kv) return false;
  if (!layer.attention_norm || !layer.mlp_norm || (layer.q_norm == nullptr) != (layer.k_norm == nullptr)) return false;
  if (!is_sound(layer.qkv, (heads + 2 * kv_heads) * dim, model.hidden, false)) return false;
  if (!is_sound(layer.out, model.hidden, heads * dim, false)) return false;
  if (layer.kind == TG_DENSE) return is_gated(layer.gate_up, layer.down, model.hidden);
  if (layer.kind != TG_MOE || !within(layer.experts, 1, 1 << 16)) return false;
  if (!within(layer.active, 1, layer.experts)) return false;
  if (!layer.expert_gate_up || !layer.expert_down || layer.router.format != TG_BF16) return false;
  if (!is_sound(layer.router, layer.experts, model.hidden, false)) return false;
  for (int32_t i = 0; i < layer.experts; i++) {
    const TgLinear &gate_up = layer.expert_gate_up[i], &down = layer.expert_down[i];
    const TgLinear &first_up = layer.expert_gate_up[0], &first_down = layer.expert_down[0];
    if (!is_gated(gate_up, down, model.hidden) || down.k != first_down.k) return false;
    // Slots are prepared for all experts at once.
    if (gate_up.format != first_up.format || down.format != first_down.format) return false;
    if (gate_up.rotated != first_up.rotated || down.rotated != first_down.rotated) return false;
  }
  return true;
}

int32_t find_table_fault(const TgModel& model, const TgStep& step, int32_t sequence) {
  const int64_t row = step.table_rows[sequence];
  const int64_t reach = (int64_t)step.seq_lens[sequence] + step.repeat - 1;
  const int64_t blocks = (reach + model.block_size - 1) / model.block_size;
  if (!within(row, 0, (int64_t)step.table_count - 1) || blocks > step.table_width) return TG_BAD_TABLE;
  for (int64_t i = 0; i < blocks; i++)
    if (!within(step.tables[row * step.table_width + i], 0, model.blocks - 1)) return TG_BAD_TABLE;
  return TG_OK;
}

int32_t find_sequence_fault(const TgModel& model, const TgStep& step) {
  if (step.query_starts[0] != 0 || step.query_starts[step.sequences] != step.tokens) return TG_BAD_SHAPE;
  for (int32_t s = 0; s < step.sequences; s++)
    if (step.query_starts[s + 1] <= step.query_starts[s]) return TG_BAD_SHAPE;
  for (int32_t s = 0; s < step.sequences; s++) {
    const int32_t start = step.query_starts[s], end = step.query_starts[s + 1];
    const int64_t begin = (int64_t)step.seq_lens[s] - (end - start);
    if (!within(begin, 0, INT32_MAX / 2)) return TG_BAD_POSITION;
    for (int32_t row = start; row < end; row++)
      if (step.positions[row] != begin + (row - start)) return TG_BAD_POSITION;
    if (const int32_t fault = find_table_fault(model, step, s)) return fault;
  }
  return TG_OK;
}

bool is_sound(const TgSampling& row, int32_t vocab) {
  if (!(row.temperature >= 0 && isfinite(row.temperature)) || !(row.top_p > 0 && row.top_p <= 1)) return false;
  if (!(row.min_p >= 0 && row.min_p <= 1) || row.top_k < 0) return false;
  if (!within(row.logprobs, -1, TG_TOP_LOGPROBS) || !within(row.forced, -1, vocab - 1)) return false;
  if (row.edit_count < 0 || (row.edit_count > 0 && (!row.edit_ids || !row.edit_scales || !row.edit_adds))) return false;
  if (row.ban_count < 0 || (row.ban_count > 0 && !row.ban_ids)) return false;
  for (int32_t i = 0; i < row.edit_count; i++)
    if (!within(row.edit_ids[i], 0, vocab - 1)) return false;
  for (int32_t i = 0; i < row.ban_count; i++)
    if (!within(row.ban_ids[i], 0, vocab - 1)) return false;
  return true;
}

bool has_all_pointers(const TgStep& step) {
  const bool rows = step.token_ids && step.positions && step.query_starts && step.seq_lens && step.table_rows;
  const bool draws = !step.sampling || step.chosen;
  return rows && draws && step.tables && (step.logit_count == 0 || step.logit_rows);
}

bool may_repeat(const TgStep& step) {
  if (step.repeat < 1) return false;
  if (step.repeat == 1) return true;
  if (step.tokens != step.sequences || step.logit_count != step.tokens || !step.sampling) return false;
  if (!step.stop_starts) return true;
  if (step.stop_starts[0] < 0 || !step.stop_ids) return false;
  for (int32_t s = 0; s < step.sequences; s++)
    if (step.stop_starts[s + 1] < step.stop_starts[s]) return false;
  return true;
}

}  // namespace

bool is_sound(const TgModel& model) {
  if (!within(model.vocab, 1, kMost) || !within(model.hidden, 1, kMost) || !within(model.layer_count, 1, 1 << 16))
    return false;
  if (!model.embedding || !model.norm || !model.layers || !(model.norm_eps >= 0)) return false;
  if (model.rope_dim < 0 || model.rope_dim % 2 != 0 || (model.rope_dim > 0 && !model.frequencies)) return false;
  if (!within(model.kv_format, TG_KV_BF16, TG_KV_INT8) || !within(model.blocks, 1, INT32_MAX)) return false;
  if (!within(model.block_size, 16, 1 << 16) || model.block_size % 16 != 0) return false;
  if (!is_sound(model.head, model.vocab, model.hidden, false)) return false;
  for (int32_t i = 0; i < model.layer_count; i++)
    if (!is_sound(model.layers[i], model)) return false;
  return true;
}

int32_t find_fault(const TgModel& model, const TgStep& step, int32_t max_tokens) {
  if (!within(step.tokens, 0, max_tokens) || !within(step.sequences, 0, step.tokens)) return TG_BAD_SHAPE;
  if (!within(step.logit_count, 0, step.tokens) || step.table_count < 0 || step.table_width < 0) return TG_BAD_SHAPE;
  if (!has_all_pointers(step) || !may_repeat(step)) return TG_BAD_SHAPE;
  for (int32_t i = 0; i < step.logit_count; i++)
    if (!within(step.logit_rows[i], i ? (int64_t)step.logit_rows[i - 1] + 1 : 0, step.tokens - 1)) return TG_BAD_SHAPE;
  for (int32_t i = 0; i < step.tokens; i++)
    if (!within(step.token_ids[i], 0, model.vocab - 1)) return TG_BAD_TOKEN;
  if (const int32_t fault = find_sequence_fault(model, step)) return fault;
  for (int32_t i = 0; step.sampling && i < step.logit_count; i++)
    if (!is_sound(step.sampling[i], model.vocab) || (step.repeat > 1 && step.sampling[i].forced >= 0))
      return TG_BAD_SAMPLING;
  return TG_OK;
}

}  // namespace tg
