// One rank's walk through a forward pass: embedding, layers, head, draw.
#include "forward.h"

#include <math.h>
#include <string.h>

#include <algorithm>

namespace tg {

void Forward::run(const TgSampling* sampling, TgChosen* chosen) {
  begin();
  Rows rows = {step_.tokens, scratch_.x, scratch_.attended, step_.experts};
  for (int32_t i = 0; i < model_.layer_count; i++) {
    const TgLayer& layer = model_.layers[i];
    const bool at_end = i + 1 == model_.layer_count;
    attention(layer, !at_end || step_.logit_count > 0);
    if (at_end) {
      // Behind the last write to the cache only the rows whose logits are wanted matter.
      if (step_.logit_count == 0) return;
      rows = wanted_rows(layer, rows);
    }
    const int32_t width = layer.out.k;
    multiply(layer.out, prepare(rows.attended, width, nullptr, layer.out, rows.count), rows.x, model_.hidden, ADD);
    pool_.barrier();
    layer.kind == TG_MOE ? sparse(layer, rows) : dense(layer, rows);
  }
  choose(rows, sampling, chosen);
}

// Whether every rank prepares all rows for itself rather than share the work and wait.
bool Forward::by_itself(int32_t rows, int32_t width) const {
  return rows <= kOwnRows && (int64_t)rows * padded(width) <= kOwnValues;
}

Activations Forward::prepare(const float* x, int64_t stride, const float* norm, const TgLinear& weight, int32_t rows) {
  if (by_itself(rows, weight.k)) {
    const Activations out = own_.inputs.rows(weight, rows);
    kernels_.rows->prepare(x, stride, norm, model_.norm_eps, out, 0, rows);
    return out;
  }
  const Activations out = scratch_.inputs.rows(weight, rows);
  kernels_.rows->prepare(x, stride, norm, model_.norm_eps, out, first(rows), last(rows));
  pool_.barrier();
  return out;
}

void Forward::multiply(const TgLinear& weight, const Activations& x, float* out, int64_t stride, Epilogue epilogue) {
  kernels_.linear->linear({&weight, x, out, stride, epilogue}, rank_, ranks_);
}

void Forward::begin() {
  const int32_t from = first(step_.tokens), to = last(step_.tokens);
  kernels_.rows->embed(model_, step_.token_ids, step_.tokens, scratch_.x, rank_, ranks_);
  const int32_t half = model_.rope_dim / 2;
  for (int32_t row = from; row < to; row++) {
    float* cos = scratch_.cos + (int64_t)row * half;
    float* sin = scratch_.sin + (int64_t)row * half;
    for (int32_t i = 0; i < half; i++) {
      const float angle = (float)step_.positions[row] * model_.frequencies[i];
      cos[i] = cosf(angle) * model_.rope_scale;
      sin[i] = sinf(angle) * model_.rope_scale;
    }
  }
  for (int32_t s = 0; s < step_.sequences; s++)
    for (int32_t row = std::max(from, step_.query_starts[s]); row < std::min(to, step_.query_starts[s + 1]); row++)
      scratch_.owners[row] = s;
  pool_.barrier();
}

// Up to `attended`; unless that is `wanted`, only the cache is written.
void Forward::attention(const TgLayer& layer, bool wanted) {
  const int32_t tokens = step_.tokens;
  const Activations input = prepare(scratch_.x, model_.hidden, layer.attention_norm, layer.qkv, tokens);
  multiply(layer.qkv, input, scratch_.qkv, layer.qkv.n, STORE);
  pool_.barrier();
  kernels_.attention->rope_kv({&model_, &layer, tokens, scratch_.qkv, scratch_.cos, scratch_.sin, step_.positions,
                               scratch_.owners, step_.table_rows, step_.tables, step_.table_width, scratch_.queries},
                              rank_, ranks_);
  pool_.barrier();
  if (!wanted) return;
  const AttentionArgs args = {&model_,        &layer,           tokens,       step_.sequences,   scratch_.queries,
                              step_.query_starts, step_.seq_lens, step_.table_rows, step_.tables, step_.table_width,
                              scratch_.attended,  scratch_.attention};
  kernels_.attention->attend(args, rank_, ranks_);
  pool_.barrier();
  if (kernels_.attention->splits(args, ranks_)) {
    kernels_.attention->combine(args, rank_, ranks_);
    pool_.barrier();
  }
}

Forward::Rows Forward::wanted_rows(const TgLayer& layer, const Rows& all) {
  const int32_t count = step_.logit_count, width = layer.out.k;
  if (count == all.count) return all;
  for (int32_t i = first(count); i < last(count); i++) {
    const int64_t row = step_.logit_rows[i];
    memcpy(scratch_.last_x + (int64_t)i * model_.hidden, all.x + row * model_.hidden, sizeof(float) * model_.hidden);
    memcpy(scratch_.last_attended + (int64_t)i * width, all.attended + row * width, sizeof(float) * width);
    if (all.experts) scratch_.last_experts[i] = all.experts[row];
  }
  pool_.barrier();
  return {count, scratch_.last_x, scratch_.last_attended, all.experts ? scratch_.last_experts : nullptr};
}

void Forward::dense(const TgLayer& layer, const Rows& rows) {
  const int32_t hidden = model_.hidden, width = layer.down.k;
  for (int32_t done = 0; done < rows.count; done += kInnerRows) {
    const int32_t count = std::min(kInnerRows, rows.count - done);
    float* x = rows.x + (int64_t)done * hidden;
    multiply(layer.gate_up, prepare(x, hidden, layer.mlp_norm, layer.gate_up, count), scratch_.inner, width, SWIGLU);
    pool_.barrier();
    multiply(layer.down, prepare(scratch_.inner, width, nullptr, layer.down, count), x, hidden, ADD);
    pool_.barrier();
  }
}

void Forward::choose(const Rows& rows, const TgSampling* sampling, TgChosen* chosen) {
  if (!step_.logits && !sampling) return;
  const int64_t vocab = model_.vocab, hidden = model_.hidden;
  for (int32_t done = 0; done < rows.count; done += kLogitRows) {
    const int32_t count = std::min(kLogitRows, rows.count - done);
    float* logits = step_.logits ? step_.logits + done * vocab : scratch_.logits;
    const Activations input = prepare(rows.x + done * hidden, hidden, model_.norm, model_.head, count);
    multiply(model_.head, input, logits, vocab, STORE);
    pool_.barrier();
    if (sampling) {
      kernels_.sample->sample({logits, vocab, count, model_.vocab, sampling + done, chosen + done, scratch_.sampling},
                              rank_, ranks_);
      pool_.barrier();
    }
  }
}

}  // namespace tg
