// k_first: S [K, V], contiguous in value channels.
#pragma once
#include "slots.cuh"

namespace {

// `Lanes`: side by side in a row of the state, 16 bytes each; 8 are a line. `Loads`: a thread's key channels. `Ahead`:
// whether the state is brought near. `Early`: whether the kernel behind may start before the state is asked for.
template <class E, int D, int Lanes, int Loads, bool Ahead, bool Early>
struct ColumnTile {
  static constexpr bool kAhead = Ahead, kEarly = Early;
  static constexpr int kLanes = Lanes * kPer<E> <= D ? Lanes : D / kPer<E>;
  static constexpr int kChannels = kLanes * kPer<E>;  // value channels of a block
  static constexpr int kTiles = D / kChannels;
  static constexpr int kKeyLanes = 32 / kLanes;
  static constexpr int kLoads = kKeyLanes * Loads <= D ? Loads : D / kKeyLanes;
  static constexpr int kWarps = D / (kKeyLanes * kLoads);
  static constexpr int kThreads = 32 * kWarps;
  static_assert(kWarps * kKeyLanes * kLoads == D && kTiles * kChannels == D);
};

// Where a block is, and in it a thread.
template <class E, int D, class Tile>
struct ColumnPlace {
  static constexpr int N = Tile::kLoads, P = kPer<E>;
  int tile, h;
  int64_t row;
  int i;         // first of P value channels
  int key;       // first of N key channels
  int64_t part;  // of the first element

  __device__ __forceinline__ explicit ColumnPlace(int64_t slot_stride)
      : tile(blockIdx.x % Tile::kTiles),
        h(blockIdx.y * (gridDim.x / Tile::kTiles) + blockIdx.x / Tile::kTiles),
        row(blockIdx.z),
        i(tile * Tile::kChannels + P * (threadIdx.x % Tile::kLanes)),
        key(N * (threadIdx.x / Tile::kLanes)),
        part(row * slot_stride + (h * D + key) * D + i) {}
};

// Into L2: the block's strip of a state, and the vectors that go with it.
template <class E, int D, class Tile>
__device__ __forceinline__ void bring_columns_near(const Arguments<E>& p, const ColumnPlace<E, D, Tile>& at) {
  const E* const strip = p.from + at.row * p.slot_stride + static_cast<int64_t>(at.h) * D * D + at.tile * Tile::kChannels;
#pragma unroll 1
  for (int n = threadIdx.x; n < D; n += Tile::kThreads) bring_near(strip + n * D, Tile::kChannels * sizeof(E));
  if (threadIdx.x == 0) {
    bring_near(p.q + at.row * p.qk_stride + blockIdx.y * D, D * sizeof(bf16));
  } else if (threadIdx.x == 1) {
    bring_near(p.k + at.row * p.qk_stride + blockIdx.y * D, D * sizeof(bf16));
  } else if (threadIdx.x == 2) {
    bring_near(p.v + at.row * p.v_stride + at.h * D + at.tile * Tile::kChannels, Tile::kChannels * sizeof(bf16));
  } else if (threadIdx.x == 3) {
    bring_near(p.a + (at.row * p.H + at.h) * D, D * sizeof(bf16));
  }
}

// S k of every channel, S q of every channel, S decayed, then |q|^2, |k|^2, q . k: of this thread's channels.
template <int N, int P>
__device__ __forceinline__ void add_products(const uint4 (&S)[N], const float (&q)[N], const float (&k)[N],
                                             const float (&alpha)[N], float (&sums)[2 * P + 3]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    sums[2 * P] = fmaf(q[n], q[n], sums[2 * P]);
    sums[2 * P + 1] = fmaf(k[n], k[n], sums[2 * P + 1]);
    sums[2 * P + 2] = fmaf(q[n], k[n], sums[2 * P + 2]);
  }
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float k_then = alpha[n] * k[n], q_then = alpha[n] * q[n];
    float x[P];
    unpack(S[n], x);
#pragma unroll
    for (int e = 0; e < P; ++e) {
      sums[e] = fmaf(x[e], k_then, sums[e]);
      sums[P + e] = fmaf(x[e], q_then, sums[P + e]);
    }
  }
}

// Sums of a warp's key channels become those of all, over the warps in their order.
template <int W, int Parts, int Lanes, int Sums>
__device__ __forceinline__ void sum_warps(float4 (&partial)[W][Parts][Lanes], float (&sums)[Sums]) {
  const int column = threadIdx.x % Lanes;
  if (threadIdx.x % 32 < Lanes) {
#pragma unroll
    for (int n = 0; n < Parts; ++n) {
      partial[threadIdx.x / 32][n][column] =
          make_float4(sums[4 * n], sums[4 * n + 1], sums[4 * n + 2], n < Parts - 1 ? sums[4 * n + 3] : 0.f);
    }
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < Parts; ++n) {
    float4 sum = partial[0][n][column];
#pragma unroll
    for (int w = 1; w < W; ++w) {
      const float4 x = partial[w][n][column];
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    sums[4 * n] = sum.x, sums[4 * n + 1] = sum.y, sums[4 * n + 2] = sum.z;
    if (n < Parts - 1) sums[4 * n + 3] = sum.w;
  }
}

template <class E, int D, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) kda_decode_k_first_kernel(const __grid_constant__ Arguments<E> p) {
  constexpr int N = Tile::kLoads, P = kPer<E>, W = Tile::kWarps;
  const ColumnPlace<E, D, Tile> at(p.slot_stride);
  if constexpr (Tile::kAhead) bring_columns_near(p, at);

  wait_for_previous();
  float q[N], k[N], v[P];
  Packed<N> q_raw, k_raw;
  Packed<P> v_raw;
  q_raw.load(p.q + at.row * p.qk_stride + blockIdx.y * D + at.key);
  k_raw.load(p.k + at.row * p.qk_stride + blockIdx.y * D + at.key);
  v_raw.load(p.v + at.row * p.v_stride + at.h * D + at.i);
  keep_order();
  const RawGates<D, Tile::kThreads> gates(p, at.row, at.h);
  keep_order();
  if constexpr (Tile::kEarly) let_next_start();
  uint4 S[N];  // under key channels key .. key + N - 1
#pragma unroll
  for (int n = 0; n < N; ++n) S[n] = load16(p.from + at.part + n * D);
  keep_order();
  if constexpr (!Tile::kEarly) let_next_start();

  __shared__ alignas(16) float alphas[D];
  gates.share_alphas(alphas, p.bounded, p.lower_bound);
  const float beta = gates.beta();
  q_raw.widen_to(q), k_raw.widen_to(k), v_raw.widen_to(v);
  float alpha[N];
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) alpha[n] = alphas[at.key + n];

  float sums[2 * P + 3] = {};
  add_products<N, P>(S, q, k, alpha, sums);
  sum_lanes<Tile::kLanes, 32>(sums);
  if constexpr (W > 1) {
    __shared__ float4 partial[W][(2 * P + 4) / 4][Tile::kLanes];
    sum_warps(partial, sums);
  }
  const Factors factor(p.normalise, sums[2 * P], sums[2 * P + 1], sums[2 * P + 2]);

  float u[P], o[P];
#pragma unroll
  for (int e = 0; e < P; ++e) o[e] = read_out(sums[e], sums[P + e], v[e], beta, factor, p.scale, u[e]);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    float x[P];
    unpack(S[n], x);
#pragma unroll
    for (int e = 0; e < P; ++e) x[e] = fmaf(u[e], k[n], alpha[n] * x[e]);
    store16<false>(p.to + at.part + n * D, pack(x));
  }
  if (threadIdx.x < Tile::kLanes) {
    uint2* out = reinterpret_cast<uint2*>(p.output + (at.row * p.H + at.h) * D + at.i);
#pragma unroll
    for (int n = 0; n < P / 4; ++n) {
      out[n] = make_uint2(narrow(o[4 * n], o[4 * n + 1]), narrow(o[4 * n + 2], o[4 * n + 3]));
    }
  }
}

}  // namespace
