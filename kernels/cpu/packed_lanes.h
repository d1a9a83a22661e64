// What packed weights ask of lanes besides simd.h: dot products of bytes, and float16.
#pragma once
#include "simd.h"

namespace tg {
namespace TG_NS {

inline float from_half(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ff;
  if (exponent == 0) return (sign ? -0x1p-24f : 0x1p-24f) * (float)fraction;  // zero or a denormal
  const uint32_t bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

#if TG_LEVEL >= 2

inline F load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
// To each lane the dot product of its four bytes is added: unsigned of `a`, signed of `b`.
inline I dot_bytes(I sum, I a, I b) { return {_mm512_dpbusd_epi32(sum.v, a.v, b.v)}; }

#elif TG_LEVEL == 1

inline F load_half(const uint16_t* p) {
  const __m128i *low = (const __m128i*)p, *high = (const __m128i*)(p + 8);
  return {_mm256_cvtph_ps(_mm_loadu_si128(low)), _mm256_cvtph_ps(_mm_loadu_si128(high))};
}
// Bytes at even and at odd places apart and as 16 bits: maddubs would saturate.
inline __m256i dot_bytes(__m256i sum, __m256i a, __m256i b) {
  const __m256i even = _mm256_and_si256(a, _mm256_set1_epi16(0xff)), odd = _mm256_srli_epi16(a, 8);
  const __m256i b_even = _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8), b_odd = _mm256_srai_epi16(b, 8);
  return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(even, b_even), _mm256_madd_epi16(odd, b_odd)));
}
inline I dot_bytes(I sum, I a, I b) { return {dot_bytes(sum.a, a.a, b.a), dot_bytes(sum.b, a.b, b.b)}; }

#else

inline F load_half(const uint16_t* p) {
  F r;
  for (int i = 0; i < 16; i++) r.v[i] = from_half(p[i]);
  return r;
}
inline I dot_bytes(I sum, I a, I b) {
  uint8_t from_a[64];
  int8_t from_b[64];
  memcpy(from_a, a.v, 64);
  memcpy(from_b, b.v, 64);
  for (int i = 0; i < 64; i++) sum.v[i / 4] += from_a[i] * from_b[i];
  return sum;
}

#endif

}  // namespace TG_NS
}  // namespace tg
