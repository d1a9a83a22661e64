// What the probe_*.cpp files share: functions that run one kernel at one level on plain arrays, for tests and benchmarks.
#pragma once
#include <stdint.h>

#include <thread>
#include <vector>

#include "denormals.h"
#include "levels.h"

#define TG_PROBE extern "C" __attribute__((visibility("default")))

namespace tg {

// Calls work(rank, ranks) for every rank with denormals as zero: one after the other, or each on a thread of its own.
template <typename Work>
void run_ranks(int ranks, bool threads, Work work) {
  auto one = [&](int rank) {
    DenormalsAreZero mode;
    work(rank, ranks);
  };
  if (!threads) {
    for (int rank = 0; rank < ranks; rank++) one(rank);
    return;
  }
  std::vector<std::thread> others;
  for (int rank = 1; rank < ranks; rank++) others.emplace_back(one, rank);
  one(0);
  for (std::thread& other : others) other.join();
}

}  // namespace tg
