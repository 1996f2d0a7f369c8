// The kernel: a layer between its projections, for one token of a row and the value heads of a key head.
//
// Who waits for whom:
//
//   kernel ahead ──> slots ──> states asked for ──> kernel behind may start
//   kernel ahead ──> inputs ──> q, k, v convolved ──> cluster_arrive ──┐  gates
//                                     │ S has come                     │
//   each warp of a block:       sums ──> reads and squares             │ of all blocks of the cluster
//                                     │          │ sent behind ────────┤
//                                     ├──> S to memory                 │
//   the cluster's first block:        │   state of q and k to memory <─┘
//   each block:                       └──> waits for all squares of its head ──> output
#pragma once
#include "convolution.cuh"
#include "gates.cuh"
#include "state.cuh"
#include "tile.cuh"

namespace {

// Whether the first blocks ask for their states, into the L2 cache, while the kernel ahead still runs.
constexpr bool kEarlyPrefetch = true;

// Into the L2 cache, while the kernel ahead still runs: a block's part of its states; the group's q and k, and its values.
template <int D, int W, class T, class ChannelOf>
__device__ __forceinline__ void prefetch_early(const Arguments& p, int64_t row, int thread, int first_head, int end_head,
                                               int first_channel, const ChannelOf& channel_of) {
  // Values of slots may change yet, so they are hints; and they are read past the L1 cache, which would keep them.
  if (thread == 0) {
    const int slot = load_volatile(p.state_slots + row);
    if (is_slot(slot, p.num_state_slots)) {
      prefetch(p.states + slot * p.state_stride + (first_head * D + first_channel) * D,
               (end_head - first_head) * T::kPartRows * D * sizeof(float));
    }
  } else if (thread == 32 && blockIdx.x == 0) {  // the group's q and k, and its values
    const int slot = load_volatile(p.conv_slots + row), values = p.group * D;
    const int q = channel_of(0, 0), k = channel_of(D / 2, 0), v = (2 * gridDim.y + blockIdx.y * p.group) * D;
    const bf16* from = p.conv_states + slot * p.conv_stride;
    prefetch(p.conv_weight + q * W, D * W * sizeof(bf16));
    prefetch(p.conv_weight + k * W, D * W * sizeof(bf16));
    prefetch(p.conv_weight + v * W, values * W * sizeof(bf16));
    if (is_slot(slot, p.num_conv_slots)) {
      prefetch(from + q * (W - 1), D * (W - 1) * sizeof(bf16));
      prefetch(from + k * (W - 1), D * (W - 1) * sizeof(bf16));
      prefetch(from + v * (W - 1), values * (W - 1) * sizeof(bf16));
    }
  }
}

// q and k of a thread's channels, normalised, and q . k.
template <int D, int Lanes, int C>
__device__ __forceinline__ void take_vectors(const float* vectors, int key, float scale, float (&q)[C][4], float (&k)[C][4],
                                             float& dot) {
  constexpr int kNextKey = 4 * Lanes;
  float sums[3] = {};  // |q|^2, |k|^2, q . k
#pragma unroll
  for (int c = 0; c < C; ++c) {
    load_shared(&vectors[key + c * kNextKey], q[c]);
    load_shared(&vectors[D + key + c * kNextKey], k[c]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums[0] = fmaf(q[c][e], q[c][e], sums[0]);
      sums[1] = fmaf(k[c][e], k[c][e], sums[1]);
      sums[2] = fmaf(q[c][e], k[c][e], sums[2]);
    }
  }
  sum_lanes<1, Lanes>(sums);
  const float of_q = rsqrtf(sums[0] + kNormEpsilon) * scale, of_k = rsqrtf(sums[1] + kNormEpsilon);
  dot = sums[2] * of_q * of_k;
#pragma unroll
  for (int c = 0; c < C; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) q[c][e] *= of_q, k[c][e] *= of_k;
  }
}

// A warp's part of a head's sum of squares, to all blocks that have a part of the head.
template <class T, int D, int Warps>
__device__ __forceinline__ void send_squares(float square, int part, int warp, int lane, Shared<T, D, Warps>& shared) {
  if constexpr (T::kParts > 1) {
    cluster_wait();  // for the others to have begun
    if (lane < T::kParts) {
      const int rank = blockIdx.x - part + lane;
      send(&shared.squares[part * Warps + warp], square, &shared.all_squares, rank);
    }
  } else if (lane == 0) {
    shared.squares[warp] = square;
  }
}

// Two outputs, as the gated norm has them: over the sums of squares of the whole head.
template <int D, int Parts>
__device__ __forceinline__ void write_output(const float* squares, const float* read, float weight_0, float weight_1, bf16* to) {
  float sum = 0.f;
#pragma unroll
  for (int n = 0; n < Parts; ++n) sum += squares[n];  // in one order, so that all blocks agree
  const float factor = rsqrtf(fmaf(sum, 1.f / D, kNormEpsilon));
  const float2 o = *reinterpret_cast<const float2*>(read);
  store_pair(to, o.x * factor * weight_0, o.y * factor * weight_1);
}

template <int D, int W, int Split, int Lanes, int Loads, int Warps>
__global__ void __launch_bounds__(Tile<D, Split, Lanes, Loads, Warps>::kThreads)
    gdn_core_decode_kernel(const __grid_constant__ Arguments p) {
  using T = Tile<D, Split, Lanes, Loads, Warps>;
  constexpr int R = T::kRows, C = T::kChunks, kNextKey = 4 * Lanes;
  const int64_t row = blockIdx.z;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int part = T::kCluster ? blockIdx.x % T::kParts : 0, first_channel = part * T::kPartRows;
  const int first_head = blockIdx.y * p.group + (T::kCluster ? blockIdx.x / T::kParts : 0);
  const int end_head = T::kCluster ? first_head + 1 : first_head + p.group;
  const int row_of_tile = thread / Lanes;    // a thread's first row of a tile; the next is kGroups on
  const int key = 4 * (thread % Lanes);      // and its first key channel; the next chunk is kNextKey on

  // Pair n of a block's channels, of value head h: where it stands among all.
  const auto channel_of = [&](int n, int h) {
    const int q = static_cast<int>(blockIdx.y) * D, k = (gridDim.y + blockIdx.y) * D;
    const int v = (2 * gridDim.y + h) * D + first_channel;
    return n < D / 2 ? q + 2 * n : n < D ? k + 2 * n - D : v + 2 * (n - D);
  };

  __shared__ Shared<T, D, Warps> shared;
  float* const vectors = shared.vectors;

  if (kEarlyPrefetch && row < p.early_rows) {
    prefetch_early<D, W, T>(p, row, thread, first_head, end_head, first_channel, channel_of);
  }
  wait_for_previous();
  const int conv_slot = p.conv_slots[row], state_slot = p.state_slots[row];
  float q[C][4], k[C][4], dot = 0.f;

#pragma unroll 1
  for (int h = first_head; h < end_head; ++h) {
    // Everything is asked for before anything is waited for; only slots stand in the way of the states.
    const int first_pair = h == first_head ? thread : D + thread;  // q and k but once
    ChannelPair<W> pair[T::kRounds];
#pragma unroll
    for (int r = 0; r < T::kRounds; ++r) {
      const int n = first_pair + r * T::kThreads;
      if (n < T::kPairs) pair[r].load_inputs(p, row, channel_of(n, h));
    }
    const int64_t output_at = (row * p.H + h) * D + first_channel + 2 * thread;
    uint32_t z = 0, norm_weight = 0;
    if (thread < T::kOutputs) {
      z = load_words<1>(p.z + output_at).word[0];
      norm_weight = load_words<1>(p.norm_weight + first_channel + 2 * thread).word[0];
    }
    const RawGates raw(p, row, h);
    keep_order();

    // -1 skips a row, and so does a slot that is none. All blocks of a cluster agree.
    if (!is_slot(conv_slot, p.num_conv_slots) || !is_slot(state_slot, p.num_state_slots)) {
      if (thread < T::kOutputs) store_pair(p.output + output_at, 0.f, 0.f);
      continue;
    }
    bf16* const conv_state = p.conv_states + conv_slot * p.conv_stride;
    float* const state = p.states + state_slot * p.state_stride + (h * D + first_channel + row_of_tile) * D + key;
#pragma unroll
    for (int r = 0; r < T::kRounds; ++r) {
      const int n = first_pair + r * T::kThreads;
      if (n < T::kPairs) pair[r].load_state(conv_state, channel_of(n, h));
    }
    keep_order();
    float4 S[R][C];
    load_state<D, T::kGroups, kNextKey>(S, state, 0);
    keep_order();
    let_next_start();

    if constexpr (T::kParts > 1) {
      if (thread == 0) expect_bytes(&shared.all_squares, T::kParts * Warps * sizeof(float));
    }
#pragma unroll
    for (int r = 0; r < T::kRounds; ++r) {
      const int n = first_pair + r * T::kThreads;
      if (n < T::kPairs) *reinterpret_cast<float2*>(&vectors[2 * n]) = pair[r].convolved();
    }
    const Gates gate(raw);
    const float weight_0 = widened(norm_weight, 0) * silu(widened(z, 0));
    const float weight_1 = widened(norm_weight, 1) * silu(widened(z, 1));
    __syncthreads();
    if constexpr (T::kCluster) cluster_arrive();  // this block has read the convolution's state of q and k

    if (h == first_head) {
      take_vectors<D, Lanes>(vectors, key, p.scale, q, k, dot);
      if constexpr (T::kPasses == 1) finish(dot);  // where there are more, their loop sees to it
    }

    float square[1] = {};
#pragma unroll 1
    for (int pass = 0; pass < T::kPasses; ++pass) {
      // Both sums are taken of the state as it was read: the read-out after the write follows from q . k.
      const int tile = pass * T::kTileRows;
      float sums[2 * R] = {};
      add_read(S, q, k, sums);
      sum_lanes<1, Lanes>(sums);
      float u[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int i = tile + row_of_tile + r * T::kGroups;
        u[r] = gate.beta * fmaf(-gate.alpha, sums[2 * r], vectors[2 * D + i]);  // the error, of the decayed state
        const float o = fmaf(u[r], dot, gate.alpha * sums[2 * r + 1]);
        square[0] = fmaf(o, o, square[0]);
        if (key == 0) shared.read[i] = o;
      }
      if (pass == T::kPasses - 1) {
        sum_lanes<Lanes, 32>(square);
        send_squares(square[0], part, warp, lane, shared);
        keep_order();
      }
      write_state<D, T::kGroups, kNextKey>(S, u, k, gate.alpha, state, tile);
      if (pass < T::kPasses - 1) {
        load_state<D, T::kGroups, kNextKey>(S, state, tile + T::kTileRows);
      }
    }

    if constexpr (T::kCluster && T::kParts == 1) cluster_wait();
#pragma unroll
    for (int r = 0; r < T::kRounds; ++r) {
      const int n = first_pair + r * T::kThreads;
      const bool mine = n >= D || !T::kCluster || blockIdx.x == 0;  // values; q and k of the cluster's first block
      if (n < T::kPairs && mine) pair[r].store_state(conv_state, channel_of(n, h));
    }
    __syncthreads();
    if constexpr (T::kParts > 1) wait_for_bytes(&shared.all_squares);
    if (thread < T::kOutputs) {
      write_output<D, T::kParts * Warps>(shared.squares, &shared.read[2 * thread], weight_0, weight_1, p.output + output_at);
    }
  }
}

}  // namespace
