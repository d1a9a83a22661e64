// How a step's attention is shared out: pure arithmetic on the shape of the step.
//
// A unit is up to UNIT_ROWS rows of one sequence that share a kv head. A row is one query head of one token; row r of a
// sequence is head r % group of its token r / group. Units follow each other by sequence, kv head and rows, and each rank
// gets a stretch of equal cost. Where a stretch ends within a unit, a unit of many rows is cut between groups of ROWS
// rows, one of few rows between spans, whose results `combine` then merges.
#pragma once
#include <stdint.h>

#include "kernels.h"

namespace tg {

enum { ROWS = 32, UNIT_ROWS = 256 };

struct Unit {
  int32_t sequence, kv_head;
  int32_t row_from, row_to;    // rows of the sequence
  int32_t key_from, key_to;    // positions that any of them sees
  int32_t span_from, span_to;  // the spans of these
  int64_t begin, cost;         // where it lies in the step's work

  bool few_rows() const { return row_to - row_from <= ROWS; }
  int32_t parts() const { return few_rows() ? span_to - span_from : (row_to - row_from + ROWS - 1) / ROWS; }
};

// What one rank does of a unit: all of its rows in spans [span_from, span_to), or rows [row_from, row_to) in all spans.
struct Piece {
  Unit unit;
  int32_t row_from, row_to;
  int32_t span_from, span_to;

  bool from_first_span() const { return span_from == unit.span_from; }
  bool to_last_span() const { return span_to == unit.span_to; }
};

// A unit whose spans two or more ranks share; `part` is the first one behind the cut.
struct Cut {
  Unit unit;
  int32_t part;
};

class AttentionPlan {
 public:
  // `row_cost`: what a row's dot products cost with one key, in 64ths of what it costs to read eight keys and values.
  AttentionPlan(const AttentionArgs& args, int row_cost, int ranks);

  // Calls visit(piece) for everything that `rank` does, in order.
  template <typename Visit>
  void each_piece(int rank, Visit visit) const {
    const int64_t from = border(rank), to = border(rank + 1);
    int64_t begin = 0;
    for (int32_t s = 0; s < args_.sequences && begin < to; s++) {
      const int64_t cost = sequence_cost(s);
      if (begin + cost > from) visit_sequence(s, begin, from, to, visit);
      begin += cost;
    }
  }

  // Whether the border between `rank` - 1 and `rank` cuts a unit between spans.
  bool cut_before(int rank, Cut& cut) const;
  bool splits() const;

 private:
  int64_t border(int rank) const { return total_ / ranks_ * rank + total_ % ranks_ * rank / ranks_; }
  int32_t rows_of(int32_t sequence) const;
  Unit unit_of(int32_t sequence, int32_t kv_head, int32_t row_from, int64_t begin) const;
  int64_t sequence_cost(int32_t sequence) const;
  int32_t parts_before(const Unit& unit, int64_t border) const;

  template <typename Visit>
  void visit_sequence(int32_t s, int64_t begin, int64_t from, int64_t to, Visit& visit) const {
    for (int32_t head = 0; head < args_.layer->kv_heads; head++)
      for (int32_t row = 0, rows = rows_of(s); row < rows; row += UNIT_ROWS) {
        const Unit unit = unit_of(s, head, row, begin);
        begin += unit.cost;
        const int32_t first = parts_before(unit, from), last = parts_before(unit, to);
        if (first < last) visit(piece_of(unit, first, last));
      }
  }
  static Piece piece_of(const Unit& unit, int32_t first, int32_t last);

  const AttentionArgs& args_;
  int32_t group_;  // query heads of a kv head
  int32_t row_cost_, ranks_;
  int64_t total_;
};

}  // namespace tg
