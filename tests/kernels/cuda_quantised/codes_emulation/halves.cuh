// In the place of the kernel's file of this name: the same functions, emulated.
#pragma once
#include "codes.cuh"

inline uint32_t anew(uint32_t x) { return x; }

template <class E>
void codes_to_halves(uint32_t four, uint32_t& first, uint32_t& last) {
  float x[4];
  codes_to_floats<E>(four, x);
  first = pack<__half>(x[0], x[1]), last = pack<__half>(x[2], x[3]);
}

inline float2 to_two_floats(uint32_t halves) { return unpack<__half>(halves); }
inline uint32_t to_two_halves(float low, float high) { return pack<__half>(low, high); }

inline uint32_t larger_of_pairs(uint32_t x, uint32_t y) {
  x &= 0x7fff7fffu, y &= 0x7fff7fffu;
  return std::max(x & 0xffffu, y & 0xffffu) | std::max(x >> 16, y >> 16) << 16;
}

struct Operands {
  uint32_t a[2], b;
};

// to [16, 8] = A [16, 8] B [8, 8] + sums.
inline void multiply_8(float (&to)[4], uint32_t a0, uint32_t a1, uint32_t b, const float (&sums)[4]) {
  const Operands* all = together("multiply_8", Operands{{a0, a1}, b});
  const int g = running % kLanes / 4, t = running % 4;
  float found[4];
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * t + i % 2;
    double sum = sums[i];
    for (int k = 0; k < 8; ++k) {
      const uint16_t x = half_of(all[4 * g + k / 2].a[i / 2], k % 2), y = half_of(all[4 * column + k / 2].b, k % 2);
      sum += static_cast<double>(to_float(x, Type::float16)) * to_float(y, Type::float16);
    }
    found[i] = static_cast<float>(sum);
  }
  for (int i = 0; i < 4; ++i) to[i] = found[i];
}
