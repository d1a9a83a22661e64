// Tile registers (Intel SDM, volume 1, chapter 18), an instruction a function.
//
// GCC 12's own header lets the compiler believe that a configuration is 8 bytes and that a load reads no memory.
#pragma once
#include <stdint.h>

#include "simd.h"

#if TG_LEVEL >= 3

namespace tg {
namespace TG_NS {

// Shapes of the eight tiles; those not set may not be used.
struct alignas(64) Tiles {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int tile_rows, int bytes) {
    rows[tile] = (uint8_t)tile_rows;
    row_bytes[tile] = (uint16_t)bytes;
  }
  // For this thread; all tiles are zero after it.
  void use() const { __asm__ volatile("ldtilecfg %0" ::"m"(*this)); }
};

// Ends the use of tiles, so that a switch of threads need not save them.
inline void release_tiles() { __asm__ volatile("tilerelease"); }

template <int TILE>
inline void tile_zero() { __asm__ volatile("tilezero %%tmm%c0" ::"i"(TILE)); }

// Rows lie `stride` bytes apart.
template <int TILE>
inline void tile_load(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(TILE), "r"(from), "r"(stride) : "memory");
}
template <int TILE>
inline void tile_store(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(TILE), "r"(to), "r"(stride) : "memory");
}

// SUM += A B: bf16 pairs; int8 quads, signed in A and unsigned in B.
template <int SUM, int A, int B>
inline void tile_dot_bf16() { __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B)); }
template <int SUM, int A, int B>
inline void tile_dot_bytes() { __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B)); }

}  // namespace TG_NS
}  // namespace tg

#endif
