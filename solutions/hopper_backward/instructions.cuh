// The instructions of sm_90 that CUDA C++ has no name for, one function each.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "hopper_backward is for sm_90a alone"
#endif

#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The lane, read anew: what is computed from it is not kept in registers over a loop.
__device__ __forceinline__ int lane_here() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
// The same for a number.
__device__ __forceinline__ int anew(int x) {
  int y;
  asm volatile("mov.u32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// The next kernel's blocks may begin where there is room. They wait for what they need of this one.
__device__ __forceinline__ void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// For the kernel before to be over.
__device__ __forceinline__ void wait_for_last() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// --- mbarriers --------------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint32_t bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// There is no barrier any more: only then may anything else lie there. Else a multiprocessor may write what it knows of the barrier
// over that, as when it is given to another process for a while.
__device__ __forceinline__ void barrier_end(uint32_t bar) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(bar) : "memory"); }
__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrives, and says that so many bytes will.
__device__ __forceinline__ void barrier_expect(uint32_t bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}"
      ::"r"(bar), "r"(parity) : "memory");
}
// Arrives, where `this_lane` says so: without a branch.
__device__ __forceinline__ void barrier_arrive_if(int this_lane, uint32_t bar) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}"
      ::"r"(bar), "r"(this_lane) : "memory");
}
__device__ __forceinline__ void named_barrier(int id, int threads) {
#ifdef GDN_EVERY_LANE
  __syncwarp();  // code that racecheck adds may have let lanes go on alone
#endif
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// --- copies -----------------------------------------------------------------------------------------------------

// 64 rows of a tensor, from `token`: 64 of their channels, the first or the second, and behind these the others if the map
// says so. What lies outside is zero.
__device__ __forceinline__ void load_boxes(uint32_t to, const CUtensorMap* map, int half, int head, int token, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
      ::"r"(to), "l"(map), "r"(0), "r"(token), "r"(half), "r"(head), "r"(bar) : "memory");
}
// Four numbers that nobody writes meanwhile; asked for here, and not later.
__device__ __forceinline__ float4 load_soon(const float4* from) {
  float4 x;
  asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from));
  return x;
}
// As many bytes, a multiple of 16, as they lie.
__device__ __forceinline__ void load_bytes(uint32_t to, const void* from, int bytes, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
// The same for what nobody reads again: the cache may drop it first.
constexpr uint64_t kDropFirst = 0x12F0000000000000;
__device__ __forceinline__ void load_bytes_once(uint32_t to, const void* from, int bytes, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
               ::"r"(to), "l"(from), "r"(bytes), "r"(bar), "l"(kDropFirst) : "memory");
}
// To the cache alone: whoever loads them later finds them there.
__device__ __forceinline__ void bring_near(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// The other way.
__device__ __forceinline__ void store_bytes(void* to, uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;"
               ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
// Boxes to rows of a tensor, from `token` on. What lies outside is left out.
__device__ __forceinline__ void store_boxes(const CUtensorMap* map, uint32_t from, int half, int head, int token) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];\ncp.async.bulk.commit_group;"
      ::"l"(map), "r"(0), "r"(token), "r"(half), "r"(head), "r"(from) : "memory");
}
// For what this thread has stored to have been read.
__device__ __forceinline__ void stored_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// All but the last one to be there.
__device__ __forceinline__ void stored_but_one() { asm volatile("cp.async.bulk.wait_group 1;" ::: "memory"); }
// All to have been read, and to be there.
__device__ __forceinline__ void stored_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ void store_shared(uint32_t at, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

// A word in memory that nobody reads soon.
__device__ __forceinline__ void store_once(uint4* at, uint4 x) {
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

__device__ __forceinline__ uint4 load_shared(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
  return x;
}
__device__ __forceinline__ float load_one(uint32_t at) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
  return x;
}
__device__ __forceinline__ float4 load_four(uint32_t at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at) : "memory");
  return x;
}

// --- between blocks ---------------------------------------------------------------------------------------------

// Counts in memory, up to `last` and then from 0 again, and returns what was there: behind what this thread knows to have been
// written, and ahead of what it does next.
__device__ __forceinline__ int count_in_order(int* at, int last) {
  int y;
  asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(y) : "l"(at), "r"(last) : "memory");
  return y;
}
__device__ __forceinline__ void store_released(int* at, int x) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}
__device__ __forceinline__ int load_acquired(const int* at) {
  int y;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(y) : "l"(at) : "memory");
  return y;
}
// A number that is not zero, once it is there.
__device__ __forceinline__ int wait_for_number(const int* at) {
  int y;
  for (;;) {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(y) : "l"(at) : "memory");
    if (y != 0) return y;
    asm volatile("nanosleep.u32 100;");
  }
}
// Counts of one thread that others of the block wait for: to a count, and for two of them to be more than `had`. Returns the smaller.
// racecheck takes a load beside a store for a race, and not one atomic operation beside another.
#ifdef GDN_EVERY_LANE
__device__ __forceinline__ void store_count(int* at, int x) {
  int before;
  asm volatile("atom.release.cta.shared::cta.exch.b32 %0, [%1], %2;" : "=r"(before) : "r"(shared_address(at)), "r"(x) : "memory");
}
__device__ __forceinline__ int load_count(const int* at) {
  int x;
  asm volatile("atom.acquire.cta.shared::cta.or.b32 %0, [%1], 0;" : "=r"(x) : "r"(shared_address(at)) : "memory");
  return x;
}
#else
__device__ __forceinline__ void store_count(int* at, int x) {
  asm volatile("st.release.cta.shared::cta.s32 [%0], %1;" ::"r"(shared_address(at)), "r"(x) : "memory");
}
__device__ __forceinline__ int load_count(const int* at) {
  int x;
  asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];" : "=r"(x) : "r"(shared_address(at)) : "memory");
  return x;
}
#endif
__device__ __forceinline__ int wait_for_counts(const int* first, const int* second, int had) {
  for (;;) {
    const int x = load_count(first), y = load_count(second);
    if (min(x, y) > had) return min(x, y);
    asm volatile("nanosleep.u32 200;");
  }
}
// Copies that are asked for behind this see what this thread sees.
__device__ __forceinline__ void fence_async_memory() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// --- matrices in fragments --------------------------------------------------------------------------------------

// A product that is rounded before anything is added to it.
__device__ __forceinline__ float multiply_apart(float x, float y) { return __fmul_rn(x, y); }

__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void stmatrix(uint32_t at, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(at), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
__device__ __forceinline__ void stmatrix_transposed(uint32_t at, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(at), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
template <class E>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#define GDN_MMA(type)                                                                                             \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                             \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                             \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<E, __half>) {
    GDN_MMA("f16");
  } else {
    GDN_MMA("bf16");
  }
#undef GDN_MMA
}
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// --- pairs of 16-bit numbers ------------------------------------------------------------------------------------

// E: __nv_bfloat16 or __half. `low` in the lower half.
template <class E>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t y;
  if constexpr (std::is_same_v<E, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  }
  return y;
}
template <class E>
__device__ __forceinline__ float2 unpack(uint32_t x) {
  if constexpr (std::is_same_v<E, __half>) {
    float2 y;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}" : "=f"(y.x), "=f"(y.y) : "r"(x));
    return y;
  } else {
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
  }
}

// --- wgmma ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
template <int Registers>
__device__ __forceinline__ void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
// The compiler does not know that a product in flight writes these: nothing moves across.
template <int N>
__device__ __forceinline__ void settle(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Left operands in registers are read until their product is waited for: kept until then.
template <int N>
__device__ __forceinline__ void keep(uint32_t (&a)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+r"(a[i][e])::"memory");
  }
}
// Operands in shared memory: at `at`, the same for all of them that are read from there, and `ahead` bytes further.
// Of rows of 128 bytes, swizzled, eight to 1024 bytes.
__device__ __forceinline__ uint64_t descriptor(uint32_t at, int ahead) {
  const uint32_t low = ((at & 0x3ffff) >> 4 | 1 << 16) + (ahead >> 4);
  return low | uint64_t{64} << 32 | uint64_t{1} << 62;
}
// Of cores of 8 rows of 16 bytes, not swizzled: two side by side, 128 bytes apart; the next eight rows 256 bytes further.
__device__ __forceinline__ uint64_t descriptor_packed(uint32_t at, int ahead) {
  const uint32_t low = ((at & 0x3ffff) >> 4 | 8 << 16) + (ahead >> 4);
  return low | uint64_t{16} << 32;
}
// d [64, 64] (+)= a [64, 16] b [16, 64]: a in registers, b in shared memory. TransposedB: b lies [k, n], n contiguous.
template <class E, int TransposedB>
__device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  if constexpr (std::is_same_v<E, __half>) {
    asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, %38;"
      "\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
      "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
      "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
      "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TransposedB));
  } else {
    asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, %38;"
      "\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
      "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
      "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
      "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TransposedB));
  }
}
// d (+)= a [64, 16] b^T: only the first N of 64 columns. b's rows are columns of d.
template <class E, int N>
__device__ __forceinline__ void wgmma_part(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  static_assert(N == 16 || N == 32 || N == 48);
#define GDN_PART(n, type, sums, operands, ...)                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" sums "}, " operands ", 1, 1, 1, 0;" \
               : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define GDN_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define GDN_PARTS(type)                                                                                                         \
  if constexpr (N == 16) {                                                                                                      \
    GDN_PART("16", type, "%0, %1, %2, %3, %4, %5, %6, %7", "{%8, %9, %10, %11}, %12", GDN_8(0));                                 \
  } else if constexpr (N == 32) {                                                                                               \
    GDN_PART("32", type, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", "{%16, %17, %18, %19}, %20",    \
             GDN_8(0), GDN_8(8));                                                                                               \
  } else {                                                                                                                      \
    GDN_PART("48", type,                                                                                                        \
             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23",     \
             "{%24, %25, %26, %27}, %28", GDN_8(0), GDN_8(8), GDN_8(16));                                                       \
  }
  if constexpr (std::is_same_v<E, __half>) {
    GDN_PARTS("f16")
  } else {
    GDN_PARTS("bf16")
  }
#undef GDN_PARTS
#undef GDN_8
#undef GDN_PART
}
// Both operands in shared memory. TransposedA: a lies [k, m], m contiguous.
template <class E, int TransposedB, int TransposedA>
__device__ __forceinline__ void wgmma_shared(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (std::is_same_v<E, __half>) {
    asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, %36, %35;"
      "\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
      "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
      "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
      "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(accumulate), "n"(TransposedB), "n"(TransposedA));
  } else {
    asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, %36, %35;"
      "\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
      "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
      "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
      "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(accumulate), "n"(TransposedB), "n"(TransposedA));
  }
}
