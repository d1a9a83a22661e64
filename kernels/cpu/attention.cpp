// Paged attention, prefill chunks and decode rows alike; compiled once per level.
//
// What makes a row's bits independent of the step: its keys are taken in spans of TG_SPAN positions from 0 on. In a span,
// scores are bf16 dot products over the head's dimensions; with p = 2^(score * factor - the span's largest), rounded to
// bf16, the output is a bf16 dot product over the span's keys, in 32s from its start. Spans are merged one by one in
// rising order. A key that a row does not see weighs 0 exactly, a span of which it sees none is left out.
#include "attention_lanes.h"
#include "attention_plan.h"
#include "attention_scratch.h"
#include "attention_softmax.h"
#include "kernels.h"
#include "rope_kv.h"
#if TG_LEVEL >= 3
#include "attention_tiles.h"
#endif

namespace tg {
namespace TG_NS {
namespace {

#if TG_LEVEL >= 3
constexpr int kRowCost = 8;
constexpr int kTilesFrom = 5;  // rows from which tiles are faster
#else
constexpr int kRowCost = 100;
#endif
#if TG_LEVEL >= 2
constexpr int kLaneRows = 4, kLaneBlocks = 2;  // as many as the registers hold
#else
constexpr int kLaneRows = 2, kLaneBlocks = 1;
#endif

// A piece at work: its rows are numbered from 0 here.
class Worker {
 public:
  Worker(const AttentionArgs& args, const AttentionScratch& scratch, const Piece& piece, const Piece* next, bool first)
      : args_(args),
        layer_(*args.layer),
        scratch_(scratch),
        piece_(piece),
        next_(next),
        first_(first),
        state_(scratch.state()),
        dim_(padded_dim(args.layer->head_dim)),
        rows_(piece.row_to - piece.row_from),
        group_(layer_.heads / layer_.kv_heads),
        factor_(layer_.scale * 1.44269504088896341f) {
    const int32_t tokens = args.query_starts[piece.unit.sequence + 1] - args.query_starts[piece.unit.sequence];
    const int32_t first_position = args.seq_lens[piece.unit.sequence] - tokens;
    for (int r = 0; r < rows_; r++) {
      const int32_t position = first_position + (piece.row_from + r) / group_;
      scratch.first_key()[r] = layer_.window && position >= layer_.window ? position - layer_.window + 1 : 0;
      scratch.end_key()[r] = position + 1;
    }
  }

  void run() {
#if TG_LEVEL >= 3
    if (rows_ >= kTilesFrom) {
      gather_queries<uint16_t>();
      if (args_.model->kv_format == TG_KV_BF16) return spans<Bf16Pages, true>();
      return spans<Int8Pages, true>();
    }
#endif
    gather_queries<float>();
    if (args_.model->kv_format == TG_KV_BF16) return spans<Bf16Pages, false>();
    spans<Int8Pages, false>();
  }

 private:
  const uint16_t* query(int row) const {
    const int32_t r = piece_.row_from + row, head = piece_.unit.kv_head * group_ + r % group_;
    const int64_t token = args_.query_starts[piece_.unit.sequence] + r / group_;
    return args_.queries + (token * layer_.heads + head) * dim_;
  }

  float* output(int row) const {
    const int32_t r = piece_.row_from + row, head = piece_.unit.kv_head * group_ + r % group_;
    const int64_t token = args_.query_starts[piece_.unit.sequence] + r / group_;
    return args_.out + (token * layer_.heads + head) * layer_.head_dim;
  }

  template <typename Value>
  void gather_queries() {
    Value* out = (Value*)scratch_.queries();
    for (int r = 0; r < rows_; r++, out += dim_) {
      const uint16_t* from = query(r);
      if (sizeof(Value) == 2) {
        memcpy(out, from, 2 * (size_t)dim_);
      } else {
        for (int d = 0; d < dim_; d++) out[d] = (Value)from_bf16(from[d]);
      }
    }
  }

  template <typename Pages, bool tiles>
  void spans() {
    clear();
    SpanPages now(args_, piece_.unit, piece_.span_from);
    for (int32_t span = piece_.span_from; span < piece_.span_to; span++) {
      const bool more = span + 1 < piece_.span_to;
      const SpanPages next = more ? SpanPages(args_, piece_.unit, span + 1)
                             : next_ ? SpanPages(args_, next_->unit, next_->span_from)
                                     : now;
      const Ahead ahead(now, more || next_ ? &next : nullptr);
      const Pages pages(now);
      if (tiles) {
        span_by_tiles(pages, ahead);
      } else {
        span_by_lanes(pages, ahead);
      }
      now = next;
      if (!piece_.from_first_span()) hand_over(1 + span - piece_.span_from);
    }
    if (!piece_.from_first_span()) return;
    if (!piece_.to_last_span()) return hand_over(0);
    for (int r = 0; r < rows_; r++) finish(state_, r, dim_, layer_.head_dim, output(r));
  }

  void clear() {
    for (int r = 0; r < rows_; r++) state_.total[r] = 0.0f;
  }

  // What was found so far goes to `combine`.
  void hand_over(int64_t slot) {
    const Partial to = scratch_.slot(slot);
    memcpy(to.peak, state_.peak, 4 * (size_t)rows_);
    memcpy(to.total, state_.total, 4 * (size_t)rows_);
    memcpy(to.sum, state_.sum, 4 * (size_t)rows_ * dim_);
    clear();
  }

  // Keys of the span that row `row` sees.
  int from(const SpanPages& pages, int row) const {
    const int32_t first = scratch_.first_key()[row] - pages.first;
    return first > 0 ? first : 0;
  }
  int to(const SpanPages& pages, int row) const {
    const int32_t end = scratch_.end_key()[row] - pages.first;
    return end < TG_SPAN ? end : (int)TG_SPAN;
  }

  template <typename Pages>
  void span_by_lanes(const Pages& pages, const Ahead& ahead) {
    int row = 0;
    for (; row + kLaneRows <= rows_; row += kLaneRows) lane_rows<kLaneRows>(pages, row ? nullptr : &ahead, row);
    if (kLaneRows > 2 && row + 3 == rows_) return lane_rows<3>(pages, row ? nullptr : &ahead, row);
    if (kLaneRows > 2 && row + 2 == rows_) return lane_rows<2>(pages, row ? nullptr : &ahead, row);
    if (row + 1 == rows_) lane_rows<1>(pages, row ? nullptr : &ahead, row);
  }

  template <int R, typename Pages>
  void lane_rows(const Pages& pages, const Ahead* ahead, int row) {
    const int first = from(pages, row), end = to(pages, row + R - 1);
    if (first >= end) return;
    float* scores = scratch_.scores();
    lane_scores<R>(pages, ahead, first / 16, (end + 15) / 16, (const float*)scratch_.queries() + row * dim_, scores);
    Peak peaks[R];
    bool sees[R];
    for (int r = 0; r < R; r++) {
      const int a = from(pages, row + r), b = to(pages, row + r);
      sees[r] = a < b;
      float* mine = scores + r * TG_SPAN;
      const int seen_from = sees[r] ? a & ~15 : end, seen_to = sees[r] ? (b + 15) & ~15 : end;
      if (sees[r]) peaks[r] = RowSoftmax<Pages>(pages, mine, a, b, factor_).run(mine);
      for (int k = first & ~15; k < seen_from; k++) mine[k] = 0.0f;
      for (int k = seen_to; k < end; k++) mine[k] = 0.0f;
    }
    lane_values<R, kLaneBlocks>(pages, ahead, first & ~15, end, scores, scratch_.sums());
    for (int r = 0; r < R; r++)
      if (sees[r]) merge(state_, row + r, dim_, peaks[r], scratch_.sums() + r * dim_);
  }

#if TG_LEVEL >= 3
  template <typename Pages>
  void span_by_tiles(const Pages& pages, const Ahead& ahead) {
    if (rows_ <= TILE_ROWS) return span_of_few(pages, ahead);
    TileSpan<Pages> span(pages, scratch_.keys(), scratch_.values());
    for (int row = 0; row < rows_; row += ROWS) {
      const int rows = rows_ - row < ROWS ? rows_ - row : (int)ROWS;
      const int first = from(pages, row) & ~(STEP - 1), end = to(pages, row + rows - 1);
      if (first >= end) continue;
      const int steps_end = (end + STEP - 1) & ~(STEP - 1);
      const int upper = rows < TILE_ROWS ? rows : (int)TILE_ROWS;
      TileShape(upper, rows - upper).load();
      const uint16_t* queries = (const uint16_t*)scratch_.queries() + row * dim_;
      if (rows > TILE_ROWS) {
        tile_scores<true>(span, dim_, first, steps_end, queries, scratch_.scores());
      } else {
        tile_scores<false>(span, dim_, first, steps_end, queries, scratch_.scores());
      }
      Peak peaks[ROWS];
      for (int r = 0; r < rows; r++) peaks[r] = tile_weights(pages, row + r, r, first, steps_end);
      if (rows > TILE_ROWS) {
        tile_sums<true>(span.values(), dim_, first, steps_end, scratch_.weights(), scratch_.sums());
      } else {
        tile_sums<false>(span.values(), dim_, first, steps_end, scratch_.weights(), scratch_.sums());
      }
      for (int r = 0; r < rows; r++)
        if (peaks[r].total != 0.0f) merge(state_, row + r, dim_, peaks[r], scratch_.sums() + r * dim_);
    }
    _tile_release();
  }

  template <typename Pages>
  void span_of_few(const Pages& pages, const Ahead& ahead) {
    const int first = pages.from & ~(STEP - 1), end = (pages.to + STEP - 1) & ~(STEP - 1);
    TileShape(rows_, 0).load();
    stream_scores(pages, ahead, first, end, (const uint16_t*)scratch_.queries(), scratch_.scores(), scratch_.keys());
    Peak peaks[TILE_ROWS];
    for (int r = 0; r < rows_; r++) peaks[r] = tile_weights(pages, r, r, first, end);
    stream_sums(pages, ahead, rows_, first, end, scratch_.weights(), scratch_.sums(), scratch_.values());
    for (int r = 0; r < rows_; r++)
      if (peaks[r].total != 0.0f) merge(state_, r, dim_, peaks[r], scratch_.sums() + r * dim_);
    _tile_release();
  }

  // Weights of row `row` for keys [first, end), at row `r` of the scores.
  template <typename Pages>
  Peak tile_weights(const Pages& pages, int row, int r, int first, int end) {
    uint16_t* weights = scratch_.weights() + r * TG_SPAN;
    const int a = from(pages, row), b = to(pages, row);
    if (a >= b) {
      memset(weights + first, 0, 2 * (size_t)(end - first));
      return {0.0f, 0.0f};
    }
    const int seen_from = a & ~15, seen_to = (b + 15) & ~15;
    memset(weights + first, 0, 2 * (size_t)(seen_from - first));
    memset(weights + seen_to, 0, 2 * (size_t)(end - seen_to));
    return RowSoftmax<Pages>(pages, scratch_.scores() + r * TG_SPAN, a, b, factor_).run(weights);
  }
#else
  template <typename Pages>
  void span_by_tiles(const Pages&, const Ahead&) {}
#endif

  const AttentionArgs& args_;
  const TgLayer& layer_;
  const AttentionScratch& scratch_;
  const Piece& piece_;
  const Piece* const next_;
  const bool first_;
  const Partial state_;
  const int dim_, rows_, group_;
  const float factor_;
};

void attend(const AttentionArgs& args, int rank, int ranks) {
  const AttentionScratch scratch(args.scratch, rank, *args.model, *args.layer);
  Piece current;
  int count = 0;
  AttentionPlan(args, kRowCost, ranks).each_piece(rank, [&](const Piece& piece) {
    if (count > 0) Worker(args, scratch, current, &piece, count == 1).run();
    current = piece;
    count++;
  });
  if (count > 0) Worker(args, scratch, current, nullptr, count == 1).run();
}

bool splits(const AttentionArgs& args, int ranks) { return AttentionPlan(args, kRowCost, ranks).splits(); }

// Merges row `row` of a cut unit: `rank` - 1 has its beginning, `rank` and perhaps others what follows.
void combine_row(const AttentionArgs& args, const AttentionPlan& plan, const Cut& first, int rank, int ranks, int row) {
  const TgLayer& layer = *args.layer;
  const int dim = padded_dim(layer.head_dim), group = layer.heads / layer.kv_heads;
  auto slot = [&](int of, int64_t i) { return AttentionScratch(args.scratch, of, *args.model, layer).slot(i); };
  const Partial state = slot(rank - 1, 0);
  for (int32_t part = first.part; part < first.unit.parts(); rank++) {
    Cut next;
    const bool more = rank + 1 < ranks && plan.cut_before(rank + 1, next) && next.unit.begin == first.unit.begin;
    const int32_t begin = part, end = more ? next.part : first.unit.parts();
    for (; part < end; part++) {
      const Partial from = slot(rank, 1 + part - begin);
      if (from.total[row] != 0.0f)
        merge(state, row, dim, {from.peak[row], from.total[row]}, from.sum + (int64_t)row * dim);
    }
  }
  const int32_t r = first.unit.row_from + row, head = first.unit.kv_head * group + r % group;
  const int64_t token = args.query_starts[first.unit.sequence] + r / group;
  finish(state, row, dim, layer.head_dim, args.out + (token * layer.heads + head) * layer.head_dim);
}

// Shared out by rows.
void combine(const AttentionArgs& args, int rank, int ranks) {
  const AttentionPlan plan(args, kRowCost, ranks);
  int64_t done = -1;
  for (int border = 1; border < ranks; border++) {
    Cut cut;
    if (!plan.cut_before(border, cut) || cut.unit.begin == done) continue;
    done = cut.unit.begin;
    for (int row = rank; row < cut.unit.row_to - cut.unit.row_from; row += ranks)
      combine_row(args, plan, cut, border, ranks, row);
  }
}

}  // namespace

const AttentionKernels attention_kernels = {rope_kv, attend, splits, combine};

}  // namespace TG_NS
}  // namespace tg
