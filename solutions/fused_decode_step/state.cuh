// A thread's part of a state: R rows, `Groups` apart, of which it has C pieces of four key channels, `NextKey`
// apart. `tile`: of the rows of a block, the first that it has in hand.
#pragma once
#include "problem.cuh"

namespace {

template <int D, int Groups, int NextKey, int R, int C>
__device__ __forceinline__ void load_state(float4 (&S)[R][C], const float* from, int tile) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int c = 0; c < C; ++c) S[r][c] = load4(from + (tile + r * Groups) * D + c * NextKey);
  }
}

// S k and S q of each row, of this thread's key channels.
template <int R, int C>
__device__ __forceinline__ void add_read(const float4 (&S)[R][C], const float (&q)[C][4], const float (&k)[C][4],
                                         float (&sums)[2 * R]) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const float x[4] = {S[r][c].x, S[r][c].y, S[r][c].z, S[r][c].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[2 * r] = fmaf(x[e], k[c][e], sums[2 * r]);
        sums[2 * r + 1] = fmaf(x[e], q[c][e], sums[2 * r + 1]);
      }
    }
  }
}

// S <- alpha S + u k, here and in memory.
template <int D, int Groups, int NextKey, int R, int C>
__device__ __forceinline__ void write_state(float4 (&S)[R][C], const float (&u)[R], const float (&k)[C][4], float alpha, float* to,
                                            int tile) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      S[r][c].x = fmaf(u[r], k[c][0], alpha * S[r][c].x);
      S[r][c].y = fmaf(u[r], k[c][1], alpha * S[r][c].y);
      S[r][c].z = fmaf(u[r], k[c][2], alpha * S[r][c].z);
      S[r][c].w = fmaf(u[r], k[c][3], alpha * S[r][c].w);
      store4(to + (tile + r * Groups) * D + c * NextKey, S[r][c]);
    }
  }
}

}  // namespace
