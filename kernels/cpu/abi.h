// The plain C interface of the CPU core: what crosses between Python (kernels/native.py mirrors every struct) and C++.
//
// Everything here is plain data: fixed-width integers, floats and pointers, no torch, no C++ types. Memory belongs to
// the caller unless a comment says otherwise. Matrices are row-major. Sizes are in elements unless named bytes.
//
// The numeric contract. A row of a step gives the same bits whatever else is in the step, however its sequence was cut
// into chunks, and at whichever level (AMX, AVX-512, AVX2) a kernel runs:
//   - Hidden states, norms, softmax and all sums between kernels are float32, computed lane by lane and reduced in the
//     fixed order of simd.h. Denormals are zero everywhere (FTZ and DAZ, which AMX has built in).
//   - bf16 dot products follow TDPBF16PS (Intel SDM): over each 32 inputs, even and odd inputs accumulate apart, each by
//     fused multiply-add from zero in rising order; then acc += even + odd. Inputs are zero-padded to a multiple of 32.
//   - int8 dot products are exact in int32 over all inputs; then acc * (row scale * column scale), + bias. Where the weight
//     is `rotated`, every 64 inputs of it and of the rows are first multiplied by the Hadamard matrix of order 64, over 8,
//     which leaves the product as it is and spreads outliers, so that 127 steps are enough (QuaRot, arXiv 2404.00456).
//   - int4 dot products are exact in int32 over each group; then, group after group in rising order,
//     acc = fma(float(sum), scale, acc) and acc = fma(float(sum of the row's values), min, acc); then * row scale, + bias.
//   - Attention goes through a row's keys in blocks at absolute positions (attention.cpp), never by what the step holds.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define TG_ABI_VERSION 1

// Levels of instruction sets, each including those below it. Only levels that both the compiler and the processor have
// are built.
enum { TG_SCALAR = 0, TG_AVX2 = 1, TG_AVX512 = 2, TG_AMX = 3, TG_LEVELS = 4 };

// Formats of packed weights.
enum { TG_BF16 = 0, TG_INT8 = 1, TG_INT4 = 2 };

// Formats of cached keys and values.
enum { TG_KV_BF16 = 0, TG_KV_INT8 = 1 };

// A packed weight: y = x W^T + bias for x of `k` and y of `n` values. pack.cpp has the layouts and makes them.
typedef struct {
  int32_t format;  // TG_BF16, TG_INT8, TG_INT4
  int32_t group;   // TG_INT4: inputs a group, 32 or 64; otherwise 0
  int32_t n;       // outputs
  int32_t k;       // inputs, unpadded
  int32_t paired;  // 1: the first n / 2 outputs are a gate and the others its up, packed alternately in blocks of 16
  int32_t rotated;  // 1: TG_INT8 with k a multiple of 64, packed from rotated rows; 0
  const void* data;    // tg_packed_bytes(...) bytes at a multiple of 64
  const float* bias;   // float32 [n] in the order of the outputs, or null
} TgLinear;

enum { TG_DENSE = 0, TG_MOE = 1 };

// One decoder layer: norm, attention, residual, norm, feed-forward, residual.
typedef struct {
  const float* attention_norm;  // float32 [hidden]
  TgLinear qkv;                 // heads * dim queries, kv_heads * dim keys, kv_heads * dim values
  TgLinear out;
  const float* q_norm;  // float32 [head_dim] or null
  const float* k_norm;
  int32_t heads, kv_heads, head_dim;
  int32_t window;  // latest tokens that a query sees, itself included; 0: all
  float scale;
  int32_t kind;           // TG_DENSE, TG_MOE
  const float* mlp_norm;  // float32 [hidden]
  TgLinear gate_up;       // dense; paired
  TgLinear down;
  TgLinear router;  // TG_MOE from here on; always TG_BF16
  int32_t experts, active, renormalise, reserved;
  const TgLinear* expert_gate_up;  // [experts], paired
  const TgLinear* expert_down;     // [experts]
  void* kv;                        // this layer's cache, tg_kv_bytes(...) bytes at a multiple of 64
} TgLayer;

typedef struct {
  int32_t vocab, hidden, layer_count;
  float norm_eps;
  const uint16_t* embedding;  // bf16 [vocab, hidden]
  const float* norm;          // float32 [hidden]
  TgLinear head;
  const TgLayer* layers;  // [layer_count]
  const float* frequencies;  // float32 [rope_dim / 2]
  int32_t rope_dim;          // dimensions of a head that are rotated, from the first on (rotate-half pairing)
  float rope_scale;          // cos and sin are multiplied by it
  int32_t kv_format;         // TG_KV_BF16, TG_KV_INT8
  int32_t block_size;        // tokens of a KV block, a multiple of 16
  int32_t blocks;            // KV blocks of the lane
  int32_t reserved;
} TgModel;

// How the next token of a row is drawn, in this order: edits, bans, temperature, top-k, top-p, min-p, draw. The rule is
// that of kernels/ops/sample.py, to the token wherever float32 rounding of a survivor's weight does not decide.
typedef struct {
  float temperature;  // below 1e-5 greedy: the largest logit, of equals the lowest id
  float top_p, min_p;
  int32_t top_k;  // 0 keeps all
  uint64_t seed;
  int64_t position;  // tokens known before this one
  int32_t edit_count, ban_count;
  const int32_t* edit_ids;    // each at most once
  const float* edit_scales;   // divides a positive logit, multiplies another
  const float* edit_adds;     // added after that
  const int32_t* ban_ids;
  int32_t logprobs;  // the likeliest tokens wanted with their log-probabilities; -1: no statistics at all
  int32_t forced;    // the token that it must be: nothing is drawn (statistics are reported all the same); or -1
} TgSampling;

enum { TG_NUMERIC = -1 };
enum { TG_TOP_LOGPROBS = 32 };  // most that `logprobs` may ask for

// What came of a row. Statistics are of the model's own logits, before edits, bans and temperature; all 0 where the row
// did not ask for them or is TG_NUMERIC.
typedef struct {
  int32_t token;  // TG_NUMERIC: a NaN or +inf in the logits, or none left above -inf
  float logprob;  // natural, of `token`
  float entropy;  // nats
  float margin;   // probability of the likeliest less that of the second
  int32_t top_count;
  int32_t top_ids[TG_TOP_LOGPROBS];
  float top_logprobs[TG_TOP_LOGPROBS];
} TgChosen;

// One forward pass: T tokens of S sequences, each sequence's tokens contiguous and in order.
typedef struct {
  int32_t tokens;      // T
  int32_t sequences;   // S
  int32_t* token_ids;  // [T]; see `repeat`
  int32_t* positions;  // [T], from 0
  const int32_t* query_starts;  // [S + 1], first row of each sequence; the last entry is T
  int32_t* seq_lens;            // [S], tokens in the cache once this step has written its own
  const int32_t* table_rows;    // [S], row of `tables` of each sequence
  const int32_t* tables;        // [table_count, table_width] block ids
  int32_t table_count, table_width;
  int32_t logit_count, reserved;  // R
  const int32_t* logit_rows;      // [R], rows whose logits are wanted, ascending
  const int32_t* experts;     // [T], active experts of each token, or null: the layer's own number
  float* logits;              // [R, vocab], written, or null: not wanted
  const TgSampling* sampling;  // [R], or null: nothing is drawn
  TgChosen* chosen;            // [repeat, R], written when `sampling` is there
  // Several decode steps in one call. Allowed above 1 when each sequence has exactly one token, each has its logits
  // wanted, and the tables hold blocks enough. Behind each step the drawn tokens become the next step's; `token_ids`,
  // `positions` and `seq_lens` are moved on in place. It ends early, between two steps, when a sequence draws one of its
  // stops, a row is TG_NUMERIC, or `wake` is readable.
  int32_t repeat;
  int32_t wake;                // a file descriptor that is polled between steps, or -1
  const int32_t* stop_starts;  // [S + 1] into stop_ids, or null
  const int32_t* stop_ids;
} TgStep;

// Errors of tg_step, all found before anything is written.
enum {
  TG_OK = 0,
  TG_BAD_SHAPE = -1,     // counts or starts that do not fit together
  TG_BAD_TOKEN = -2,     // a token id outside of the vocabulary
  TG_BAD_POSITION = -3,  // a position that is not its sequence's next, or below 0
  TG_BAD_TABLE = -4,     // a block id outside of the pool, or too few blocks
  TG_BAD_SAMPLING = -5,  // an id outside of the vocabulary, or a number outside of its range
  TG_NO_MEMORY = -6
};

// Kernels that have a level of their own.
enum { TG_K_LINEAR = 0, TG_K_ATTENTION, TG_K_ROWS, TG_K_SAMPLE, TG_K_MOE, TG_KERNELS };

typedef struct TgPool TgPool;      // the compute threads, shared by all lanes of a process
typedef struct TgRunner TgRunner;  // a model with its scratch memory

int32_t tg_abi_version(void);
// The best level that this library was built with and this machine (and its kernel, for AMX) allows.
int32_t tg_best_level(void);
// The level at which each kernel would run under the caps `levels`, see tg_runner_open; both [TG_KERNELS].
void tg_kernel_levels(const int32_t* levels, int32_t* out);

enum { TG_MAX_THREADS = 1024 };
// `threads` in all, the calling one included. Waiting threads spin for a bounded time, then sleep. Null without memory.
TgPool* tg_pool_open(int32_t threads);
void tg_pool_close(TgPool*);

// `model` and what it points to must outlive the runner; `max_tokens` is the largest T. `levels` [TG_KERNELS] caps the
// level of each kernel, or null for the best. Null without memory or for a malformed model.
TgRunner* tg_runner_open(const TgModel* model, TgPool* pool, int32_t max_tokens, const int32_t* levels);
void tg_runner_close(TgRunner*);
// Steps done (1 up to `repeat`), or one of the errors above. Not to be called by two threads at once on one pool.
int32_t tg_step(TgRunner*, const TgStep*);

// Packing (pack.cpp). `source` is float32 [n, k].
int64_t tg_packed_bytes(int32_t format, int32_t group, int32_t n, int32_t k, int32_t paired);
int32_t tg_pack(int32_t format, int32_t group, int32_t n, int32_t k, int32_t paired, const float* source, void* out);
// From codes without loss: w = scale * code + min, codes uint8 [n, k] of 0..15, scale and min float16 [n, k / group].
int32_t tg_pack_codes(int32_t group, int32_t n, int32_t k, int32_t paired, const uint8_t* codes, const uint16_t* scale,
                      const uint16_t* min, void* out);
// From int8 without loss: w = scale * value, int8 [n, k], float32 [n].
int32_t tg_pack_int8(int32_t n, int32_t k, int32_t paired, const int8_t* values, const float* scale, void* out);
// Back to float32 [n, k], in the order of the source.
int32_t tg_unpack(int32_t format, int32_t group, int32_t n, int32_t k, int32_t paired, const void* data, float* out);

// Bytes of one layer's cache of `blocks` blocks.
int64_t tg_kv_bytes(int32_t kv_format, int32_t blocks, int32_t block_size, int32_t kv_heads, int32_t head_dim);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
