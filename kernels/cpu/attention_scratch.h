// The memory that a rank works in while it attends, and the partial results that it leaves for `combine`.
#pragma once
#include <stdint.h>

#include "attention_plan.h"
#include "kv_layout.h"

namespace tg {

// Softmax over some keys of a number of rows: the output is `sum / total`, its weights are relative to 2^`peak`. A row
// that saw no key has total 0.
struct Peak {
  float peak, total;
};

struct Partial {
  float* peak;   // [rows], log2 of the largest weight
  float* total;  // [rows]
  float* sum;    // [rows, dim]

  static int64_t floats(int64_t rows, int64_t dim) { return rows * (2 + dim); }
};

// Values from a row to the next: a span and another cache line, as rows that lie a power of two apart are slow.
enum { SCORE_STRIDE = TG_SPAN + 16, WEIGHT_STRIDE = TG_SPAN + 32 };

class AttentionScratch {
 public:
  AttentionScratch(void* memory, int rank, const TgModel& model, const TgLayer& layer)
      : dim_(padded_dim(layer.head_dim)), base_((char*)memory + rank * bytes(model, layer)) {}

  static int64_t bytes(const TgModel& model, const TgLayer& layer) {
    const int64_t spans = (int64_t)model.blocks * model.block_size / TG_SPAN + 1, dim = padded_dim(layer.head_dim);
    return slots_at(dim) + (1 + spans) * slot_bytes(dim);
  }

  int32_t* first_key() const { return (int32_t*)base_; }          // [UNIT_ROWS], the first position that a row sees
  int32_t* end_key() const { return (int32_t*)base_ + UNIT_ROWS; }  // [UNIT_ROWS], the position behind the last one
  Peak* peaks() const { return (Peak*)((int32_t*)base_ + 2 * UNIT_ROWS); }  // [ROWS]
  float* scores() const { return (float*)(base_ + kScoresAt); }          // [ROWS, SCORE_STRIDE]
  uint16_t* weights() const { return (uint16_t*)(base_ + kWeightsAt); }  // bf16 [ROWS, WEIGHT_STRIDE]
  // The queries of a unit, as the path in use wants them: float32 or bf16 [UNIT_ROWS, dim].
  void* queries() const { return base_ + kQueriesAt; }
  float* sums() const { return (float*)(base_ + kQueriesAt + 4 * UNIT_ROWS * dim_); }  // [ROWS, dim]
  uint16_t* keys() const { return (uint16_t*)(sums() + ROWS * dim_); }   // bf16 [TG_SPAN / 16, dim / 2, 16, 2]
  uint16_t* values() const { return keys() + TG_SPAN * dim_; }           // bf16 [TG_SPAN / 2, dim, 2]
  Partial state() const { return partial((float*)(values() + TG_SPAN * dim_), UNIT_ROWS); }
  // Results of a piece whose unit is cut: slot 0 has a piece that begins with the unit, slot 1 + i the piece's i-th span
  // otherwise.
  Partial slot(int64_t i) const { return partial((float*)(base_ + slots_at(dim_) + i * slot_bytes(dim_)), ROWS); }

 private:
  enum : int64_t {
    kScoresAt = 2 * 4 * UNIT_ROWS + 8 * ROWS,
    kWeightsAt = kScoresAt + 4 * ROWS * SCORE_STRIDE,
    kQueriesAt = kWeightsAt + 2 * ROWS * WEIGHT_STRIDE,
  };
  static int64_t slots_at(int64_t dim) {
    return kQueriesAt + 4 * UNIT_ROWS * dim + 4 * ROWS * dim + 4 * TG_SPAN * dim + 4 * Partial::floats(UNIT_ROWS, dim);
  }
  static int64_t slot_bytes(int64_t dim) { return 4 * Partial::floats(ROWS, dim); }
  static Partial partial(float* at, int64_t rows) { return {at, at + rows, at + 2 * rows}; }

  int64_t dim_;
  char* base_;
};

}  // namespace tg
