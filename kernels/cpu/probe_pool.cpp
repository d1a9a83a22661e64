// Runs of the thread pool for tests and benchmarks: counting through barriers, a read of memory from front to back.
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

struct Read {
  const uint64_t* data;
  int64_t count;
  uint64_t* sums;  // [threads], a cache line apart
};

void read(void* argument, int rank, int ranks) {
  const Read& job = *static_cast<Read*>(argument);
  const int64_t lines = job.count / 8;
  uint64_t sums[8] = {};
  for (int64_t line = lines * rank / ranks; line < lines * (rank + 1) / ranks; line++) {
    __builtin_prefetch(job.data + 8 * line + 512);
    for (int i = 0; i < 8; i++) sums[i] ^= job.data[8 * line + i];
  }
  for (int i = 1; i < 8; i++) sums[0] ^= sums[i];
  job.sums[8 * rank] = sums[0];
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

// The exclusive or of `count` 64-bit words, a multiple of 8, read once by all threads together.
TG_PROBE uint64_t tg_probe_pool_read(TgPool* pool, const uint64_t* data, int64_t count) {
  std::vector<uint64_t> sums(8 * (size_t)pool->threads());
  Read job = {data, count, sums.data()};
  pool->run(read, &job);
  uint64_t total = 0;
  for (int rank = 0; rank < pool->threads(); rank++) total ^= sums[8 * (size_t)rank];
  return total;
}
