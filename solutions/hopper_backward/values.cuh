// dv where heads share values: the sum of theirs, in one order.
#pragma once
#include "boxes.cuh"

namespace {

constexpr int kValueThreads = 256;

// The grid is (places of chunks, value heads).
template <class E>
__global__ void __launch_bounds__(kValueThreads) gdn_values_kernel(const __grid_constant__ Problem p) {
  wait_for_last();  // it may have begun beside the kernel before
  const auto [first, valid, n, is_first, is_last] = find_chunk(p, blockIdx.x);
  for (int at = threadIdx.x; at < valid * 16; at += kValueThreads) {
    const int row = at / 16, piece = at % 16;
    float sums[8] = {};
    for (int h = blockIdx.y * p.v_group; h < static_cast<int>(blockIdx.y + 1) * p.v_group; ++h) {
      const uint4 x = reinterpret_cast<const uint4*>(p.writes)[((first + row) * p.H + h) * 16 + piece];
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack<E>(words[i]);
        sums[2 * i] += pair.x, sums[2 * i + 1] += pair.y;
      }
    }
    const uint4 words = make_uint4(pack<E>(sums[0], sums[1]), pack<E>(sums[2], sums[3]), pack<E>(sums[4], sums[5]), pack<E>(sums[6], sums[7]));
    const int64_t to = ((first + row) * p.v_heads + blockIdx.y) * 16 + piece;
    reinterpret_cast<uint4*>(p.dv)[to] = words;
  }
}

}  // namespace
