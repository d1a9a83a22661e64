// Attention and the cache write at a level on plain arrays.
#include <time.h>

#include "attention_plan.h"
#include "probe.h"

namespace {

// What kernels/native_attention.py mirrors. Sizes of the model, then of the step.
struct Probe {
  int32_t level, ranks, threads, combine;
  int32_t heads, kv_heads, head_dim, rope_dim, kv_format, block_size, blocks, window;
  int32_t tokens, sequences, table_width, reserved;
  float scale, eps;
  const float *cos, *sin, *q_norm, *k_norm;
  float* qkv;
  uint16_t* queries;
  const int32_t *query_starts, *seq_lens, *positions, *owners, *table_rows, *tables;
  void *cache, *scratch;
  float* out;
};

struct Model {
  explicit Model(const Probe& probe) : layer(), model() {
    layer.heads = probe.heads;
    layer.kv_heads = probe.kv_heads;
    layer.head_dim = probe.head_dim;
    layer.window = probe.window;
    layer.scale = probe.scale;
    layer.q_norm = probe.q_norm;
    layer.k_norm = probe.k_norm;
    layer.kv = probe.cache;
    model.layer_count = 1;
    model.layers = &layer;
    model.norm_eps = probe.eps;
    model.rope_dim = probe.rope_dim;
    model.kv_format = probe.kv_format;
    model.block_size = probe.block_size;
    model.blocks = probe.blocks;
  }
  TgLayer layer;
  TgModel model;
};

const tg::AttentionKernels* table(int level) {
  switch (level) {
#ifdef TG_HAVE_AMX
    case TG_AMX: return &tg::amx::attention_kernels;
#endif
#ifdef TG_HAVE_AVX512
    case TG_AVX512: return &tg::avx512::attention_kernels;
#endif
#ifdef TG_HAVE_AVX2
    case TG_AVX2: return &tg::avx2::attention_kernels;
#endif
    default: return level == TG_SCALAR ? &tg::scalar::attention_kernels : nullptr;
  }
}

tg::AttentionArgs attention_args(const Probe& probe, const Model& model) {
  return {&model.model, &model.layer, probe.tokens, probe.sequences, probe.queries, probe.query_starts, probe.seq_lens,
          probe.table_rows, probe.tables, probe.table_width, probe.out, probe.scratch};
}

int64_t thread_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

}  // namespace

TG_PROBE int64_t tg_probe_attention_scratch(const Probe* probe) {
  return tg::attention_scratch_bytes(Model(*probe).model, probe->ranks);
}

// 0, or -1 for a level that there is none of, which is what tg_probe_attend returns, too.
TG_PROBE int32_t tg_probe_rope_kv(const Probe* probe) {
  if (probe->level > tg::best_level() || !table(probe->level)) return -1;
  const Model model(*probe);
  const tg::RopeKvArgs args = {&model.model, &model.layer, probe->tokens, probe->qkv, probe->cos, probe->sin,
                               probe->positions, probe->owners, probe->table_rows, probe->tables, probe->table_width,
                               probe->queries};
  tg::run_ranks(probe->ranks, probe->threads, [&](int rank, int ranks) {
    table(probe->level)->rope_kv(args, rank, ranks);
  });
  return 0;
}

// The processor time that this thread spent, in nanoseconds. `combine`: 0 where it is called only if `splits` asks for it,
// 1 where it is called whatever that says.
TG_PROBE int64_t tg_probe_attend(const Probe* probe) {
  if (probe->level > tg::best_level() || !table(probe->level)) return -1;
  const Model model(*probe);
  const tg::AttentionArgs args = attention_args(*probe, model);
  const tg::AttentionKernels* kernels = table(probe->level);
  const int64_t before = thread_nanoseconds();
  tg::run_ranks(probe->ranks, probe->threads, [&](int rank, int ranks) { kernels->attend(args, rank, ranks); });
  if (probe->combine || kernels->splits(args, probe->ranks))
    tg::run_ranks(probe->ranks, probe->threads, [&](int rank, int ranks) { kernels->combine(args, rank, ranks); });
  return thread_nanoseconds() - before;
}

// Pairs of a row and a key that `rank` attends to, as the plan counts them with tiles' row cost.
TG_PROBE int64_t tg_probe_attention_share(const Probe* probe, int32_t rank) {
  const Model model(*probe);
  const tg::AttentionArgs args = attention_args(*probe, model);
  int64_t pairs = 0;
  tg::AttentionPlan(args, 8, probe->ranks).each_piece(rank, [&](const tg::Piece& piece) {
    const int32_t from = piece.span_from * tg::TG_SPAN, to = piece.span_to * tg::TG_SPAN;
    const int32_t first = from > piece.unit.key_from ? from : piece.unit.key_from;
    const int32_t end = to < piece.unit.key_to ? to : piece.unit.key_to;
    pairs += (int64_t)(end - first) * (piece.row_to - piece.row_from);
  });
  return pairs;
}
