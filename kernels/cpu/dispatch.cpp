// Picks each kernel's table: the best level that was built, that the system allows, and that the caller allows.
#include <algorithm>

#include "kernels.h"
#include "levels.h"

namespace tg {
namespace {

// A table of each level; null: not built, or the kernel has no code of its own for it.
template <typename Table>
struct ByLevel {
  const Table* at[TG_LEVELS];
};

#define TG_SCALAR_TABLE(name) &scalar::name
#ifdef TG_HAVE_AVX2
#define TG_AVX2_TABLE(name) &avx2::name
#else
#define TG_AVX2_TABLE(name) nullptr
#endif
#ifdef TG_HAVE_AVX512
#define TG_AVX512_TABLE(name) &avx512::name
#else
#define TG_AVX512_TABLE(name) nullptr
#endif
#ifdef TG_HAVE_AMX
#define TG_AMX_TABLE(name) &amx::name
#else
#define TG_AMX_TABLE(name) nullptr
#endif

template <typename Table>
const Table* pick(const ByLevel<Table>& tables, int32_t cap, int32_t* level) {
  for (*level = std::min(cap, best_level()); *level > TG_SCALAR && !tables.at[*level];) --*level;
  return tables.at[*level];
}

}  // namespace

Kernels choose_kernels(const int32_t* levels) {
  Kernels found;
  const auto cap = [&](int kernel) { return levels ? std::clamp<int32_t>(levels[kernel], TG_SCALAR, TG_AMX) : TG_AMX; };
  const auto set = [&](auto& table, const auto& tables, int kernel) {
    table = pick(tables, cap(kernel), &found.level[kernel]);
  };
#define TG_TABLES(name) {TG_SCALAR_TABLE(name), TG_AVX2_TABLE(name), TG_AVX512_TABLE(name), nullptr}
#define TG_TABLES_WITH_AMX(name) {TG_SCALAR_TABLE(name), TG_AVX2_TABLE(name), TG_AVX512_TABLE(name), TG_AMX_TABLE(name)}
  set(found.linear, ByLevel<LinearKernels> TG_TABLES_WITH_AMX(linear_kernels), TG_K_LINEAR);
  set(found.attention, ByLevel<AttentionKernels> TG_TABLES_WITH_AMX(attention_kernels), TG_K_ATTENTION);
  set(found.rows, ByLevel<RowKernels> TG_TABLES(row_kernels), TG_K_ROWS);
  set(found.sample, ByLevel<SampleKernels> TG_TABLES(sample_kernels), TG_K_SAMPLE);
  set(found.moe, ByLevel<MoeKernels> TG_TABLES(moe_kernels), TG_K_MOE);
  return found;
}

}  // namespace tg

void tg_kernel_levels(const int32_t* levels, int32_t* out) {
  const tg::Kernels found = tg::choose_kernels(levels);
  std::copy(found.level, found.level + TG_KERNELS, out);
}
