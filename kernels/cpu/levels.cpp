// Which of the built levels this process may use. The build made only those that the processor has; AMX needs leave, too.
#include "levels.h"

#include "abi.h"

#ifdef TG_HAVE_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tg {

#ifdef TG_HAVE_AMX
// Linux grants tile registers to a process on request (Documentation/arch/x86/xstate.rst), and may refuse.
static bool ask_for_tiles() {
  const int request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

int best_level() {
#ifdef TG_HAVE_AMX
  static const bool tiles = ask_for_tiles();
  if (tiles) return TG_AMX;
#endif
#if defined TG_HAVE_AVX512
  return TG_AVX512;
#elif defined TG_HAVE_AVX2
  return TG_AVX2;
#else
  return TG_SCALAR;
#endif
}

}  // namespace tg

int32_t tg_abi_version(void) { return TG_ABI_VERSION; }

int32_t tg_best_level(void) { return tg::best_level(); }
