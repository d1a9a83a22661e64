// A model with its scratch memory: what a step works in.
#pragma once
#include <memory>

#include "abi.h"
#include "arena.h"
#include "kernels.h"
#include "pool.h"

namespace tg {

// Rows of an MLP's inner values that are computed at a time: they stay in the second-level cache.
constexpr int kInnerRows = 256;
// Rows of logits at a time, where the caller does not want them all.
constexpr int kLogitRows = 64;
// Up to so many values a thread prepares by itself, for itself, because sharing the work costs a barrier.
constexpr int64_t kOwnValues = 16384;
constexpr int kOwnRows = 16;

inline int32_t padded(int32_t k) { return (k + 63) / 64 * 64; }

// Room for the inputs of linear kernels.
struct Inputs {
  void* data;
  float* scale;
  int32_t* sums;

  // As `m` rows for `weight`, to be filled by `prepare`.
  Activations rows(const TgLinear& weight, int32_t m) const {
    return {weight.format, m, weight.k, padded(weight.k), data, scale, sums, weight.rotated};
  }
};

// Room for the routing of rows to experts, see MoeArgs.
struct Routing {
  float* logits;
  int32_t* starts;
  int32_t* slot_rows;
  int32_t* row_slots;
  float* row_weights;
};

// What one thread has for itself.
struct Own {
  Inputs inputs, gathered;
  Routing routing;
};

// Sizes that the scratch memory follows from.
struct Sizes {
  int32_t tokens, ranks;
  int32_t width;   // widest input of a linear kernel, padded
  int32_t qkv;     // widest projection
  int32_t heads;   // widest heads * head_dim
  int32_t queries;  // the same with padded dimensions
  int32_t inner;   // widest input of a `down`, unpadded
  int32_t experts, active;  // 0 in a dense model
};

Sizes sizes_of(const TgModel& model, int32_t tokens, int32_t ranks);

struct Scratch {
  float* x;  // the hidden state [T, hidden]
  float* cos;
  float* sin;
  int32_t* owners;
  float* qkv;
  uint16_t* queries;
  float* attended;
  float* inner;
  Inputs inputs;
  void* attention;
  float* last_x;  // rows whose logits are wanted
  float* last_attended;
  int32_t* last_experts;
  float* logits;
  void* sampling;
  TgSampling* next;  // the draws of a repeated step
  Inputs gathered;   // slots of experts from here on
  Routing routing;
  float* outputs;
  Own* own;  // [ranks]
};

}  // namespace tg

struct TgRunner {
  const TgModel& model;
  TgPool& pool;
  const int32_t max_tokens;
  const tg::Kernels kernels;
  tg::Arena arena;
  tg::Scratch scratch;
  std::unique_ptr<tg::Own[]> own;

  TgRunner(const TgModel& model, TgPool& pool, int32_t max_tokens, const tg::Kernels& kernels)
      : model(model), pool(pool), max_tokens(max_tokens), kernels(kernels), scratch() {}
  // Lays out the scratch memory; false where there is none.
  bool reserve();
};
