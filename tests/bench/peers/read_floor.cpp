// How long the machine takes to read a buffer once: `read_floor THREADS BYTES`. Prints the median and the least of some
// passes, in seconds. Huge pages and prefetching, as an engine that is bound by memory would read its weights.
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kHugePage = 2u << 20;
constexpr std::size_t kAhead = 4096 / sizeof(std::uint64_t);
constexpr std::size_t kLine = 64 / sizeof(std::uint64_t);
constexpr int kPasses = 15;

std::uint64_t read_once(const std::uint64_t* data, std::size_t words) {
  std::uint64_t sums[kLine] = {};
  for (std::size_t i = 0; i + kLine <= words; i += kLine) {
    __builtin_prefetch(data + i + kAhead);
    for (std::size_t j = 0; j < kLine; ++j) sums[j] += data[i + j];
  }
  std::uint64_t total = 0;
  for (std::uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 2 ? std::atoi(argv[1]) : 0;
  const std::size_t bytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (threads < 1 || bytes < 4096) return 2;
  const std::size_t room = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  auto* data = static_cast<std::uint64_t*>(std::aligned_alloc(kHugePage, room));
  if (data == nullptr) return 1;
  madvise(data, room, MADV_HUGEPAGE);
  std::fill(data, data + room / sizeof(std::uint64_t), 1);

  using Clock = std::chrono::steady_clock;
  const std::size_t lines = bytes / 64 / static_cast<std::size_t>(threads);
  const std::size_t share = lines * kLine;
  std::barrier meet(threads);
  std::vector<double> seconds;
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(threads) * kLine);
  auto work = [&](int rank) {
    for (int pass = 0; pass < kPasses; ++pass) {
      meet.arrive_and_wait();
      const auto begin = Clock::now();
      sums[static_cast<std::size_t>(rank) * kLine] += read_once(data + share * static_cast<std::size_t>(rank), share);
      meet.arrive_and_wait();
      if (rank == 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < threads; ++rank) others.emplace_back(work, rank);
  work(0);
  for (auto& one : others) one.join();
  std::sort(seconds.begin(), seconds.end());
  std::uint64_t check = 0;
  for (std::uint64_t sum : sums) check += sum;
  if (check != kPasses * share * static_cast<std::size_t>(threads)) return 1;
  std::printf("%.9f %.9f\n", seconds[seconds.size() / 2], seconds.front());
}
