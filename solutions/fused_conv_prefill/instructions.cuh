// What the kernel asks of the GPU beyond C++. tests/kernels/fused_conv_prefill/conv_emulation has the same for a CPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

// Programmatic dependent launch, of sm_90 and later: a kernel may start before the one ahead of it has ended, and waits
// here before it looks at memory.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// The kernel behind may start, once this one's first rows are on their way.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// 16 bytes to shared memory, in the background. A thread's copies since its last `end_group` are a group;
// `wait_for_groups<N>` returns once all but the last N of its groups are there, for itself to read.
__device__ __forceinline__ void copy_ahead(uint4* to, const __nv_bfloat16* from) {
  __pipeline_memcpy_async(to, from, sizeof(uint4));
}

__device__ __forceinline__ void end_group() { __pipeline_commit(); }

template <int N>
__device__ __forceinline__ void wait_for_groups() {
  __pipeline_wait_prior(N);
}

// In a register as it is: left to itself the compiler keeps what it was unpacked from, and unpacks it for every token.
__device__ __forceinline__ float kept(float x) {
  asm("" : "+f"(x));
  return x;
}

// These three without the detours that keep subnormal numbers.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two numbers, rounded to nearest even.
__device__ __forceinline__ uint32_t narrow(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace
