// What a kernel asks of the GPU beyond C++: the order of loads, early launch, the L2 cache.
#pragma once
#include "words.cuh"

namespace {

// Loads above stay above, and ones below stay below. Left to itself ptxas starts on the gates, and with that waits for
// their loads, before it has asked for the state.
__device__ __forceinline__ void keep_order() { __syncwarp(); }

// Programmatic dependent launch, of sm_90 and later: a kernel may start before the one ahead of it has ended, and waits
// here before it looks at memory.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// The kernel behind may start, once loads are on their way: earlier, its blocks are in the way of this one's. Called before the
// state is asked for: behind all loads ptxas puts a conversion of what they bring before it, and so has the kernel behind wait
// for memory as well, 0.4 us of a call.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  keep_order();
  cudaTriggerProgrammaticLaunchCompletion();
  keep_order();
#endif
}

// Into L2, and nowhere else: asked for before the kernel ahead has ended, and what that one still writes is seen by the
// load all the same. `bytes`: a multiple of 16.
__device__ __forceinline__ void bring_near(const void* from, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes) : "memory");
#endif
}

// The same of the line in which `from` is.
__device__ __forceinline__ void bring_line_near(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
}

// 1 / x within a unit of the last place, x no subnormal.
__device__ __forceinline__ float inverse_of(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace
