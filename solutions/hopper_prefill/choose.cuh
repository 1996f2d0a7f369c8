// One slice of a state in a block, or two: what is better depends on how long sequences are, which the device knows and the
// host does not.
#pragma once
#include "problem.cuh"

namespace {

// What a chunk with output takes, in cycles at 1.7 GHz: by slices in a block, whose one slice is given P; where one slice
// finds P, as two do.
__host__ __device__ constexpr int chunk_cycles(int groups) { return groups == 1 ? 1620 : 2750; }
constexpr int kFindsPCycles = 2050;
constexpr int kDecided = 32;  // sequences: a lane of a warp looks at one

struct Choice {
  int groups;  // slices of a block, the same in all
  int rank;    // how many sequences are longer than this lane's, or as long and before it
};

// By a warp. Longest first, a multiprocessor has the longest one, or as much as others, or two that come to share it.
__device__ __forceinline__ Choice choose_groups(const Problem& p) {
  const int lane = lane_here(), chunks = lane < p.N ? count_chunks(p, lane) : -1;
  int total = lane < p.N ? chunks : 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
  const int rank = find_rank(p, lane, chunks);
  const auto of_rank = [&](int r) {
    const unsigned here = __ballot_sync(kAllLanes, rank == r);
    const int x = __shfl_sync(kAllLanes, chunks, here == 0 ? 0 : __ffs(here) - 1);
    return here == 0 || x < 0 ? 0 : x;
  };
  const int longest = of_rank(0);
  const auto cycles = [&](int blocks, int each) {  // so many blocks a sequence
    const float average = static_cast<float>(total) * blocks / p.multiprocessors;
    return each * fmaxf(average, static_cast<float>(max(longest, 2 * of_rank(p.multiprocessors / blocks))));
  };
  return {cycles(2 * p.H, kFindsPCycles) < cycles(p.H, chunk_cycles(2)) ? 1 : 2, lane < p.N ? rank : -1};
}

}  // namespace
