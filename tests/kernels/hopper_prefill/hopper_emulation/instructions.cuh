// In the place of the kernel's file of this name: the same functions, emulated.
#pragma once
#include "copies.h"
#include "registers.h"
#include "wgmma.h"

#include "descriptors.h"  // the kernel's own, cut out of its instructions.cuh: they hold no instruction

inline int lane_here() { return running % kLanes; }
inline int anew(int x) { return x; }
inline void let_next_begin() {}
inline void wait_for_last() {}
inline void fence_async_memory() {}

// What only a compiler needs.
template <int N>
void settle(float (&)[N]) {}
template <int N>
void keep(uint32_t (&)[N][4]) {}
