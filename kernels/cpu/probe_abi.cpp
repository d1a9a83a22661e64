// The layout of every struct of abi.h, for the test that Python's counterparts are true.
#include <stddef.h>

#include "abi.h"
#include "probe.h"

#define TG_FIELD(type, field) (int32_t) offsetof(type, field)

namespace {

const int32_t kLinear[] = {TG_FIELD(TgLinear, format), TG_FIELD(TgLinear, group),    TG_FIELD(TgLinear, n),
                           TG_FIELD(TgLinear, k),      TG_FIELD(TgLinear, paired),   TG_FIELD(TgLinear, rotated),
                           TG_FIELD(TgLinear, data),   TG_FIELD(TgLinear, bias),     sizeof(TgLinear)};

const int32_t kLayer[] = {
    TG_FIELD(TgLayer, attention_norm), TG_FIELD(TgLayer, qkv),         TG_FIELD(TgLayer, out),
    TG_FIELD(TgLayer, q_norm),         TG_FIELD(TgLayer, k_norm),      TG_FIELD(TgLayer, heads),
    TG_FIELD(TgLayer, kv_heads),       TG_FIELD(TgLayer, head_dim),    TG_FIELD(TgLayer, window),
    TG_FIELD(TgLayer, scale),          TG_FIELD(TgLayer, kind),        TG_FIELD(TgLayer, mlp_norm),
    TG_FIELD(TgLayer, gate_up),        TG_FIELD(TgLayer, down),        TG_FIELD(TgLayer, router),
    TG_FIELD(TgLayer, experts),        TG_FIELD(TgLayer, active),      TG_FIELD(TgLayer, renormalise),
    TG_FIELD(TgLayer, reserved),       TG_FIELD(TgLayer, expert_gate_up), TG_FIELD(TgLayer, expert_down),
    TG_FIELD(TgLayer, kv),             sizeof(TgLayer)};

const int32_t kModel[] = {
    TG_FIELD(TgModel, vocab),       TG_FIELD(TgModel, hidden),     TG_FIELD(TgModel, layer_count),
    TG_FIELD(TgModel, norm_eps),    TG_FIELD(TgModel, embedding),  TG_FIELD(TgModel, norm),
    TG_FIELD(TgModel, head),        TG_FIELD(TgModel, layers),     TG_FIELD(TgModel, frequencies),
    TG_FIELD(TgModel, rope_dim),    TG_FIELD(TgModel, rope_scale), TG_FIELD(TgModel, kv_format),
    TG_FIELD(TgModel, block_size),  TG_FIELD(TgModel, blocks),     TG_FIELD(TgModel, reserved),
    sizeof(TgModel)};

const int32_t kSampling[] = {
    TG_FIELD(TgSampling, temperature), TG_FIELD(TgSampling, top_p),       TG_FIELD(TgSampling, min_p),
    TG_FIELD(TgSampling, top_k),       TG_FIELD(TgSampling, seed),        TG_FIELD(TgSampling, position),
    TG_FIELD(TgSampling, edit_count),  TG_FIELD(TgSampling, ban_count),   TG_FIELD(TgSampling, edit_ids),
    TG_FIELD(TgSampling, edit_scales), TG_FIELD(TgSampling, edit_adds),   TG_FIELD(TgSampling, ban_ids),
    TG_FIELD(TgSampling, logprobs),    TG_FIELD(TgSampling, forced),      sizeof(TgSampling)};

const int32_t kChosen[] = {TG_FIELD(TgChosen, token),     TG_FIELD(TgChosen, logprob), TG_FIELD(TgChosen, entropy),
                           TG_FIELD(TgChosen, margin),    TG_FIELD(TgChosen, top_count), TG_FIELD(TgChosen, top_ids),
                           TG_FIELD(TgChosen, top_logprobs), sizeof(TgChosen)};

const int32_t kStep[] = {
    TG_FIELD(TgStep, tokens),       TG_FIELD(TgStep, sequences),   TG_FIELD(TgStep, token_ids),
    TG_FIELD(TgStep, positions),    TG_FIELD(TgStep, query_starts), TG_FIELD(TgStep, seq_lens),
    TG_FIELD(TgStep, table_rows),   TG_FIELD(TgStep, tables),      TG_FIELD(TgStep, table_count),
    TG_FIELD(TgStep, table_width),  TG_FIELD(TgStep, logit_count), TG_FIELD(TgStep, reserved),
    TG_FIELD(TgStep, logit_rows),   TG_FIELD(TgStep, experts),     TG_FIELD(TgStep, logits),
    TG_FIELD(TgStep, sampling),     TG_FIELD(TgStep, chosen),      TG_FIELD(TgStep, repeat),
    TG_FIELD(TgStep, wake),         TG_FIELD(TgStep, stop_starts), TG_FIELD(TgStep, stop_ids),
    sizeof(TgStep)};

}  // namespace

// Offsets of the fields of struct `index` (in the order of abi.h) and its size, into `out`; how many, -1 if there is none.
TG_PROBE int32_t tg_probe_layout(int32_t index, int32_t* out) {
  const struct {
    const int32_t* offsets;
    size_t count;
  } all[] = {{kLinear, sizeof kLinear / 4}, {kLayer, sizeof kLayer / 4},   {kModel, sizeof kModel / 4},
             {kSampling, sizeof kSampling / 4}, {kChosen, sizeof kChosen / 4}, {kStep, sizeof kStep / 4}};
  if (index < 0 || index >= (int32_t)(sizeof all / sizeof *all)) return -1;
  for (size_t i = 0; i < all[index].count; i++) out[i] = all[index].offsets[i];
  return (int32_t)all[index].count;
}
