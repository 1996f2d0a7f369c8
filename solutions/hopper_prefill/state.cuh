// A warpgroup's slice of a state: 64 value channels, in registers.
//
// A thread holds, of every 8 key channels, two neighbours of two value channels: rows 16 warp + lane / 4 and eight further.
#pragma once
#include "shared.cuh"

namespace {

template <int D>
using Slice = float[kHalves<D>][32];  // [V, K], key channels 0 to 63, and 64 to 127

// In memory a lane takes four channels at a time, of every 16 key channels: its two and its neighbour's, of the first eight where
// its lane is even, of the last eight where it is odd. So a warp takes 64 bytes of each of eight rows at once, and not 32.
__device__ __forceinline__ int beside_of(bool odd) { return odd ? 6 : 0; }
__device__ __forceinline__ float2 exchanged(float2 given) {
  return make_float2(__shfl_xor_sync(kAllLanes, given.x, 1), __shfl_xor_sync(kAllLanes, given.y, 1));
}

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
    const bool odd = lane_here() & 1;
    from += row * D + column + beside_of(odd);
    float4 fours[D / 8];
#pragma unroll
    for (int j = 0; j < D / 8; ++j) fours[j] = *reinterpret_cast<const float4*>(from + j % 2 * 8 * D + j / 2 * 16);
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const int i = j / 2 * 8 + j % 2 * 2;
      const float4 four = fours[j];
      const float2 other = exchanged(odd ? make_float2(four.x, four.y) : make_float2(four.z, four.w));
      S[i / 32][i % 32] = odd ? other.x : four.x, S[i / 32][i % 32 + 1] = odd ? other.y : four.y;
      S[i / 32][i % 32 + 4] = odd ? four.z : other.x, S[i / 32][i % 32 + 5] = odd ? four.w : other.y;
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
    const bool odd = lane & 1;
    to += row * D + column + beside_of(odd);
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const int i = j / 2 * 8 + j % 2 * 2;
      const float2 first = make_float2(S[i / 32][i % 32], S[i / 32][i % 32 + 1]);
      const float2 second = make_float2(S[i / 32][i % 32 + 4], S[i / 32][i % 32 + 5]);
      const float2 other = exchanged(odd ? first : second);
      *reinterpret_cast<float4*>(to + j % 2 * 8 * D + j / 2 * 16) =
          odd ? make_float4(other.x, other.y, second.x, second.y) : make_float4(first.x, first.y, other.x, other.y);
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
