// Takes weights into the layout of packing.h, and back.
#include <math.h>
#include <string.h>

#include "packed_lanes.h"
#include "packing.h"

namespace tg {
namespace TG_NS {
namespace {

constexpr int32_t kMost = 1 << 30;  // outputs or inputs; keeps every size within 64 bits

bool valid(int32_t format, int32_t group, int32_t n, int32_t k, int32_t paired) {
  const bool groups = format == TG_INT4 ? group == 32 || group == 64 : group == 0;
  const bool pairs = paired == 0 || (paired == 1 && n % 2 == 0);
  return format >= TG_BF16 && format <= TG_INT4 && groups && pairs && n > 0 && n < kMost && k > 0 && k < kMost;
}

float load_float(const uint8_t* at) {
  float value;
  memcpy(&value, at, 4);
  return value;
}
uint16_t load_short(const uint8_t* at) {
  uint16_t value;
  memcpy(&value, at, 2);
  return value;
}

uint16_t to_half(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  float size = fabsf(x);
  if (size != size) return sign | 0x7e00;
  if (size >= 65520.0f) return sign | 0x7c00;
  if (size < 0x1p-14f) return sign | (uint16_t)lrintf(size * 0x1p24f);
  bits &= 0x7fffffff;
  bits += 0xfff + (bits >> 13 & 1);
  return sign | (uint16_t)((bits >> 13) - (112 << 10));
}

// Calls row(data of the block, its column, output) for every output.
template <typename Byte, typename Row>
void each_output(const Packing& p, Byte* data, Row row) {
  for (int32_t block = 0; block < p.blocks; block++)
    for (int32_t column = 0; column < p.columns(block); column++)
      row(data + block * p.block_bytes, column, p.output(block) + column);
}

void put_bf16(const Packing& p, uint8_t* block, int32_t column, const float* source) {
  for (int32_t i = 0; i < p.k; i++) {
    uint16_t value = to_bf16(source[i]);
    memcpy(block + i / 2 * 64 + column * 4 + i % 2 * 2, &value, 2);
  }
}

// value(input) is that of one of the column's inputs.
template <typename Value>
void put_int8(const Packing& p, uint8_t* block, int32_t column, float scale, Value value) {
  for (int32_t i = 0; i < p.k; i++) block[i / 4 * 64 + column * 4 + i % 4] = (uint8_t)(value(i) + 128);
  memcpy(block + 16 * (int64_t)p.inputs + column * 4, &scale, 4);
}

void put_group(const Packing& p, uint8_t* group, int32_t column, const uint8_t* codes, int32_t count, uint16_t scale,
               uint16_t min) {
  for (int32_t i = 0; i < count; i++)
    group[Packing::code_at(i, column)] |= (uint8_t)((codes[i] & 15) << (i % 8 >= 4 ? 4 : 0));
  memcpy(group + 8 * p.group + column * 2, &scale, 2);
  memcpy(group + 8 * p.group + 32 + column * 2, &min, 2);
}

// Rounds to the nearest whole number, |x| < 2^22, in a way that compilers turn into vectors.
float nearest(float x) { return x + 12582912.0f - 12582912.0f; }

// What the values are multiples of, so that the largest magnitude is 127; 0 where it is too small or too large to say.
float int8_scale(const float* source, int32_t count) {
  float most = 0.0f;
  for (int32_t i = 0; i < count; i++) most = fabsf(source[i]) > most ? fabsf(source[i]) : most;
  float scale = most / 127.0f;
  return scale >= 0x1p-126f && scale < INFINITY ? scale : 0.0f;
}

int int8_value(float value, float scale) {
  float rounded = scale > 0.0f ? nearest(value / scale) : 0.0f;
  return (int)(rounded > 127.0f ? 127.0f : rounded > -127.0f ? rounded : -127.0f);
}

struct Group {
  uint8_t codes[64];
  uint16_t scale, min;
  float error;  // sum of squares
};

// Codes of the values under a scale and a minimum as float16, and how far off they are.
Group coded(const float* source, int32_t count, float scale, float min) {
  Group made;
  made.scale = to_half(scale);
  made.min = to_half(min);
  float s = from_half(made.scale), m = from_half(made.min), inverse = s > 0.0f ? 1.0f / s : 0.0f;
  float codes[64], error = 0.0f;
  for (int32_t i = 0; i < count; i++) {
    float code = nearest((source[i] - m) * inverse);
    codes[i] = code > 0.0f ? (code < 15.0f ? code : 15.0f) : 0.0f;
  }
  for (int32_t i = 0; i < count; i++) {
    float off = s * codes[i] + m - source[i];
    error += off * off;
    made.codes[i] = (uint8_t)codes[i];
  }
  made.error = error;
  return made;
}

// Sixteen levels for up to 64 values, by least squares: for ranges somewhat wider and narrower than the values', the line
// that fits the codes best, and of these the best. (The search of k-quants in ggml-quants.c, unweighted.)
Group quantise_int4(const float* source, int32_t count) {
  float low = source[0], high = source[0];
  for (int32_t i = 1; i < count; i++) {
    low = source[i] < low ? source[i] : low;
    high = source[i] > high ? source[i] : high;
  }
  Group best = coded(source, count, (high - low) / 15.0f, low);
  for (float levels = 13.0f; levels <= 16.0f && high > low; levels += 0.25f) {
    float inverse = levels / (high - low);
    float codes = 0.0f, squares = 0.0f, values = 0.0f, products = 0.0f;
    for (int32_t i = 0; i < count; i++) {
      float code = nearest((source[i] - low) * inverse);
      code = code > 0.0f ? (code < 15.0f ? code : 15.0f) : 0.0f;
      codes += code;
      squares += code * code;
      values += source[i];
      products += code * source[i];
    }
    float spread = (float)count * squares - codes * codes;
    if (!(spread > 0.0f)) continue;
    float scale = ((float)count * products - codes * values) / spread;
    Group made = coded(source, count, scale, (values - scale * codes) / (float)count);
    if (made.error < best.error) best = made;
  }
  return best;
}

void put_int4(const Packing& p, uint8_t* block, int32_t column, const float* source) {
  for (int32_t from = 0; from < p.k; from += p.group) {
    int32_t count = p.k - from < p.group ? p.k - from : p.group;
    Group made = quantise_int4(source + from, count);
    put_group(p, block + from / p.group * (int64_t)p.group_bytes, column, made.codes, count, made.scale, made.min);
  }
}

void unpack(const Packing& p, const uint8_t* data, float* out) {
  each_output(p, data, [&](const uint8_t* block, int32_t column, int32_t output) {
    float* row = out + (int64_t)output * p.k;
    for (int32_t i = 0; i < p.k; i++) {
      if (p.format == TG_BF16) {
        row[i] = from_bf16(load_short(block + i / 2 * 64 + column * 4 + i % 2 * 2));
      } else if (p.format == TG_INT8) {
        float scale = load_float(block + 16 * (int64_t)p.inputs + column * 4);
        row[i] = scale * (float)(block[i / 4 * 64 + column * 4 + i % 4] - 128);
      } else {
        const uint8_t* group = block + i / p.group * (int64_t)p.group_bytes;
        int32_t in = i % p.group, code = group[Packing::code_at(in, column)] >> (in % 8 >= 4 ? 4 : 0) & 15;
        row[i] = from_half(load_short(group + 8 * p.group + column * 2)) * (float)code +
                 from_half(load_short(group + 8 * p.group + 32 + column * 2));
      }
    }
  });
}

// Clears what lies between the values, too.
uint8_t* cleared(const Packing& p, void* out) { return (uint8_t*)memset(out, 0, (size_t)(p.blocks * p.block_bytes)); }

}  // namespace
}  // namespace TG_NS
}  // namespace tg

using namespace tg::TG_NS;

int64_t tg_packed_bytes(int32_t format, int32_t group, int32_t n, int32_t k, int32_t paired) {
  if (!valid(format, group, n, k, paired)) return TG_BAD_SHAPE;
  const Packing p(format, group, n, k, paired);
  return p.blocks * p.block_bytes;
}

int32_t tg_pack(int32_t format, int32_t group, int32_t n, int32_t k, int32_t paired, const float* source, void* out) {
  if (!valid(format, group, n, k, paired)) return TG_BAD_SHAPE;
  const Packing p(format, group, n, k, paired);
  each_output(p, cleared(p, out), [&](uint8_t* block, int32_t column, int32_t output) {
    const float* row = source + (int64_t)output * k;
    if (format == TG_BF16) {
      put_bf16(p, block, column, row);
    } else if (format == TG_INT8) {
      const float scale = int8_scale(row, k);
      put_int8(p, block, column, scale, [&](int32_t i) { return int8_value(row[i], scale); });
    } else {
      put_int4(p, block, column, row);
    }
  });
  return TG_OK;
}

int32_t tg_pack_codes(int32_t group, int32_t n, int32_t k, int32_t paired, const uint8_t* codes, const uint16_t* scale,
                      const uint16_t* min, void* out) {
  if (!valid(TG_INT4, group, n, k, paired) || k % group) return TG_BAD_SHAPE;
  const Packing p(TG_INT4, group, n, k, paired);
  each_output(p, cleared(p, out), [&](uint8_t* block, int32_t column, int32_t output) {
    for (int32_t g = 0; g < k / group; g++) {
      const int64_t at = (int64_t)output * (k / group) + g;
      put_group(p, block + g * p.group_bytes, column, codes + at * group, group, scale[at], min[at]);
    }
  });
  return TG_OK;
}

int32_t tg_pack_int8(int32_t n, int32_t k, int32_t paired, const int8_t* values, const float* scale, void* out) {
  if (!valid(TG_INT8, 0, n, k, paired)) return TG_BAD_SHAPE;
  const Packing p(TG_INT8, 0, n, k, paired);
  each_output(p, cleared(p, out), [&](uint8_t* block, int32_t column, int32_t output) {
    const int8_t* row = values + (int64_t)output * k;
    put_int8(p, block, column, scale[output], [&](int32_t i) { return (int)row[i]; });
  });
  return TG_OK;
}

int32_t tg_unpack(int32_t format, int32_t group, int32_t n, int32_t k, int32_t paired, const void* data, float* out) {
  if (!valid(format, group, n, k, paired)) return TG_BAD_SHAPE;
  unpack(Packing(format, group, n, k, paired), (const uint8_t*)data, out);
  return TG_OK;
}
