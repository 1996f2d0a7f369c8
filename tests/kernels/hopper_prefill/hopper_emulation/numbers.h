// The two 16-bit types.
#pragma once
#include "cuda_words.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __half {
  uint16_t bits;
};

enum class Type { bfloat16, float16 };
template <class E>
constexpr Type kType = std::is_same_v<E, __half> ? Type::float16 : Type::bfloat16;

template <class To, class From>
To same_bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

inline float to_float(uint16_t bits, Type type) {
  if (type == Type::bfloat16) return same_bits<float>(static_cast<uint32_t>(bits) << 16);
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ffu;
  if (exponent == 0) return (sign ? -1.f : 1.f) * static_cast<float>(fraction) * 0x1p-24f;
  return same_bits<float>(sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 | fraction << 13);
}

// To the nearest, ties to even.
inline uint16_t to_bits(float x, Type type) {
  const uint32_t bits = same_bits<uint32_t>(x);
  if (std::isnan(x)) return 0x7fff;
  if (type == Type::bfloat16) return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  const uint16_t sign = bits >> 16 & 0x8000;
  const float size = std::fabs(x);
  if (size >= 65520.f) return sign | 0x7c00;
  if (size < 0x1p-14f) return sign | static_cast<uint16_t>(std::nearbyint(size * 0x1p24f));
  const uint32_t rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded >> 13) - (112 << 10));
}

template <class E>
uint32_t pack(float low, float high) {
  return to_bits(low, kType<E>) | static_cast<uint32_t>(to_bits(high, kType<E>)) << 16;
}

inline uint16_t half_of(uint32_t pair, int half) { return static_cast<uint16_t>(pair >> 16 * half); }

template <class E>
float2 unpack(uint32_t pair) {
  return {to_float(half_of(pair, 0), kType<E>), to_float(half_of(pair, 1), kType<E>)};
}

// What is subnormal becomes zero.
inline float exp2_fast(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.f : y;
}
