// The compute threads of a process, and the barrier between kernels.
#pragma once
#include <pthread.h>
#include <stdint.h>

#include <atomic>
#include <memory>

// Threads that run one function together, the calling one included. While a step is on they wait for each other by
// spinning, for a bounded time, and then yield: a core that is taken away by another process must not be waited for at
// full speed. Between steps they spin and yield for the length of the host's work, then sleep.
struct TgPool {
  using Function = void (*)(void* argument, int rank, int ranks);

  // Null where threads cannot be made.
  static std::unique_ptr<TgPool> open(int threads);
  ~TgPool();
  TgPool(const TgPool&) = delete;
  TgPool& operator=(const TgPool&) = delete;

  int threads() const { return threads_; }

  // Calls function(argument, rank, threads()) on every thread, the caller being rank 0, and returns when all are done.
  // Denormals are zero meanwhile. One caller at a time.
  void run(Function function, void* argument);

  // Called by every thread of a `run`: returns when all have called it, and what they wrote before is seen by all.
  void barrier();

 private:
  struct Worker {
    TgPool* pool;
    int rank;
    pthread_t thread;
  };

  explicit TgPool(int threads) : threads_(threads) {}
  static void* work(void* worker);
  uint32_t wait_for_job(uint32_t last);

  const int threads_;
  int started_ = 0;
  std::unique_ptr<Worker[]> workers_;
  Function function_ = nullptr;  // null ends the workers
  void* argument_ = nullptr;

  // On cache lines of their own: each is written by one thread while others spin on it.
  alignas(64) std::atomic<uint32_t> job_{0};
  alignas(64) std::atomic<int32_t> sleepers_{0};
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
};
