// The kernels behind a step, as tables of functions by level.
//
// A kernel is SPMD: every thread of the pool calls it with the same arguments and its own `rank` of `ranks`, it does its
// share and returns; it holds no state, takes no lock and knows no barrier. step.cpp puts barriers between kernels. The
// share of a rank follows from (arguments, rank, ranks) alone, and no result depends on `ranks`.
//
// Each kernel file is compiled once per level into that level's namespace and exports one table; dispatch.cpp picks.
#pragma once
#include <stdint.h>

#include "abi.h"

namespace tg {

// Rows of inputs of a linear kernel, as its format wants them (rows.cpp makes them from float32).
struct Activations {
  int32_t format;      // that of the weight: TG_BF16: bf16 values; TG_INT8, TG_INT4: int8 values, w/ scale
  int32_t m;           // rows
  int32_t k;           // inputs, unpadded
  int32_t stride;      // values from a row to the next: k zero-padded to a multiple of 64, all formats
  const void* data;    // bf16 or int8 [m, stride] at a multiple of 64
  const float* scale;  // int8: float32 [m]; value * scale is the input
  const int32_t* sums;  // int8: [m, stride / 32], sums of 32 neighbouring values each
  int32_t rotated;  // that of the weight
};

enum Epilogue {
  STORE = 0,   // out[m, n]  = y
  ADD = 1,     // out[m, n] += y
  SWIGLU = 2,  // of a paired weight: out[m, n / 2] = silu(gate) * up
};

struct LinearArgs {
  const TgLinear* weight;
  Activations x;
  float* out;      // float32
  int64_t stride;  // values from a row of `out` to the next
  int32_t epilogue;
};

struct LinearKernels {
  // Columns are shared out in blocks of 16 (32 of a paired weight). Any m >= 0.
  void (*linear)(const LinearArgs&, int rank, int ranks);
};

enum { TG_MAX_HEAD_DIM = 256 };  // largest head_dim of the attention kernels; padded dim: head_dim to a multiple of 32

struct RopeKvArgs {
  const TgModel* model;
  const TgLayer* layer;
  int32_t tokens;
  float* qkv;  // float32 [T, (heads + 2 kv_heads) * dim]; used up
  const float* cos;  // float32 [T, rope_dim / 2], already scaled
  const float* sin;
  const int32_t* positions;  // [T]
  const int32_t* owners;     // [T], sequence of each row
  const int32_t* table_rows;
  const int32_t* tables;
  int32_t table_width;
  uint16_t* queries;  // out: bf16 [T, heads, padded dim], rotated
};

struct AttentionArgs {
  const TgModel* model;
  const TgLayer* layer;
  int32_t tokens, sequences;
  const uint16_t* queries;       // bf16 [T, heads, padded dim]
  const int32_t* query_starts;   // [S + 1]
  const int32_t* seq_lens;       // [S]
  const int32_t* table_rows;     // [S]
  const int32_t* tables;
  int32_t table_width;
  float* out;      // float32 [T, heads * dim]
  void* scratch;   // attention_scratch_bytes(...), shared by all ranks, at a multiple of 64
};

// A row's keys are taken in spans of so many positions, the first from 0 on.
enum { TG_SPAN = 256 };

struct AttentionKernels {
  // Head norms, rotation, the write into the cache. Shared out by rows (and heads where rows are few).
  void (*rope_kv)(const RopeKvArgs&, int rank, int ranks);
  // `attend` writes `out`, except for rows whose spans are shared between ranks: of those it leaves partial results, and
  // `combine`, behind a barrier, merges them into `out`. `splits` says whether there are such rows (never where no
  // sequence is longer than TG_SPAN); if not, neither the barrier nor `combine` is needed.
  void (*attend)(const AttentionArgs&, int rank, int ranks);
  bool (*splits)(const AttentionArgs&, int ranks);
  void (*combine)(const AttentionArgs&, int rank, int ranks);
};

int64_t attention_scratch_bytes(const TgModel& model, int ranks);

struct RowKernels {
  // float32 [hidden] of each token's row of the table.
  void (*embed)(const TgModel&, const int32_t* ids, int32_t tokens, float* x, int rank, int ranks);
  // Rows [from, to) of x float32 [*, width] (stride values apart), RMS-normed by `norm` float32 [width] unless null, into
  // `out` (same row numbers, whose format says how).
  void (*prepare)(const float* x, int64_t stride, const float* norm, float eps, const Activations& out, int32_t from,
                  int32_t to);
};

struct SampleArgs {
  const float* logits;  // float32 [R, stride]
  int64_t stride;
  int32_t rows, vocab;
  const TgSampling* sampling;  // [R]
  TgChosen* chosen;            // [R]
  void* scratch;               // sample_scratch_bytes(vocab, ranks), each rank uses its own part
};

struct SampleKernels {
  void (*sample)(const SampleArgs&, int rank, int ranks);  // shared out by rows
};

int64_t sample_scratch_bytes(int32_t vocab, int32_t ranks);

struct MoeArgs {
  const TgLayer* layer;
  int32_t tokens, hidden;
  const float* router_logits;  // float32 [T, experts]
  const int32_t* experts;      // [T] or null
  // Routing, made by `route` on one rank: slots sorted by expert, rows in order within an expert.
  int32_t* expert_starts;  // [experts + 1]
  int32_t* slot_rows;      // [slots], row of each slot
  int32_t* row_slots;      // [T, active], slot of each (row, choice), -1 where the row has fewer
  float* row_weights;      // [T, active], likeliest first
};

struct MoeKernels {
  // Softmax over all experts, the likeliest `active` (of equals the lower id), fewer where `experts` says so (at least
  // 1); renormalised where the layer does. Called by one rank.
  void (*route)(const MoeArgs&);
  // x[row] += sum over the row's choices, likeliest first, of weight * y[slot], summed in float32. Shared out by rows.
  void (*mix)(const MoeArgs&, const float* y, float* x, int rank, int ranks);
};

struct Kernels {
  const LinearKernels* linear;
  const AttentionKernels* attention;
  const RowKernels* rows;
  const SampleKernels* sample;
  const MoeKernels* moe;
  int32_t level[TG_KERNELS];
};

// The best built and allowed level of each kernel, at most `levels` (null: no cap). dispatch.cpp.
Kernels choose_kernels(const int32_t* levels);

// Each kernel file's table at each level that was built (TG_HAVE_<LEVEL> says which); a file without code of its own for a
// level does not export it, and the next lower one serves.
#define TG_DECLARE_TABLES(ns)                     \
  namespace ns {                                  \
  extern const LinearKernels linear_kernels;      \
  extern const AttentionKernels attention_kernels; \
  extern const RowKernels row_kernels;            \
  extern const SampleKernels sample_kernels;      \
  extern const MoeKernels moe_kernels;            \
  }
TG_DECLARE_TABLES(scalar)
TG_DECLARE_TABLES(avx2)
TG_DECLARE_TABLES(avx512)
TG_DECLARE_TABLES(amx)
#undef TG_DECLARE_TABLES

}  // namespace tg
