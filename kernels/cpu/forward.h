// One rank's walk through a forward pass.
#pragma once
#include "runner.h"

namespace tg {

// Every rank of the pool makes one of its own for a step and calls the same methods in the same order; the barriers are
// inside. Rows of `x` are shared out evenly; columns of a product as its kernel says.
class Forward {
 public:
  Forward(TgRunner& runner, const TgStep& step, int rank, int ranks)
      : model_(runner.model),
        kernels_(runner.kernels),
        pool_(runner.pool),
        scratch_(runner.scratch),
        own_(runner.scratch.own[rank]),
        step_(step),
        rank_(rank),
        ranks_(ranks) {}

  // From token ids to written logits and drawn tokens; `sampling` is that of the step, or what it has become.
  void run(const TgSampling* sampling, TgChosen* chosen);

 private:
  // The hidden state of some rows, and what a layer knows of them.
  struct Rows {
    int32_t count;
    float* x;               // [count, hidden]
    float* attended;        // [count, heads * dim]
    const int32_t* experts;  // [count] or null
  };

  int32_t first(int32_t rows) const { return (int32_t)((int64_t)rows * rank_ / ranks_); }
  int32_t last(int32_t rows) const { return (int32_t)((int64_t)rows * (rank_ + 1) / ranks_); }
  bool by_itself(int32_t rows, int32_t width) const;
  Activations prepare(const float* x, int64_t stride, const float* norm, const TgLinear& weight, int32_t rows);
  void multiply(const TgLinear& weight, const Activations& x, float* out, int64_t stride, Epilogue epilogue);

  void begin();
  void attention(const TgLayer& layer, bool wanted);
  Rows wanted_rows(const TgLayer& layer, const Rows& all);
  void dense(const TgLayer& layer, const Rows& rows);
  void sparse(const TgLayer& layer, const Rows& rows);
  MoeArgs route(const TgLayer& layer, const Rows& rows, bool alone);
  Activations gather(const Activations& from, const MoeArgs& moe, bool alone);
  void multiply_experts(const TgLinear* weights, const Activations& x, const MoeArgs& moe, float* out, int64_t stride,
                        Epilogue epilogue);
  void choose(const Rows& rows, const TgSampling* sampling, TgChosen* chosen);

  const TgModel& model_;
  const Kernels& kernels_;
  TgPool& pool_;
  Scratch& scratch_;
  Own& own_;
  const TgStep& step_;
  const int rank_, ranks_;
};

}  // namespace tg
