// tg_step: checks a plan, runs it on the pool, and again while it repeats.
#include <poll.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "forward.h"
#include "runner.h"
#include "validate.h"

namespace tg {
namespace {

struct Job {
  TgRunner& runner;
  const TgStep& step;
  int32_t done;
  bool more;  // written by rank 0 between two barriers
};

bool is_stop(const TgStep& step, int32_t sequence, int32_t token) {
  if (!step.stop_starts) return false;
  const int32_t* end = step.stop_ids + step.stop_starts[sequence + 1];
  return std::find(step.stop_ids + step.stop_starts[sequence], end, token) != end;
}

bool is_readable(int32_t file) {
  pollfd asked = {file, POLLIN, 0};
  return file >= 0 && poll(&asked, 1, 0) > 0;
}

// Whether another step follows the one that drew `chosen`; if so, that one's tokens are put in.
bool move_on(Job& job, const TgChosen* chosen) {
  const TgStep& step = job.step;
  if (++job.done == step.repeat) return false;
  for (int32_t s = 0; s < step.sequences; s++)
    if (chosen[s].token == TG_NUMERIC || is_stop(step, s, chosen[s].token)) return false;
  if (is_readable(step.wake)) return false;
  TgSampling* next = job.runner.scratch.next;
  for (int32_t s = 0; s < step.sequences; s++) {
    step.token_ids[s] = chosen[s].token;
    step.positions[s]++;
    step.seq_lens[s]++;
    next[s] = step.sampling[s];
    next[s].position += job.done;
  }
  return true;
}

void run_rank(void* argument, int rank, int ranks) {
  Job& job = *static_cast<Job*>(argument);
  TgPool& pool = job.runner.pool;
  Forward forward(job.runner, job.step, rank, ranks);
  const TgSampling* sampling = job.step.sampling;
  TgChosen* chosen = job.step.chosen;
  for (;;) {
    forward.run(sampling, chosen);
    if (job.step.repeat == 1) return;  // what `run` of the pool waits for
    pool.barrier();
    if (rank == 0) job.more = move_on(job, chosen);
    pool.barrier();
    if (!job.more) return;
    sampling = job.runner.scratch.next;
    chosen += job.step.logit_count;
  }
}

}  // namespace
}  // namespace tg

TgRunner* tg_runner_open(const TgModel* model, TgPool* pool, int32_t max_tokens, const int32_t* levels) {
  if (!model || !pool || max_tokens < 1 || max_tokens > 1 << 20 || !tg::is_sound(*model)) return nullptr;
  std::unique_ptr<TgRunner> runner(
      new (std::nothrow) TgRunner(*model, *pool, max_tokens, tg::choose_kernels(levels)));
  return runner && runner->reserve() ? runner.release() : nullptr;
}

void tg_runner_close(TgRunner* runner) { delete runner; }

int32_t tg_step(TgRunner* runner, const TgStep* step) {
  if (const int32_t fault = tg::find_fault(runner->model, *step, runner->max_tokens)) return fault;
  tg::Job job = {*runner, *step, 0, false};
  if (step->tokens > 0) runner->pool.run(tg::run_rank, &job);
  return std::max(job.done, 1);
}
