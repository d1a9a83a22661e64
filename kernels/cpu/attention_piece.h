// A piece of a step's attention at work: its rows, what each of them sees, and what was found so far.
#pragma once
#include "attention_scratch.h"
#include "attention_softmax.h"
#include "attention_span.h"

namespace tg {
namespace TG_NS {

// Rows are numbered from 0 within the piece.
class PieceWork {
 public:
  PieceWork(const AttentionArgs& args, const AttentionScratch& scratch, const Piece& piece)
      : scratch(scratch),
        rows(piece.row_to - piece.row_from),
        dim(padded_dim(args.layer->head_dim)),
        args_(args),
        layer_(*args.layer),
        piece_(piece),
        group_(layer_.heads / layer_.kv_heads),
        factor_(layer_.scale * 1.44269504088896341f),  // log2(e)
        state_(scratch.state()) {
    const int32_t tokens = args.query_starts[piece.unit.sequence + 1] - args.query_starts[piece.unit.sequence];
    const int32_t first_position = args.seq_lens[piece.unit.sequence] - tokens;
    for (int r = 0; r < rows; r++) {
      const int32_t position = first_position + (piece.row_from + r) / group_;
      scratch.first_key()[r] = layer_.window && position >= layer_.window ? position - layer_.window + 1 : 0;
      scratch.end_key()[r] = position + 1;
      state_.total[r] = 0.0f;
    }
  }

  // The queries as float32 or bf16 [rows, dim].
  void gather_queries(float* out) const {
    for (int r = 0; r < rows; r++)
      for (int d = 0; d < dim; d++) *out++ = from_bf16(query(r)[d]);
  }
  void gather_queries(uint16_t* out) const {
    for (int r = 0; r < rows; r++, out += dim) memcpy(out, query(r), sizeof *out * dim);
  }

  // Keys of the span that a row sees; none where `to` is not above `from`.
  int from(const SpanPages& pages, int row) const {
    const int32_t first = scratch.first_key()[row] - pages.first;
    return first > 0 ? first : 0;
  }
  int to(const SpanPages& pages, int row) const {
    const int32_t end = scratch.end_key()[row] - pages.first;
    return end < TG_SPAN ? end : (int)TG_SPAN;
  }

  // Turns scores [count, SCORE_STRIDE] of rows from `row` on into weights [count, stride] for keys [begin, end), multiples
  // of 16 around what any of them sees. A row that sees none has a total of 0. The result lasts until the next call.
  template <typename Pages, typename Weight>
  const Peak* soften(const Pages& pages, int row, int count, float* scores, Weight* weights, int stride, int begin,
                     int end) const {
    Peak* peaks = scratch.peaks();
    auto softmax = [&](int r) {
      return RowSoftmax<Pages>(pages, scores + r * SCORE_STRIDE, from(pages, row + r), to(pages, row + r), factor_);
    };
    auto sees = [&](int r) { return from(pages, row + r) < to(pages, row + r); };
    // All peaks first: each is a chain of instructions that wait for one another, which the next row's can overtake.
    for (int r = 0; r < count; r++) peaks[r].peak = sees(r) ? softmax(r).find_peak() : 0.0f;
    for (int r = 0; r < count; r++) {
      Weight* mine = weights + r * stride;
      const int seen_from = sees(r) ? from(pages, row + r) & ~15 : end;
      const int seen_to = sees(r) ? (to(pages, row + r) + 15) & ~15 : end;
      for (int k = begin; k < seen_from; k += 16) store_weights(mine + k, zero());
      for (int k = seen_to; k < end; k += 16) store_weights(mine + k, zero());
      peaks[r].total = sees(r) ? softmax(r).weigh(peaks[r].peak, mine) : 0.0f;
    }
    return peaks;
  }

  // Adds `sums` [count, dim] to what was found so far.
  void add(int row, int count, const Peak* peaks, const float* sums) const {
    for (int r = 0; r < count; r++)
      if (peaks[r].total != 0.0f) merge(state_, row + r, dim, peaks[r], sums + r * dim);
  }

  // A span was done.
  void end_span(int32_t span) const {
    if (!piece_.from_first_span()) hand_over(1 + span - piece_.span_from);
  }
  // All were.
  void end() const {
    if (!piece_.from_first_span()) return;
    if (!piece_.to_last_span()) return hand_over(0);
    for (int r = 0; r < rows; r++) finish(state_, r, dim, layer_.head_dim, args_.out + place(r) * layer_.head_dim);
  }

  const AttentionScratch& scratch;
  const int rows, dim;

 private:
  // Number of a row's query head among those of the step.
  int64_t place(int row) const {
    const int32_t r = piece_.row_from + row, head = piece_.unit.kv_head * group_ + r % group_;
    return ((int64_t)args_.query_starts[piece_.unit.sequence] + r / group_) * layer_.heads + head;
  }
  const uint16_t* query(int row) const { return args_.queries + place(row) * dim; }

  // What was found since the last time goes to `combine`.
  void hand_over(int64_t slot) const {
    const Partial to = scratch.slot(slot);
    memcpy(to.peak, state_.peak, sizeof(float) * rows);
    memcpy(to.total, state_.total, sizeof(float) * rows);
    memcpy(to.sum, state_.sum, sizeof(float) * rows * dim);
    for (int r = 0; r < rows; r++) state_.total[r] = 0.0f;
  }

  const AttentionArgs& args_;
  const TgLayer& layer_;
  const Piece& piece_;
  const int group_;
  const float factor_;
  const Partial state_;
};

}  // namespace TG_NS
}  // namespace tg
