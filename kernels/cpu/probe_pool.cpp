// Runs of the thread pool for tests: every thread counts through barriers, in lockstep with the others.
#include <string.h>

#include "pool.h"
#include "probe.h"

namespace {

struct Count {
  TgPool* pool;
  int32_t* turns;  // [threads], how often each thread has passed
  int32_t rounds;
  int32_t faults;
};

// Between two barriers every thread adds one to its number, and then sees those of all others.
void count(void* argument, int rank, int ranks) {
  Count& job = *static_cast<Count*>(argument);
  for (int32_t round = 1; round <= job.rounds; round++) {
    job.turns[rank]++;
    job.pool->barrier();
    int32_t wrong = 0;
    for (int i = 0; i < ranks; i++) wrong += job.turns[i] != job.turns[rank];
    if (wrong) __atomic_fetch_add(&job.faults, wrong, __ATOMIC_RELAXED);
    job.pool->barrier();
  }
}

struct Denormal {
  float tiny;
  float* out;  // [threads]
};

void halve(void* argument, int rank, int) {
  Denormal& job = *static_cast<Denormal*>(argument);
  volatile float tiny = job.tiny;
  job.out[rank] = tiny * 0.5f;
}

}  // namespace

// How often a thread saw another one out of step: 0. `turns` int32 [threads], each raised by `rounds`.
TG_PROBE int32_t tg_probe_pool_count(TgPool* pool, int32_t rounds, int32_t* turns) {
  Count job = {pool, turns, rounds, 0};
  pool->run(count, &job);
  return job.faults;
}

// Half of `tiny` as each thread computes it during a run, float32 [threads].
TG_PROBE void tg_probe_pool_halve(TgPool* pool, float tiny, float* out) {
  Denormal job = {tiny, out};
  pool->run(halve, &job);
}
