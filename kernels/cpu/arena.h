// One piece of memory for many buffers.
#pragma once
#include <stdint.h>
#include <sys/mman.h>

namespace tg {

// Hands out parts of one anonymous mapping, on huge pages where the system has them. A layout is a function that takes
// its parts in order; it is run twice: first on an empty arena, which only counts, then on a reserved one.
class Arena {
 public:
  Arena() = default;
  ~Arena() {
    if (memory_) munmap(memory_, (size_t)bytes_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Room for `count` values at a multiple of 64 bytes; null while the arena only counts.
  template <typename T>
  T* take(int64_t count) {
    const int64_t at = used_;
    used_ += (count * (int64_t)sizeof(T) + 63) / 64 * 64;
    return memory_ ? (T*)(memory_ + at) : nullptr;
  }

  // Memory, all zeros, for what was counted so far; false where there is none.
  bool reserve() {
    const int64_t huge = 1 << 21;
    bytes_ = (used_ + huge - 1) / huge * huge;
    used_ = 0;
    if (bytes_ == 0) return true;
    void* got = mmap(nullptr, (size_t)bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) return false;
    memory_ = (char*)got;
    madvise(memory_, (size_t)bytes_, MADV_HUGEPAGE);
    return true;
  }

 private:
  char* memory_ = nullptr;
  int64_t bytes_ = 0, used_ = 0;
};

}  // namespace tg
