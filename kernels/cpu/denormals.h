// Denormals are zero: the floating-point mode that the numeric contract of abi.h asks for.
#pragma once

#if defined __x86_64__
#include <xmmintrin.h>
#elif defined __aarch64__
#include <stdint.h>
#endif

namespace tg {

// Sets FTZ and DAZ (FZ on AArch64) in this thread for as long as it lives, and puts back what was there.
class DenormalsAreZero {
 public:
  DenormalsAreZero() : before_(read()) { write(before_ | kBits); }
  ~DenormalsAreZero() { write(before_); }
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

 private:
#if defined __x86_64__
  using Mode = unsigned;
  static constexpr Mode kBits = 0x8040;
  static Mode read() { return _mm_getcsr(); }
  static void write(Mode mode) { _mm_setcsr(mode); }
#elif defined __aarch64__
  using Mode = uint64_t;
  static constexpr Mode kBits = 1u << 24;
  static Mode read() {
    Mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(Mode mode) { __asm__ volatile("msr fpcr, %0" ::"r"(mode)); }
#else
  using Mode = int;
  static constexpr Mode kBits = 0;
  static Mode read() { return 0; }
  static void write(Mode) {}
#endif
  Mode before_;
};

}  // namespace tg
