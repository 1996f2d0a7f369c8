// In the place of the kernel's file of this name: what hopper_prefill's emulator has, and what only the gradients need.
#pragma once
#include "hopper_emulation/instructions.cuh"

inline void store_bytes(void* to, uint32_t from, int bytes) { store_bytes_if(true, to, from, bytes); }

template <class E, int TransposedB, int TransposedA>
void wgmma_shared(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
  ask_product(d, nullptr, {a, b, 64, true, TransposedB != 0, accumulate != 0, kType<E>, TransposedA != 0});
}
