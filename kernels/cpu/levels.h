// Which of the built levels this process may use.
#pragma once

namespace tg {

// The highest of abi.h's levels that was built and that the system allows. Asks the kernel for AMX where that was built;
// cheap, may be called often and by any thread.
int best_level();

}  // namespace tg
