// What only the machine can do: early launch, and barriers and messages between the blocks of a cluster.
#pragma once

// Loads above stay above, and ones below stay below. Left to itself ptxas starts on what has come, and with that waits
// for it, before it has asked for the state.
__device__ __forceinline__ void keep_order() { __syncwarp(); }

// What x is made of is done before what follows begins: a branch that is never taken, for no arithmetic makes this NaN.
// ptxas moves arithmetic over anything else, and lets what is ready wait behind what is not.
__device__ __forceinline__ void finish(float x) {
  if (__float_as_uint(x) == 0x7f800001u) __trap();
}

// --- early launch: of sm_90 and later -------------------------------------------------------------------------------

// A kernel may start before the one ahead of it has ended, and waits here before it trusts what it reads.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// The kernel behind may start. Once loads are on their way: earlier, its blocks are in the way of this one's.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// From the L2 cache, leaving nothing in the L1 cache.
__device__ __forceinline__ int load_volatile(const int32_t* from) {
  int x = -1;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from));
#endif
  return x;
}

// Into the L2 cache, which holds what is newest whoever writes it. `from` and `bytes` are multiples of 16.
__device__ __forceinline__ void prefetch(const void* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
#endif
}

// --- clusters: of sm_90 and later -----------------------------------------------------------------------------------

// Relaxed: what was read before has come, for its values have been used; and no memory is shared by this but what
// `expect_bytes` orders by itself. A release would wait for every store under way.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// The same place in the block of this rank.
__device__ __forceinline__ uint32_t address_in(const void* at, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(rank));
  return there;
}
#endif

// A barrier for so many bytes; by one thread, once, before it arrives at the cluster's barrier.
__device__ __forceinline__ void expect_bytes(uint64_t* barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  const uint32_t at = shared_address(barrier);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
#endif
}

// Into the shared memory of another block, which its barrier there counts.
__device__ __forceinline__ void send(float* to, float x, uint64_t* barrier, int rank) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                   address_in(to, rank)),
               "f"(x), "r"(address_in(barrier, rank))
               : "memory");
#endif
}

__device__ __forceinline__ void wait_for_bytes(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  const uint32_t at = shared_address(barrier);
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
        "selp.b32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(at)
        : "memory");
  }
#endif
}
