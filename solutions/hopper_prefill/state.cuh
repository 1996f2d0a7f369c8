// A warpgroup's slice of a state: 64 value channels, in registers.
//
// A thread holds, of every 8 key channels, two neighbours of two value channels: rows 16 warp + lane / 4 and eight further.
#pragma once
#include "shared.cuh"

namespace {

template <int D>
using Slice = float[kHalves<D>][32];  // [V, K], key channels 0 to 63, and 64 to 127

// This thread's part of the state that the work begins with; its first value channel and its first key channel.
template <int D>
__device__ __forceinline__ void load_state(Slice<D>& S, const Work& work, const float* from, bool k_first, int row, int column) {
  if (work.identity || from == nullptr) {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) {
      S[i / 32][i % 32] = work.identity && row + i % 4 / 2 * 8 == column + i / 4 * 8 + i % 2 ? 1.f : 0.f;
    }
  } else if (k_first) {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) S[i / 32][i % 32] = from[row + i % 4 / 2 * 8 + (column + i / 4 * 8 + i % 2) * D];
  } else {
#pragma unroll
    for (int i = 0; i < D / 2; i += 2) {
      const float2 pair = *reinterpret_cast<const float2*>(from + (row + i % 4 / 2 * 8) * D + column + i / 4 * 8);
      S[i / 32][i % 32] = pair.x, S[i / 32][i % 32 + 1] = pair.y;
    }
  }
}

template <int D>
__device__ __forceinline__ void save_state(const Slice<D>& S, const Work& work, float* to, bool k_first) {
  const int lane = lane_here(), column = 2 * (lane % 4);  // found again, and not kept over chunks
  const int row = work.slice + 16 * anew(threadIdx.x / 32) + lane / 4;
  if (k_first) {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) to[row + i % 4 / 2 * 8 + (column + i / 4 * 8 + i % 2) * D] = S[i / 32][i % 32];
  } else {
#pragma unroll
    for (int i = 0; i < D / 2; i += 2) {
      float* const pair = to + (row + i % 4 / 2 * 8) * D + column + i / 4 * 8;
      *reinterpret_cast<float2*>(pair) = make_float2(S[i / 32][i % 32], S[i / 32][i % 32 + 1]);
    }
  }
}

// Half of a checkpoint's rows, eight of sixteen. Where there is room for them, behind `s`, by way of shared memory, from where
// TMA takes them while products go on.
template <int D, bool Staged, class Block>
__device__ __forceinline__ void hand_out(const Slice<D>& S, const Work& work, Block& s, float* to, int half) {
  const int warp = anew(threadIdx.x / 32), lane = lane_here();  // nothing of this is kept over chunks
  const int row = work.slice + 16 * warp + 8 * half;
  if constexpr (Staged) {
    const uint32_t rows_at = shared_address(&s) + sizeof s + warp * kRowsBytes<D>;
    stored_read();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const int i = 4 * j + 2 * half;
      store_pair(rows_at + lane / 4 * kRowBytes<D> + lane % 4 * 8 + 32 * j, S[i / 32][i % 32], S[i / 32][i % 32 + 1]);
    }
    fence_async();
    __syncwarp();
    store_bytes_if(lane < 8, to + (row + lane) * D, rows_at + lane * kRowBytes<D>, 4 * D);
  } else {
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const int i = 4 * j + 2 * half;
      float* const pair = to + (row + lane / 4) * D + 2 * (lane % 4) + 8 * j;
      *reinterpret_cast<float2*>(pair) = make_float2(S[i / 32][i % 32], S[i / 32][i % 32 + 1]);
    }
  }
}

// Where the state behind so many of these chunks is to go; null: it is no checkpoint.
template <int D>
__device__ __forceinline__ float* checkpoint_behind(const Problem& p, const Work& work, int chunks) {
  const int done = work.before + chunks;
  if (done % p.every != 0 || work.start + static_cast<int64_t>(chunks) * kChunk > work.end) return nullptr;
  const int64_t place = p.checkpoint_starts[work.n] + done / p.every - 1;
  return place < 0 || place >= p.num_checkpoints ? nullptr : p.checkpoints + (place * p.H + work.h) * D * D;
}

}  // namespace
