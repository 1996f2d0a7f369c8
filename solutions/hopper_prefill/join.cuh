// The state before a segment, from that before the second one, over what the first pass found of those between:
//   S <- S Tr + L
// for each of them, L what zeros become there and Tr the identity. By a warpgroup for its 64 value channels, in products of
// bfloat16 numbers, two terms each: what is left out is 2^-16 of a product.
#pragma once
#include "shared.cuh"

namespace {

// 64 rows of Tr, from `slice` on, from where they were found: as value channels of a state.
template <int D>
__device__ __forceinline__ void save_transfer(float* to, int slice, int warp, int lane, const float (&S)[kHalves<D>][32]) {
  unsigned char* const rows = reinterpret_cast<unsigned char*>(to) + slice / kSlice * kTransferBytes<D>;
#pragma unroll
  for (int i = 0; i < D / 2; i += 2) {
    const int half = i / 32, at = i % 32, row = 16 * warp + lane / 4 + at % 4 / 2 * 8;
    const uint32_t high = pack<__nv_bfloat16>(S[half][at], S[half][at + 1]);
    const float2 had = unpack<__nv_bfloat16>(high);
    const uint32_t low = pack<__nv_bfloat16>(S[half][at] - had.x, S[half][at + 1] - had.y);
    unsigned char* const place = rows + half * kBoxBytes + swizzled(row, at / 4) + 4 * (lane % 4);
    *reinterpret_cast<uint32_t*>(place) = high;
    *reinterpret_cast<uint32_t*>(place + kHalves<D> * kBoxBytes) = low;
  }
}

// S, of which this thread has rows `row` and eight further, and of every 8 columns two from `column` on; it has the state
// before the second segment. Halves of transfers come where chunks 1 and 2 will (feed.cuh).
template <int D, int Groups, int Stages>
__device__ __forceinline__ void join(const Problem& p, Shared<D, Groups, true, Stages>& s, int row, int column,
                                     float (&S)[kHalves<D>][32]) {
  const Work& work = s.work;
  const int64_t step = static_cast<int64_t>(p.H) * D * D;
#pragma unroll 1
  for (int i = 1; i <= work.joins; ++i) {
    const float* const from = work.from + i * step + row * D + column;
    uint32_t high[D / 16][4], low[D / 16][4];
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      float* const x = S[k / 4] + k % 4 * 8;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        high[k][e] = pack<__nv_bfloat16>(x[2 * e], x[2 * e + 1]);
        const float2 had = unpack<__nv_bfloat16>(high[k][e]);
        low[k][e] = pack<__nv_bfloat16>(x[2 * e] - had.x, x[2 * e + 1] - had.y);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {  // L in its place
        const float2 pair = *reinterpret_cast<const float2*>(from + e % 2 * 8 * D + k * 16 + e / 2 * 8);
        x[2 * e] = pair.x, x[2 * e + 1] = pair.y;
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves<D>; ++half) {
      const uint32_t boxes = shared_address(s.boxes[1 + half].k);
      barrier_wait(shared_address(&s.joining[half]), (i - 1) & 1);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int columns = 0; columns < kHalves<D>; ++columns) {
          const uint64_t first = descriptor(boxes, columns * kBoxBytes + 2048 * k);
          const uint64_t second = descriptor(boxes, (kHalves<D> + columns) * kBoxBytes + 2048 * k);
          wgmma<__nv_bfloat16, 1>(S[columns], high[4 * half + k], first, 1);
          wgmma<__nv_bfloat16, 1>(S[columns], low[4 * half + k], first, 1);
          wgmma<__nv_bfloat16, 1>(S[columns], high[4 * half + k], second, 1);
        }
      }
      wgmma_commit();
    }
    if constexpr (kHalves<D> > 1) {
      wgmma_wait<1>();
      named_arrive(kTaken, 32 + 128 * Groups);
    }
    wgmma_wait<0>();
    settle_all(S);
    keep(high);
    keep(low);
    named_arrive(kTaken + kHalves<D> - 1, 32 + 128 * Groups);
  }
}

}  // namespace
