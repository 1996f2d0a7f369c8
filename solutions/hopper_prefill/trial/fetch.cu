// How fast warps run code that they fetch anew in every turn, and T beside what others do. One block, cycles of each warp.
//
//     nvcc -std=c++17 -O2 --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a -I TVM_FFI/include fetch.cu -o fetch
#include <cstdio>
#include <cstring>
#include "../long_prepare.cuh"

// N instructions in a straight line; Copy makes another place of code of it.
template <int N, int Copy>
__device__ __noinline__ float line(float a) {
  float x[8] = {a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6, a + 7};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x[i % 8]) : "f"(a), "f"(1.f + Copy));
  }
  return x[0] + x[1] + x[2] + x[3] + x[4] + x[5] + x[6] + x[7];
}
template <int N, int Copy>
__device__ __forceinline__ unsigned repeat(float& keep, int turns) {
  keep = line<N, Copy>(keep);
  const long long begun = clock64();
#pragma unroll 1
  for (int i = 0; i < turns; ++i) keep = line<N, Copy>(keep);
  return static_cast<unsigned>(clock64() - begun) / turns;
}
// Warps of `mask` run; with `apart`, those of each SMSP have code of their own.
template <int N>
__global__ void lines(unsigned* out, unsigned mask, int apart, int turns, float* sink) {
  const int warp = threadIdx.x / 32;
  float keep = threadIdx.x;
  unsigned t = 0;
  if (mask >> warp & 1) {
    const int copy = apart == 0 ? 0 : apart == 1 ? warp % 4 : warp / 4;
    if (copy == 0) t = repeat<N, 0>(keep, turns);
    else if (copy == 1) t = repeat<N, 1>(keep, turns);
    else if (copy == 2) t = repeat<N, 2>(keep, turns);
    else t = repeat<N, 3>(keep, turns);
  }
  if (threadIdx.x % 32 == 0) out[warp] = t;
  if (keep == 12345.678f) *sink = keep;
}

struct Bench {
  Room rooms[4];
  alignas(128) unsigned char scores[kProducts];
  Rows rows[4];
  StateTile tiles[4];
  alignas(1024) unsigned char P[kSquare];
  alignas(1024) unsigned char boxes[4][kBoxBytes];
};
// Warps 8 to 11 of `mask` invert; warps 0 to 7 do `beside`.
template <int N>
__global__ void __launch_bounds__(384, 1) inverters(unsigned* out, unsigned mask, int beside, int turns, float* sink, int what) {
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<Bench*>(memory);
  __shared__ volatile int over;
  for (unsigned i = threadIdx.x; i < sizeof(Bench) / 4; i += 384) reinterpret_cast<float*>(&s)[i] = 0.001f * (i % 7);
  if (threadIdx.x == 0) over = 0;
  __syncthreads();
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  unsigned t = 0;
  float keep = threadIdx.x;
  if (warp < 8) {
    registers_up<208>();
    if (mask >> warp & 1) {
      unsigned n = 0;
      const long long begun = clock64();
      if (beside == 1 || beside == 2) {
        while (!over) { if (beside == 1) keep = line<N, 0>(keep); else keep = line<64, 2>(keep); ++n; }
      } else if (beside == 3) {  // products, half of the time
        float acc[32] = {};
        uint32_t a[4][4] = {};
        while (!over) {
          wgmma_fence();
          for (int k = 0; k < 4; ++k) wgmma<__nv_bfloat16, 0>(acc, a[k], descriptor(shared_address(s.boxes[k]), 0), 1);
          wgmma_commit(); wgmma_wait<0>();
          settle(acc); ++n;
        }
        keep = acc[0];
      } else if (beside == 4) {  // reads of shared memory
        while (!over) { float4 f[8]; for (int i = 0; i < 8; ++i) f[i] = load_four(shared_address(s.boxes) + 16 * lane + 512 * i); keep += f[0].x + f[1].x + f[2].x + f[3].x + f[4].x + f[5].x+ f[6].x+ f[7].x; ++n; }
      }
      t = n == 0 ? 0 : static_cast<unsigned>(clock64() - begun) / n;
    }
  } else {
    registers_down<88>();
    const int i = warp - 8;
    if (mask >> warp & 1) {
      unsigned total = 0;
#pragma unroll 1
      for (int turn = 0; turn < turns + 1; ++turn) {
        const long long begun = clock64();
        if (what == 0) Inverter<__nv_bfloat16, 128, false, true, true>{s.rooms[i].products, s.rows[i], s.rooms[i].scratch, s.tiles[i].T[0], 1.f, lane_here()}.find();
        else keep = line<1000, 1>(keep);
        __syncwarp();
        if (turn > 0) total += static_cast<unsigned>(clock64() - begun);
      }
      t = total / turns;
    }
    named_barrier(1, 128);
    over = 1;
  }
  if (lane == 0) out[warp] = t;
  if (keep == 12345.678f) *sink = keep;
}

unsigned* out;
float* sink;
void print(const char* name) {
  unsigned t[12];
  cudaMemcpy(t, out, sizeof t, cudaMemcpyDeviceToHost);
  printf("%-52s", name);
  for (unsigned x : t) printf(" %6u", x);
  printf("  %s\n", cudaGetErrorString(cudaGetLastError()));
}
template <int N>
void run_lines() {
  char name[99];
  const auto go = [&](const char* what, unsigned mask, int apart) {
    lines<N><<<1, 384>>>(out, mask, apart, 50, sink);
    snprintf(name, 99, "%d instructions, %s", N, what);
    print(name);
  };
  go("one warp", 1, 0);
  go("a warp per SMSP, same code", 0xf, 0);
  go("a warp per SMSP, each its own", 0xf, 1);
  go("two warps of one SMSP, each its own", 0x11, 2);
  go("two warps per SMSP, each its own", 0xff, 2);
  go("two warps per SMSP, same code", 0xff, 0);
}
template <int N>
void run_inverters() {
  char name[99];
  cudaFuncSetAttribute(inverters<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Bench));
  const auto go = [&](const char* what, unsigned mask, int beside, int w) {
    inverters<N><<<1, 384, sizeof(Bench)>>>(out, mask, beside, 50, sink, w);
    snprintf(name, 99, "%s, %s", w ? "line of 1000" : "T", what);
    print(name);
  };
  for (int w = 0; w < 2; ++w) {
    go("one warp alone", 0x200, 0, w);
    go("two warps alone", 0x600, 0, w);
    go("four warps alone", 0xf00, 0, w);
    snprintf(name, 99, "two, beside lines of %d", N);
    char what[99]; snprintf(what, 99, "two, beside lines of %d", N);
    go(what, 0x6ff, 1, w);
    go("two, beside lines of 64", 0x6ff, 2, w);
    go("two, beside products", 0x6ff, 3, w);
    go("two, beside one warpgroup's products", 0x60f, 3, w);
    go("two, beside loads", 0x6ff, 4, w);
  }
}
int main() {
  cudaMalloc(&out, 48 * 4), cudaMalloc(&sink, 4);
  run_lines<128>(); run_lines<256>(); run_lines<512>(); run_lines<768>(); run_lines<1024>(); run_lines<2048>(); run_lines<4096>();
  run_inverters<700>();
}
