// Copies of many bytes to shared memory, which one thread asks for: sm_90 and later.
#pragma once
#include "words.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define GDN_BULK(...) asm volatile(__VA_ARGS__)
#else
#define GDN_BULK(...) __trap()
#endif
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

namespace {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint32_t bar, int count) {
  GDN_BULK("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_init_done() { GDN_BULK("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Arrives, and says that so many bytes will.
__device__ __forceinline__ void barrier_expect(uint32_t bar, int bytes) {
  GDN_BULK("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, int parity) {
  GDN_BULK(
      "{\n.reg .pred p;\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}"
      ::"r"(bar), "r"(parity) : "memory");
}
// As many bytes, a multiple of 16, as they lie.
__device__ __forceinline__ void load_bytes(uint32_t to, const void* from, int bytes, uint32_t bar) {
  GDN_BULK("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
           ::"r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar) : "memory");
}
__device__ __forceinline__ uint4 load_shared(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
  return x;
}

}  // namespace
