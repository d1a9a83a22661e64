// The compute threads of a process, and the barrier between kernels.
#include "pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "abi.h"
#include "denormals.h"

namespace {

// A rest is some 45 nanoseconds on current cores, so 20 microseconds: longer than neighbours' shares differ by, far
// shorter than a time slice.
constexpr int kSpins = 400;
// Some 100 microseconds behind those, the length of the host's work between two steps; then sleep.
constexpr int kYields = 200;

inline void rest() {
#if defined __x86_64__
  __builtin_ia32_pause();
#elif defined __aarch64__
  __asm__ volatile("yield");
#endif
}

void sleep_while(const std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

std::unique_ptr<TgPool> TgPool::open(int threads) {
  std::unique_ptr<TgPool> pool(new (std::nothrow) TgPool(threads));
  if (!pool) return nullptr;
  pool->workers_.reset(new (std::nothrow) Worker[threads]);
  if (!pool->workers_) return nullptr;
  // Signals are the main thread's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int rank = 1; rank < threads; rank++) {
    Worker& worker = pool->workers_[rank];
    worker = {pool.get(), rank, {}};
    if (pthread_create(&worker.thread, nullptr, work, &worker) != 0) break;
    pool->started_++;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return pool->started_ == threads - 1 ? std::move(pool) : nullptr;
}

TgPool::~TgPool() {
  function_ = nullptr;
  job_.fetch_add(1);
  wake_all(job_);
  for (int rank = 1; rank <= started_; rank++) pthread_join(workers_[rank].thread, nullptr);
}

void TgPool::run(Function function, void* argument) {
  const tg::DenormalsAreZero mode;
  function_ = function;
  argument_ = argument;
  // Both sequentially consistent: either a worker sees the new job before it sleeps, or it is counted here.
  job_.fetch_add(1);
  if (sleepers_.load() > 0) wake_all(job_);
  function(argument, 0, threads_);
  barrier();
}

void TgPool::barrier() {
  if (threads_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; spins++)
    spins < kSpins ? rest() : (void)sched_yield();
}

uint32_t TgPool::wait_for_job(uint32_t last) {
  for (int turns = 0; turns < kSpins + kYields; turns++) {
    const uint32_t job = job_.load(std::memory_order_acquire);
    if (job != last) return job;
    turns < kSpins ? rest() : (void)sched_yield();
  }
  sleepers_.fetch_add(1);
  while (job_.load() == last) sleep_while(job_, last);
  sleepers_.fetch_sub(1);
  return job_.load(std::memory_order_acquire);
}

void* TgPool::work(void* argument) {
  const Worker& worker = *static_cast<Worker*>(argument);
  TgPool& pool = *worker.pool;
  const tg::DenormalsAreZero mode;
  uint32_t job = 0;
  for (;;) {
    job = pool.wait_for_job(job);
    if (pool.function_ == nullptr) return nullptr;
    pool.function_(pool.argument_, worker.rank, pool.threads_);
    pool.barrier();
  }
}

TgPool* tg_pool_open(int32_t threads) {
  if (threads < 1 || threads > TG_MAX_THREADS) return nullptr;
  return TgPool::open(threads).release();
}

void tg_pool_close(TgPool* pool) { delete pool; }
