// Paged attention, prefill chunks and decode rows alike; compiled once per level.
//
// What makes a row's bits independent of the step: its keys are taken in spans of TG_SPAN positions from 0 on. In a span,
// scores are bf16 dot products over the head's dimensions; with p = 2^(score * factor - the span's largest), rounded to
// bf16, the output is a bf16 dot product over the span's keys, in 32s from its start. Spans are merged one by one in
// rising order. A key that a row does not see weighs 0 exactly, a span of which it sees none is left out.
#include "attention_lanes.h"
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
constexpr int kTilesFrom = LANE_ROWS + 1;  // rows from which tiles are faster
#else
constexpr int kRowCost = 100;
#endif

template <typename Pages>
void attend_span(const PieceWork& work, const Pages& pages, const Ahead& ahead) {
#if TG_LEVEL >= 3
  if (work.rows > TILE_ROWS) return attend_many_by_tiles(work, pages);
  if (work.rows >= kTilesFrom) return attend_few_by_tiles(work, pages, ahead);
#endif
  attend_by_lanes(work, pages, ahead);
}

// `next`: what this rank does afterwards, or null.
void attend_piece(const AttentionArgs& args, const AttentionScratch& scratch, const Piece& piece, const Piece* next) {
  const PieceWork work(args, scratch, piece);
#if TG_LEVEL >= 3
  if (work.rows >= kTilesFrom) {
    work.gather_queries((uint16_t*)scratch.queries());
  } else {
    work.gather_queries((float*)scratch.queries());
  }
#else
  work.gather_queries((float*)scratch.queries());
#endif
  SpanPages pages(args, piece.unit, piece.span_from);
  for (int32_t span = piece.span_from; span < piece.span_to; span++) {
    const bool more = span + 1 < piece.span_to;
    const SpanPages coming = more ? SpanPages(args, piece.unit, span + 1)
                             : next ? SpanPages(args, next->unit, next->span_from)
                                    : pages;
    const Ahead ahead(pages, more || next ? &coming : nullptr);
    if (args.model->kv_format == TG_KV_BF16) {
      attend_span(work, Bf16Pages(pages), ahead);
    } else {
      attend_span(work, Int8Pages(pages), ahead);
    }
    work.end_span(span);
    pages = coming;
  }
  work.end();
}

void attend(const AttentionArgs& args, int rank, int ranks) {
  const AttentionScratch scratch(args.scratch, rank, *args.model, *args.layer);
  Piece current;
  bool any = false;
  AttentionPlan(args, kRowCost, ranks).each_piece(rank, [&](const Piece& piece) {
    if (any) attend_piece(args, scratch, current, &piece);
    current = piece;
    any = true;
  });
  if (any) attend_piece(args, scratch, current, nullptr);
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
