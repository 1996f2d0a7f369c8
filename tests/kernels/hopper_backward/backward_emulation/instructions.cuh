// In the place of the kernel's file of this name: what hopper_prefill's emulator has, and what only the gradients need.
#pragma once
#include "hopper_emulation/instructions.cuh"

inline void store_bytes(void* to, uint32_t from, int bytes) { store_bytes_if(true, to, from, bytes); }

inline void load_bytes_once(uint32_t to, const void* from, int bytes, uint32_t barrier) { load_bytes(to, from, bytes, barrier); }
inline void bring_near(const void* from, int bytes) {
  require(reinterpret_cast<uintptr_t>(from) % 16 == 0 && bytes % 16 == 0, "bring_near: misaligned");
}
inline void store_once(uint4* at, uint4 x) { *at = x; }
inline float4 load_soon(const float4* from) { return *from; }
inline float multiply_apart(float x, float y) { return x * y; }

// Like all stores, each is done when it is waited for, here with the last one.
inline void stored_but_one() { stored_read_but_one(); }

// Blocks run one after the other, so what one has left the next one sees.
inline int count_in_order(int* at, int last) { return std::exchange(*at, *at >= last ? 0 : *at + 1); }
inline void store_released(int* at, int x) { *at = x; }
inline void store_count(int* at, int x) { *at = x; }
inline int wait_for_counts(const int* first, const int* second, int had) {
  wait_until("counts", [=] { return min(*first, *second) > had; });
  return min(*first, *second);
}
inline int load_acquired(const int* at) { return *at; }
inline int wait_for_number(const int* at) {
  wait_until("a number", [at] { return *at != 0; });
  return *at;
}

template <class E, int N>
void wgmma_part(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  ask_product(d, a, {0, b, 64, false, false, true, kType<E>, false, N});
}

template <class E, int TransposedB, int TransposedA>
void wgmma_shared(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
  ask_product(d, nullptr, {a, b, 64, true, TransposedB != 0, accumulate != 0, kType<E>, TransposedA != 0});
}
