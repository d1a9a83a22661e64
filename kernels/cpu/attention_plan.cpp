// The sharing of a step's attention among ranks, and the memory that they need.
#include "attention_plan.h"

#include "attention_scratch.h"

namespace tg {

namespace {

int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

enum { SNAP = 16 };  // a border moves to a unit's end where that changes a rank's share by less than one part in so many

}  // namespace

AttentionPlan::AttentionPlan(const AttentionArgs& args, int row_cost, int ranks)
    : args_(args), group_(args.layer->heads / args.layer->kv_heads), row_cost_(row_cost), ranks_(ranks), total_(0) {
  for (int32_t s = 0; s < args.sequences; s++) total_ += sequence_cost(s);
}

int32_t AttentionPlan::rows_of(int32_t sequence) const {
  return (args_.query_starts[sequence + 1] - args_.query_starts[sequence]) * group_;
}

Unit AttentionPlan::unit_of(int32_t sequence, int32_t kv_head, int32_t row_from, int64_t begin) const {
  const int32_t tokens = args_.query_starts[sequence + 1] - args_.query_starts[sequence];
  const int32_t first_position = args_.seq_lens[sequence] - tokens, window = args_.layer->window;
  Unit unit;
  unit.sequence = sequence;
  unit.kv_head = kv_head;
  unit.row_from = row_from;
  unit.row_to = smaller(row_from + UNIT_ROWS, tokens * group_);
  const int32_t oldest = first_position + unit.row_from / group_ + 1 - window;
  unit.key_from = window && oldest > 0 ? oldest : 0;
  unit.key_to = first_position + (unit.row_to - 1) / group_ + 1;
  unit.span_from = unit.key_from / TG_SPAN;
  unit.span_to = (unit.key_to - 1) / TG_SPAN + 1;
  unit.begin = begin;
  unit.cost = (int64_t)(unit.key_to - unit.key_from) * (8 * 64 + (unit.row_to - row_from) * row_cost_);
  return unit;
}

int64_t AttentionPlan::sequence_cost(int32_t sequence) const {
  int64_t cost = 0;
  for (int32_t row = 0, rows = rows_of(sequence); row < rows; row += UNIT_ROWS)
    cost += unit_of(sequence, 0, row, 0).cost;
  return cost * args_.layer->kv_heads;
}

// The parts of a unit that begin before `border`.
int32_t AttentionPlan::parts_before(const Unit& unit, int64_t border) const {
  const int64_t inside = border - unit.begin, tolerance = total_ / ranks_ / SNAP;
  if (inside <= 0) return 0;
  if (inside >= unit.cost) return unit.parts();
  if (inside <= tolerance && inside <= unit.cost - inside) return 0;
  if (unit.cost - inside <= tolerance) return unit.parts();
  return (int32_t)((inside * unit.parts() + unit.cost - 1) / unit.cost);
}

Piece AttentionPlan::piece_of(const Unit& unit, int32_t first, int32_t last) {
  if (unit.few_rows())
    return {unit, unit.row_from, unit.row_to, unit.span_from + first, unit.span_from + last};
  return {unit, unit.row_from + first * ROWS, smaller(unit.row_from + last * ROWS, unit.row_to), unit.span_from,
          unit.span_to};
}

bool AttentionPlan::cut_before(int rank, Cut& cut) const {
  const int64_t at = border(rank);
  int64_t begin = 0;
  for (int32_t s = 0; s < args_.sequences; s++) {
    const int64_t cost = sequence_cost(s);
    if (begin + cost <= at) {
      begin += cost;
      continue;
    }
    for (int32_t head = 0; head < args_.layer->kv_heads; head++)
      for (int32_t row = 0, rows = rows_of(s); row < rows; row += UNIT_ROWS) {
        const Unit unit = unit_of(s, head, row, begin);
        begin += unit.cost;
        if (begin <= at) continue;
        cut = {unit, parts_before(unit, at)};
        return unit.few_rows() && cut.part > 0 && cut.part < unit.parts();
      }
  }
  return false;
}

bool AttentionPlan::splits() const {
  Cut cut;
  for (int rank = 1; rank < ranks_; rank++)
    if (cut_before(rank, cut)) return true;
  return false;
}

int64_t attention_scratch_bytes(const TgModel& model, int ranks) {
  int64_t most = 0;
  for (int32_t i = 0; i < model.layer_count; i++) {
    const int64_t bytes = AttentionScratch::bytes(model, model.layers[i]);
    most = bytes > most ? bytes : most;
  }
  return most * ranks;
}

}  // namespace tg
