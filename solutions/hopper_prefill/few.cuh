// Sequences of a few tokens, one token after the other, with rows of a state in registers: a state comes and goes once, and nothing
// is prepared. Blocks are small, like those of decode: no multiprocessor gets much more than its share, and many loads are under way.
#pragma once
#include "problem.cuh"

namespace {

// Lanes share a row of the state, [V, K]: each has four neighbours of either half. A thread has two rows.
constexpr int kFewThreads = 128, kFewLanes = 16, kFewRows = 2, kFewHalves = 2;
constexpr int kFewChannels = kFewThreads / kFewLanes * kFewRows;  // value channels of a block
constexpr int kFewBlocks = kStaySize / kFewChannels;              // of a (sequence, head)
static_assert(4 * kFewLanes * kFewHalves == kStaySize);

// What a thread needs of a token, as it is in memory: to convert it would be to wait for it.
struct FewToken {
  uint2 q[kFewHalves], k[kFewHalves];
  uint32_t v;
  float alpha = 1, beta = 1;
};

template <class E>
__device__ __forceinline__ void unpack_channels(float (&to)[kFewHalves][4], const uint2 (&from)[kFewHalves]) {
#pragma unroll
  for (int half = 0; half < kFewHalves; ++half) {
    const float2 low = unpack<E>(from[half].x), high = unpack<E>(from[half].y);
    to[half][0] = low.x, to[half][1] = low.y, to[half][2] = high.x, to[half][3] = high.y;
  }
}

// A block has kFewChannels value channels of head y of sequence z. What has more than p.few tokens is left to blocks that prepare
// chunks (short.cuh), which need nothing of this kernel. States are [V, K], gates linear.
template <class E>
__global__ void __launch_bounds__(kFewThreads)
    gdn_few_kernel(const __grid_constant__ Problem p, const E* q, const E* k, const E* v) {
  let_next_begin();
  const int h = blockIdx.y, n = blockIdx.z, lane = threadIdx.x % kFewLanes;
  const int channel = blockIdx.x * kFewChannels + threadIdx.x / kFewLanes * kFewRows;
  const int64_t start = bound(p, n), tokens = bound(p, n + 1) - start;
  const int64_t state = ((static_cast<int64_t>(n) * p.H + h) * kStaySize + channel) * kStaySize + 4 * lane;
  const auto place = [&](int row, int half) { return state + row * kStaySize + half * 4 * kFewLanes; };
  float4 S[kFewRows][kFewHalves] = {};
  if (p.initial_state != nullptr) {
#pragma unroll
    for (int row = 0; row < kFewRows; ++row) {
#pragma unroll
      for (int half = 0; half < kFewHalves; ++half) {
        S[row][half] = *reinterpret_cast<const float4*>(p.initial_state + place(row, half));
      }
    }
  }
  __syncwarp();  // loads stay above: the state is on its way before anybody knows how long the sequence is
  if (tokens <= p.few) {
    const E* const q_at = q + h / p.q_group * kStaySize + 4 * lane;
    const E* const k_at = k + h / p.k_group * kStaySize + 4 * lane;
    const E* const v_at = v + h / p.v_group * kStaySize + channel;
    const auto load = [&](FewToken& to, int64_t token) {
      const int64_t row = token * kStaySize;
#pragma unroll
      for (int half = 0; half < kFewHalves; ++half) {
        to.q[half] = *reinterpret_cast<const uint2*>(q_at + row * (p.H / p.q_group) + half * 4 * kFewLanes);
        to.k[half] = *reinterpret_cast<const uint2*>(k_at + row * (p.H / p.k_group) + half * 4 * kFewLanes);
      }
      to.v = *reinterpret_cast<const uint32_t*>(v_at + row * (p.H / p.v_group));
      if (p.g != nullptr) to.alpha = p.g[token * p.H + h];
      if (p.beta != nullptr) to.beta = p.beta[token * p.H + h];
    };
    FewToken next;
    if (tokens > 0) load(next, start);
#pragma unroll 1
    for (int64_t t = 0; t < tokens; ++t) {
      const FewToken token = next;
      if (t + 1 < tokens) load(next, start + t + 1);
      float q_here[kFewHalves][4], k_here[kFewHalves][4];
      unpack_channels<E>(q_here, token.q), unpack_channels<E>(k_here, token.k);
      float sums[2 * kFewRows + 1] = {};  // S k and S q of each row, then q . k
#pragma unroll
      for (int half = 0; half < kFewHalves; ++half) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[2 * kFewRows] = fmaf(q_here[half][e], k_here[half][e], sums[2 * kFewRows]);
#pragma unroll
        for (int row = 0; row < kFewRows; ++row) {
          const float4& x = S[row][half];
          const float of[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            sums[2 * row] = fmaf(of[e], k_here[half][e], sums[2 * row]);
            sums[2 * row + 1] = fmaf(of[e], q_here[half][e], sums[2 * row + 1]);
          }
        }
      }
#pragma unroll
      for (int other = 1; other < kFewLanes; other *= 2) {
#pragma unroll
        for (float& sum : sums) sum += __shfl_xor_sync(kAllLanes, sum, other);
      }
      const float2 value = unpack<E>(token.v);
      float output[kFewRows];
#pragma unroll
      for (int row = 0; row < kFewRows; ++row) {
        const float u = token.beta * fmaf(-token.alpha, sums[2 * row], row == 0 ? value.x : value.y);
        output[row] = p.scale * fmaf(u, sums[2 * kFewRows], token.alpha * sums[2 * row + 1]);
#pragma unroll
        for (int half = 0; half < kFewHalves; ++half) {
          float4& x = S[row][half];
          const float* const by = k_here[half];
          x = make_float4(fmaf(u, by[0], token.alpha * x.x), fmaf(u, by[1], token.alpha * x.y),
                          fmaf(u, by[2], token.alpha * x.z), fmaf(u, by[3], token.alpha * x.w));
        }
      }
      if (lane == 0) {
        static_cast<uint32_t*>(p.output)[(((start + t) * p.H + h) * kStaySize + channel) / 2] = pack<E>(output[0], output[1]);
      }
    }
#pragma unroll
    for (int row = 0; row < kFewRows; ++row) {
#pragma unroll
      for (int half = 0; half < kFewHalves; ++half) {
        *reinterpret_cast<float4*>(p.final_state + place(row, half)) = S[row][half];
      }
    }
  }
  wait_for_last();  // so that what waits for this kernel also waits for the order of sequences
}

}  // namespace
