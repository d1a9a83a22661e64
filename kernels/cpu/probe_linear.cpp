// Linear kernels on plain arrays, for tests and benchmarks.
#include <time.h>

#include "kernels.h"
#include "probe.h"

namespace tg {
namespace {

const LinearKernels* linear_at(int level) {
  if (level > best_level()) return nullptr;
#ifdef TG_HAVE_AMX
  if (level == TG_AMX) return &amx::linear_kernels;
#endif
#ifdef TG_HAVE_AVX512
  if (level == TG_AVX512) return &avx512::linear_kernels;
#endif
#ifdef TG_HAVE_AVX2
  if (level == TG_AVX2) return &avx2::linear_kernels;
#endif
  return level == TG_SCALAR ? &scalar::linear_kernels : nullptr;
}

}  // namespace
}  // namespace tg

using namespace tg;

static int64_t thread_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

// Runs a linear kernel on `m` rows (kernels.h has the arrays of Activations) with each of `count` weights of one shape in
// turn, all into `out`. Returns the processor time that this thread spent, in nanoseconds; -1 where the level is not there.
TG_PROBE int64_t tg_probe_linear(int32_t level, int32_t format, int32_t group, int32_t n, int32_t k, int32_t paired,
                                 const void* const* weights, int32_t count, const float* bias, int32_t m, int32_t stride,
                                 const void* data, const float* scale, const int32_t* sums, float* out, int64_t out_stride,
                                 int32_t epilogue, int32_t ranks, int32_t threads) {
  const LinearKernels* kernels = linear_at(level);
  if (!kernels) return -1;
  const int64_t before = thread_nanoseconds();
  for (int i = 0; i < count; i++) {
    const TgLinear weight = {format, group, n, k, paired, 0, weights[i], bias};
    const LinearArgs args = {&weight, {format, m, k, stride, data, scale, sums}, out, out_stride, epilogue};
    run_ranks(ranks, threads, [&](int rank, int of) { kernels->linear(args, rank, of); });
  }
  return thread_nanoseconds() - before;
}

// Reads `bytes` as fast as one thread can, in eight streams side by side: the floor of whatever must read them. Returns
// nanoseconds as above.
TG_PROBE int64_t tg_probe_read(const void* data, int64_t bytes, uint64_t* check) {
  const int64_t before = thread_nanoseconds(), part = bytes / 512 * 8;  // words of a stream, whole lines
  const uint64_t* words = (const uint64_t*)data;
  uint64_t sums[8] = {};
  for (int64_t i = 0; i < part; i += 8)
    for (int stream = 0; stream < 8; stream++) {
      const uint64_t* line = words + stream * part + i;
      __builtin_prefetch(line + 256);
      for (int j = 0; j < 8; j++) sums[j] ^= line[j];
    }
  for (uint64_t sum : sums) *check ^= sum;
  return thread_nanoseconds() - before;
}
