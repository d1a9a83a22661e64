// Sixteen lanes stored as narrower numbers.
#pragma once
#include "simd.h"

namespace tg {
namespace TG_NS {

// The low half of each lane.
inline void store_halves(uint16_t* p, I a) {
#if TG_LEVEL >= 2
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(a.v));
#elif TG_LEVEL == 1
  const __m256i low = _mm256_set1_epi32(0xffff);
  const __m256i both = _mm256_packus_epi32(_mm256_and_si256(a.a, low), _mm256_and_si256(a.b, low));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(both, 0xd8));
#else
  for (int i = 0; i < 16; i++) p[i] = (uint16_t)a.v[i];
#endif
}

// Lanes of -128..127.
inline void store_bytes(int8_t* p, I a) {
#if TG_LEVEL >= 2
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v));
#elif TG_LEVEL == 1
  const __m256i halves = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.a, a.b), 0xd8);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
#else
  for (int i = 0; i < 16; i++) p[i] = (int8_t)a.v[i];
#endif
}

// Exact, so in any order.
inline int32_t sum(I a) {
#if TG_LEVEL >= 2
  return _mm512_reduce_add_epi32(a.v);
#else
  alignas(64) int32_t v[16];
  store(v, a);
  int32_t total = 0;
  for (int i = 0; i < 16; i++) total += v[i];
  return total;
#endif
}

// The largest lane, none of them negative, as the bits of a float.
inline float largest_bits(I a) {
#if TG_LEVEL >= 2
  const int32_t bits = _mm512_reduce_max_epi32(a.v);
#else
  alignas(64) int32_t v[16];
  store(v, a);
  int32_t bits = 0;
  for (int i = 0; i < 16; i++) bits = v[i] > bits ? v[i] : bits;
#endif
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace TG_NS
}  // namespace tg
