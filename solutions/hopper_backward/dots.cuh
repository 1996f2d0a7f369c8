// What the walk back finds of dbeta and dg: sums of products over a warp's channels, while one factor is at hand in float32.
#pragma once
#include "sums.cuh"
#include "walk.cuh"

namespace {

// What load_tokens has of a box, from memory. All is asked for before any is used.
__device__ __forceinline__ void load_tokens_from_memory(Tokens& bits, const unsigned char* box, int warp, int lane) {
  const int channel = 16 * warp + lane / 4;
  uint32_t words[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int token = i / 4 * 8 + 2 * (lane % 4) + i % 2, piece = channel / 8 + i / 2 % 2;
    words[i] = *reinterpret_cast<const uint16_t*>(box + swizzled(token, piece) + channel % 8 * 2);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) bits[i / 4][i % 4] = words[2 * i] | words[2 * i + 1] << 16;
}

// x . r of each token, over a warp's channels. `rests`: what r has lost, or null. All of it is asked for before any is used.
template <class E, bool WithRests>
__device__ __forceinline__ void dot_tokens(const float (&x)[32], Tokens& r, const uint4* rests, float* to, int warp, int lane) {
  uint4 lost[4];
  if constexpr (WithRests) {
#pragma unroll
    for (int k = 0; k < 4; ++k) lost[k] = make_uint4(0, 0, 0, 0);
    if (rests != nullptr) {
#pragma unroll
      for (int k = 0; k < 4; ++k) lost[k] = rests[32 * k + lane];
    }
  }
  float sums[16] = {};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = 8 * k + 2 * e, n = 2 * (2 * k + e / 2);
      float2 error = unpack<E>(r[k][e]);
      if constexpr (WithRests) {
        const float2 rest = unpack<E>(e == 0 ? lost[k].x : e == 1 ? lost[k].y : e == 2 ? lost[k].z : lost[k].w);
        error.x += rest.x, error.y += rest.y;
      }
      sums[n] = fmaf(x[i], error.x, sums[n]), sums[n + 1] = fmaf(x[i + 1], error.y, sums[n + 1]);
    }
  }
  add_rows(sums, lane);
  *reinterpret_cast<float2*>(to + 2 * lane) = make_float2(sums[0], sums[1]);
}

// <S, dS> over a warp's channels, where a chunk is a sequence's first or last: a given state, or gradient, may be large beside
// what is left of the sum, so neither is rounded here. `boxes`: S as the forward walk has left it, of the warpgroup's channels. All
// is asked for before any is used.
template <class E>
__device__ __forceinline__ float dot_states_exactly(const Slice& dS, const float* given, bool k_first, const unsigned char* boxes,
                                                    int row, int column, int warp, int lane) {
  float2 S[32];
  if (given != nullptr) {
#pragma unroll
    for (int i = 0; i < 32; ++i) S[i] = load_pair(given, k_first, row + i % 2 * 8, column + i / 2 * 8);
  } else {
    uint32_t words[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const uint32_t at = swizzled(16 * warp + lane / 4 + i % 2 * 8, i / 2 % 8) + lane % 4 * 4;
      words[i] = *reinterpret_cast<const uint32_t*>(boxes + i / 16 * kBoxBytes + at);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) S[i] = unpack<E>(words[i]);
  }
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 32; ++i) sum = fmaf(S[i].x, dS[i / 16][2 * i % 32], fmaf(S[i].y, dS[i / 16][2 * i % 32 + 1], sum));
  return add_all(sum);
}

// The state that is given before the chunks of a walk, as it is given; or null. Between segments S as the forward walk has left it will do, as
// between other chunks.
__device__ __forceinline__ const float* given_state(const Problem& p, const Work& work) {
  const float* const all = p.segments.initial_state;
  return work.of_dh0 >= 0 && all != nullptr ? all + at_place(p, work.of_dh0, work.h) * kHeadSize * kHeadSize : nullptr;
}

// A warp's part of tokens' values, to memory and back.
__device__ __forceinline__ void keep_tokens(const float (&x)[32], float* to, int lane) {
#pragma unroll
  for (int i = 0; i < 32; ++i) to[32 * i + lane] = x[i];
}
__device__ __forceinline__ void take_tokens(float (&x)[32], const float* from, int lane) {
#pragma unroll
  for (int i = 0; i < 32; ++i) x[i] = from[32 * i + lane];
}

// What a warp finds of a sequence's last chunk, once the forward walk is over: y and x of it are kept in memory.
template <class E, int Groups>
__device__ __forceinline__ void find_of_last(const Problem& p, const Work& work, int wg) {
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0), lane = lane_here(), slice = anew(work.slice) + wg * kSlice;
  const int walker = slice / kSlice * 4 + warp, row = slice + 16 * warp + lane / 4, column = 2 * (lane % 4);
  const int64_t at = at_place(p, work.place + work.chunks - 1, work.h);
  const float* const kept = p.kept + (at_place(p, work.n, work.h) * kWalkers + walker) * (kChunk * kChunk / 2);
  wait_for_forward<Groups>(p, work);
  Slice dS;
  load_state(dS, gradient_behind(p, work.n, work.h), row, column);
  const float* const given = work.chunks == 1 ? given_state(p, work) : nullptr;
  const unsigned char* const S = p.starts + at * kStateBytes + slice / kSlice * (kHalves * kBoxBytes);
  const float found = dot_states_exactly<E>(dS, given, p.segments.k_first, S, row, column, warp, lane);
  WalkSums& sums = ends_at(p, work.n, work.h, true);
  if (lane == 0) sums.of_states[walker] = found;
  Tokens errors;
  load_tokens_from_memory(errors, p.errors + at * kValueBytes + slice / kSlice * kBoxBytes, warp, lane);
  const uint4* const rests = keeps_rests(p) ? rests_of(p, work, true, walker) : nullptr;
  float x[32];
  take_tokens(x, kept, lane);
  float* const of_end = p.of_end + (at_place(p, work.n, work.h) * kWalkers + walker) * kChunk;
  if (p.dht != nullptr) dot_tokens<E, true>(x, errors, rests, of_end, warp, lane);
  take_tokens(x, kept + kChunk * kChunk / 4, lane);
  dot_tokens<E, true>(x, errors, rests, sums.of_beta[walker], warp, lane);
}

}  // namespace
