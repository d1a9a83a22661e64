// Sixteen lanes at every level, so that a kernel is written once and gives the same bits at each level with FMA.
//
// A kernel file is compiled once per level with TG_LEVEL set to one of abi.h's levels, and puts its code into namespace
// tg::TG_NS. `F` is sixteen float32, `I` sixteen int32. All operations are lane-wise and correctly rounded; `sum` and
// `largest` reduce by halves: lanes i and i + 8, then + 4, + 2, + 1. The scalar level has no fused multiply-add on x86-64
// and may differ from the others in last bits.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "abi.h"

#if TG_LEVEL >= 1
#include <immintrin.h>
#endif

#if TG_LEVEL == 0
#define TG_NS scalar
#elif TG_LEVEL == 1
#define TG_NS avx2
#elif TG_LEVEL == 2
#define TG_NS avx512
#else
#define TG_NS amx
#endif

namespace tg {
namespace TG_NS {

#if TG_LEVEL >= 2

struct F { __m512 v; };
struct I { __m512i v; };

inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
template <int N>
inline F exchange(F a) {
  if (N == 1) return {_mm512_permute_ps(a.v, 0xb1)};
  if (N == 2) return {_mm512_permute_ps(a.v, 0x4e)};
  if (N == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
  return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
}
inline F load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline void store_first(float* p, F a, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a.v); }
inline F splat(float x) { return {_mm512_set1_ps(x)}; }
inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F abs(F a) { return {_mm512_abs_ps(a.v)}; }
inline F zero_where_less(F x, F limit, F y) {
  return {_mm512_mask_mov_ps(y.v, _mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ), _mm512_setzero_ps())};
}
inline uint32_t at_least(F x, F limit) { return _mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ); }
inline uint32_t not_at_most(F x, F limit) { return _mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLE_UQ); }
inline void pack(float* p, F a, uint32_t lanes) { _mm512_storeu_ps(p, _mm512_maskz_compress_ps((__mmask16)lanes, a.v)); }
inline F between(int from, int to, F x, F other) {
  return {_mm512_mask_mov_ps(other.v, (__mmask16)(((1u << to) - 1) & ~((1u << from) - 1)), x.v)};
}
inline I load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline I load(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
inline void store(int32_t* p, I a) { _mm512_storeu_si512(p, a.v); }
inline I splat(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I max(I a, I b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline I operator&(I a, I b) { return {_mm512_and_si512(a.v, b.v)}; }
inline I operator^(I a, I b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline I operator*(I a, I b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline I shift_left(I a, int n) { return {_mm512_slli_epi32(a.v, (unsigned)n)}; }
inline I shift_right(I a, int n) { return {_mm512_srli_epi32(a.v, (unsigned)n)}; }
inline F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }  // to nearest, ties to even
inline F as_float(I a) { return {_mm512_castsi512_ps(a.v)}; }
inline I as_int(F a) { return {_mm512_castps_si512(a.v)}; }
inline void pack(int32_t* p, I a, uint32_t lanes) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32((__mmask16)lanes, a.v));
}

#elif TG_LEVEL == 1

struct F { __m256 a, b; };
struct I { __m256i a, b; };

inline __m256i first_mask(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
template <int N>
inline F exchange(F x) {
  if (N == 1) return {_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)};
  if (N == 2) return {_mm256_permute_ps(x.a, 0x4e), _mm256_permute_ps(x.b, 0x4e)};
  if (N == 4) return {_mm256_permute2f128_ps(x.a, x.a, 1), _mm256_permute2f128_ps(x.b, x.b, 1)};
  return {x.b, x.a};
}
inline F load_first(const float* p, int n) {
  return {_mm256_maskload_ps(p, first_mask(n)), _mm256_maskload_ps(p + 8, first_mask(n - 8))};
}
inline void store(float* p, F x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
inline void store_first(float* p, F x, int n) {
  _mm256_maskstore_ps(p, first_mask(n), x.a), _mm256_maskstore_ps(p + 8, first_mask(n - 8), x.b);
}
inline F splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F operator+(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F operator-(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F operator*(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F operator/(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F zero_where_less(F x, F limit, F y) {
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.a, limit.a, _CMP_LT_OQ), y.a),
          _mm256_andnot_ps(_mm256_cmp_ps(x.b, limit.b, _CMP_LT_OQ), y.b)};
}
inline uint32_t at_least(F x, F limit) {
  return (uint32_t)(_mm256_movemask_ps(_mm256_cmp_ps(x.a, limit.a, _CMP_GE_OQ)) |
                    _mm256_movemask_ps(_mm256_cmp_ps(x.b, limit.b, _CMP_GE_OQ)) << 8);
}
inline uint32_t not_at_most(F x, F limit) {
  return (uint32_t)(_mm256_movemask_ps(_mm256_cmp_ps(x.a, limit.a, _CMP_NLE_UQ)) |
                    _mm256_movemask_ps(_mm256_cmp_ps(x.b, limit.b, _CMP_NLE_UQ)) << 8);
}
inline F between(int from, int to, F x, F other) {
  const __m256i a = _mm256_andnot_si256(first_mask(from), first_mask(to));
  const __m256i b = _mm256_andnot_si256(first_mask(from - 8), first_mask(to - 8));
  return {_mm256_blendv_ps(other.a, x.a, _mm256_castsi256_ps(a)), _mm256_blendv_ps(other.b, x.b, _mm256_castsi256_ps(b))};
}
inline I load(const int32_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
inline I load(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
inline void store(int32_t* p, I x) { _mm256_storeu_si256((__m256i*)p, x.a), _mm256_storeu_si256((__m256i*)(p + 8), x.b); }
inline I splat(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I operator+(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I max(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
inline I operator&(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline I operator^(I x, I y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
inline I operator*(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
inline I shift_left(I x, int n) { return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)}; }
inline I shift_right(I x, int n) { return {_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)}; }
inline F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline F as_float(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline I as_int(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }

#else

struct F { float v[16]; };
struct I { int32_t v[16]; };

#define TG_EACH(expression)                \
  do {                                     \
    for (int i = 0; i < 16; i++) r.v[i] = (expression); \
    return r;                              \
  } while (0)
inline F load(const float* p) { F r; memcpy(r.v, p, 64); return r; }
template <int N>
inline F exchange(F a) { F r; TG_EACH(a.v[i ^ N]); }
inline F load_first(const float* p, int n) { F r; TG_EACH(i < n ? p[i] : 0.0f); }
inline void store(float* p, F a) { memcpy(p, a.v, 64); }
inline void store_first(float* p, F a, int n) { for (int i = 0; i < 16 && i < n; i++) p[i] = a.v[i]; }
inline F splat(float x) { F r; TG_EACH(x); }
inline F operator+(F a, F b) { F r; TG_EACH(a.v[i] + b.v[i]); }
inline F operator-(F a, F b) { F r; TG_EACH(a.v[i] - b.v[i]); }
inline F operator*(F a, F b) { F r; TG_EACH(a.v[i] * b.v[i]); }
inline F operator/(F a, F b) { F r; TG_EACH(a.v[i] / b.v[i]); }
inline F fma(F a, F b, F c) { F r; TG_EACH(a.v[i] * b.v[i] + c.v[i]); }
inline F max(F a, F b) { F r; TG_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F min(F a, F b) { F r; TG_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline F abs(F a) { F r; TG_EACH(fabsf(a.v[i])); }
inline F zero_where_less(F x, F limit, F y) { F r; TG_EACH(x.v[i] < limit.v[i] ? 0.0f : y.v[i]); }
inline uint32_t at_least(F x, F limit) {
  uint32_t lanes = 0;
  for (int i = 0; i < 16; i++) lanes |= (uint32_t)(x.v[i] >= limit.v[i]) << i;
  return lanes;
}
inline uint32_t not_at_most(F x, F limit) {
  uint32_t lanes = 0;
  for (int i = 0; i < 16; i++) lanes |= (uint32_t)!(x.v[i] <= limit.v[i]) << i;
  return lanes;
}
inline F between(int from, int to, F x, F other) { F r; TG_EACH(i >= from && i < to ? x.v[i] : other.v[i]); }
inline I load(const int32_t* p) { I r; memcpy(r.v, p, 64); return r; }
inline I load(const int8_t* p) { I r; TG_EACH(p[i]); }
inline void store(int32_t* p, I a) { memcpy(p, a.v, 64); }
inline I splat(int32_t x) { I r; TG_EACH(x); }
inline I operator+(I a, I b) { I r; TG_EACH((int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i])); }
inline I max(I a, I b) { I r; TG_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline I operator&(I a, I b) { I r; TG_EACH(a.v[i] & b.v[i]); }
inline I operator^(I a, I b) { I r; TG_EACH(a.v[i] ^ b.v[i]); }
inline I operator*(I a, I b) { I r; TG_EACH((int32_t)((uint32_t)a.v[i] * (uint32_t)b.v[i])); }
inline I shift_left(I a, int n) { I r; TG_EACH((int32_t)((uint32_t)a.v[i] << n)); }
inline I shift_right(I a, int n) { I r; TG_EACH((int32_t)((uint32_t)a.v[i] >> n)); }
inline F to_float(I a) { F r; TG_EACH((float)a.v[i]); }
inline I to_int(F a) { I r; TG_EACH((int32_t)lrintf(a.v[i])); }
inline F as_float(I a) { F r; memcpy(r.v, a.v, 64); return r; }
inline I as_int(F a) { I r; memcpy(r.v, a.v, 64); return r; }
#undef TG_EACH

#endif

#if TG_LEVEL < 2
inline void pack(float* p, F a, uint32_t lanes) {
  alignas(64) float v[16];
  store(v, a);
  for (; lanes; lanes &= lanes - 1) *p++ = v[__builtin_ctz(lanes)];
}
inline void pack(int32_t* p, I a, uint32_t lanes) {
  alignas(64) int32_t v[16];
  store(v, a);
  for (; lanes; lanes &= lanes - 1) *p++ = v[__builtin_ctz(lanes)];
}
#endif

// at_least and not_at_most: bit i is set where lane i is; a NaN is not at least anything, and not at most anything.
// pack: the lanes whose bits are set, one behind the other. It may write to all sixteen places.
// exchange<N>, N one of 1, 2, 4, 8: lane i becomes lane i ^ N.
// max and min return the second operand where one of them is a NaN; `between` has lanes [from, to) of `x`, the others of
// `other`.
inline F zero() { return splat(0.0f); }
inline F operator-(F a) { return splat(-0.0f) - a; }

// Reductions over lanes, by halves.
#if TG_LEVEL >= 1
#if TG_LEVEL >= 2
inline __m256 lower_half(F a) { return _mm512_castps512_ps256(a.v); }
inline __m256 upper_half(F a) { return _mm512_extractf32x8_ps(a.v, 1); }
#else
inline __m256 lower_half(F a) { return a.a; }
inline __m256 upper_half(F a) { return a.b; }
#endif
inline float sum(F a) {
  const __m256 eight = _mm256_add_ps(lower_half(a), upper_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(F a) {
  const __m256 eight = _mm256_max_ps(lower_half(a), upper_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#else
inline float sum(F a) {
  alignas(64) float v[16];
  store(v, a);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
}
inline float largest(F a) {
  alignas(64) float v[16];
  store(v, a);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] = v[i] > v[i + half] ? v[i] : v[i + half];
  return v[0];
}
#endif

// Thirty-two bf16 in sixteen int32: those at even and those at odd places, as float32.
inline F even_bf16(I pairs) { return as_float(shift_left(pairs, 16)); }
inline F odd_bf16(I pairs) { return as_float(pairs & splat((int32_t)0xffff0000u)); }

// To bf16, to nearest, ties to even, in the low half of each lane. Finite values and infinities; a NaN stays one.
inline I round_bf16(F a) {
  I bits = as_int(a);
  return shift_right(bits + splat(0x7fff) + (shift_right(bits, 16) & splat(1)), 16);
}
inline uint16_t to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float from_bf16(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// e^x: 0 below -87, e^88 above 88, NaN for NaN; relative error below 2e-7. Cephes' expf: x = n ln2 + r, |r| <= ln2 / 2, ln2
// in two parts, a polynomial of degree 5 in r.
inline F exp(F x) {
  F clamped = min(splat(88.0f), max(splat(-87.0f), x));  // the second operand comes through where it is a NaN
  I n = to_int(clamped * splat(1.44269504088896341f));
  F f = to_float(n);
  F r = fma(f, splat(-0.693359375f), clamped);
  r = fma(f, splat(2.12194440e-4f), r);
  F p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  F y = fma(p, r * r, r + splat(1.0f));
  return zero_where_less(x, splat(-87.0f), y * as_float(shift_left(n + splat(127), 23)));
}

}  // namespace TG_NS
}  // namespace tg
