// Draws the next token of each row and tells how sure the model was. The rule is that of kernels/ops/sample.py.
#include "kernels.h"
#include "sample_race.h"

namespace tg {

#if TG_LEVEL == 0
static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// In the order in which `scratch_at` hands it out.
static int64_t scratch_bytes(int64_t vocab) {
  const int64_t row = aligned(4 * (vocab + 16)), maxima = aligned(4 * ((vocab + 255) / 256 * 16));
  return 4 * row + 2 * maxima + aligned(12 * vocab);
}

int64_t sample_scratch_bytes(int32_t vocab, int32_t ranks) { return ranks * scratch_bytes(vocab); }
#endif

namespace TG_NS {

static Scratch scratch_at(void* memory, int32_t vocab, int rank) {
  char* at = (char*)memory + sample_scratch_bytes(vocab, rank);
  auto take = [&](int64_t bytes) {
    char* taken = at;
    at += (bytes + 63) / 64 * 64;
    return taken;
  };
  const int64_t row = 4 * ((int64_t)vocab + 16), maxima = 4 * 16 * (int64_t)chunks_of(vocab);
  Scratch scratch;
  scratch.edited = (float*)take(row);
  scratch.logits = (float*)take(row);
  scratch.weights = (float*)take(row);
  scratch.ids = (int32_t*)take(row);
  scratch.maxima = (float*)take(maxima);
  scratch.edited_maxima = (float*)take(maxima);
  scratch.order = (Candidate*)take((int64_t)sizeof(Candidate) * vocab);
  return scratch;
}

static const float* edit(const float* logits, int32_t vocab, const TgSampling& want, float* edited) {
  memcpy(edited, logits, sizeof(float) * (size_t)vocab);
  for (int i = 0; i < want.edit_count; i++) {
    float old = logits[want.edit_ids[i]];
    edited[want.edit_ids[i]] = (old > 0 ? old / want.edit_scales[i] : old * want.edit_scales[i]) + want.edit_adds[i];
  }
  for (int i = 0; i < want.ban_count; i++) edited[want.ban_ids[i]] = -INFINITY;
  return edited;
}

static int32_t draw(const Row& row, const TgSampling& want, const Scratch& scratch) {
  const int32_t best = best_of(row);
  if (want.temperature < 1e-5f || want.top_k == 1) return best;
  const Weighing weigh = weighing(row.peak, want.temperature);
  const Cut cut = cut_of(row, weigh, want, scratch);
  return Race(weigh, cut, race_key(want.seed, want.position)).run(row, best);
}

// Of the model's own logits.
static void tell(const Row& row, int32_t logprobs, const Scratch& scratch, TgChosen* out) {
  const Weighing weigh = weighing(row.peak, 1);
  Total mass, moment;
  for (int from = 0; from < row.count; from += kChunk) {
    F weights_sum = zero(), moments_sum = zero();
    for (int i = from, end = chunk_end(from, row.count); i < end; i += 16) {
      F away = weigh.exponent(load_or_least(row.logits + i, row.count - i));
      F weights = exp(away);
      weights_sum = weights_sum + weights;
      moments_sum = fma(weights, away, moments_sum);
    }
    mass.add(weights_sum);
    moment.add(moments_sum);
  }
  const double total = mass.value(), normaliser = (double)row.peak + log(total);
  out->logprob = (float)((double)row.logits[out->token] - normaliser);
  out->entropy = (float)(log(total) - moment.value() / total);
  const int32_t wanted = logprobs < TG_TOP_LOGPROBS ? logprobs : (int32_t)TG_TOP_LOGPROBS;
  const int32_t top = wanted < row.count ? wanted : row.count;
  const int32_t known = top > 2 ? top : row.count < 2 ? row.count : 2;
  select_largest(row, known, scratch);
  std::sort(scratch.order, scratch.order + known);
  const double second = known < 2 ? 0 : ::exp((double)scratch.order[1].logit - (double)row.peak);
  out->margin = (float)((1 - second) / total);
  out->top_count = top;
  for (int i = 0; i < top; i++) {
    out->top_ids[i] = scratch.order[i].id;
    out->top_logprobs[i] = (float)((double)scratch.order[i].logit - normaliser);
  }
}

static void choose(const float* logits, int32_t vocab, const TgSampling& want, const Scratch& scratch, TgChosen* out) {
  out->token = TG_NUMERIC;
  out->logprob = out->entropy = out->margin = 0;
  out->top_count = 0;
  const Row row = scan(logits, vocab, scratch.maxima);
  if (!row.usable) return;
  if (want.forced >= 0) {
    out->token = want.forced;
  } else if (want.edit_count || want.ban_count) {
    const Row edited = scan(edit(logits, vocab, want, scratch.edited), vocab, scratch.edited_maxima);
    if (!edited.usable) return;
    out->token = draw(edited, want, scratch);
  } else {
    out->token = draw(row, want, scratch);
  }
  if (want.logprobs >= 0) tell(row, want.logprobs, scratch, out);
}

static void sample(const SampleArgs& args, int rank, int ranks) {
  const int32_t from = (int32_t)((int64_t)args.rows * rank / ranks);
  const int32_t to = (int32_t)((int64_t)args.rows * (rank + 1) / ranks);
  const Scratch scratch = scratch_at(args.scratch, args.vocab, rank);
  for (int32_t r = from; r < to; r++) {
    choose(args.logits + r * args.stride, args.vocab, args.sampling[r], scratch, &args.chosen[r]);
  }
}

const SampleKernels sample_kernels = {sample};

}  // namespace TG_NS
}  // namespace tg
