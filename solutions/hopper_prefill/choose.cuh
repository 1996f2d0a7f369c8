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

// Where blocks stay, of how many of the longest sequences each slice is a work of its own: where one of them with both slices
// would last longer than all others need. By a warp, of up to kDecided sequences; `chunks` of the lane-th longest, of which
// `lengths` has all. A lane looks at one number: the time is that of all works, or that of the longest of either kind, which are
// taken in this order, or that of the first two or three that a multiprocessor has. Less than 0: of none, nor of the last ones;
// 0: as the host has it, who takes them to be alike.
__device__ __forceinline__ int choose_sliced(const Problem& p, int chunks, const int* lengths) {
  constexpr float kOne = kFindsPCycles, kBoth = chunk_cycles(2), kNext = 3500;  // cycles; the last of a work besides its chunks
  const int lane = lane_here(), longest = __shfl_sync(kAllLanes, chunks, 0);
  if (p.whole > 0 && longest == __shfl_sync(kAllLanes, chunks, p.N - 1)) return 0;
  int behind = chunks;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int x = __shfl_up_sync(kAllLanes, behind, step);
    if (lane >= step) behind += x;
  }
  const int all = __shfl_sync(kAllLanes, behind, 31), before = behind - chunks;
  const int sliced = 2 * p.H * lane, works = sliced + p.H * (p.N - lane), places = p.multiprocessors;
  const float first = sliced * kNext + 2.f * p.H * before * kOne;
  const float others = (works - sliced) * kNext + static_cast<float>(p.H) * (all - before) * kBoth;
  float time = fmaxf((first + others) / places, (sliced >= places ? first / places : 0.f) + chunks * kBoth);
  if (lane > 0) time = fmaxf(time, longest * kOne);
  for (int turn = 1; turn <= 2; ++turn) {
    const int work = turn * places, rank = work < sliced ? work / (2 * p.H) : lane + (work - sliced) / p.H;
    if (lane <= p.N && work < works) time = fmaxf(time, (turn + 1) * (lengths[rank] * (work < sliced ? kOne : kBoth) + kNext));
  }
  if (lane > p.N) time = 1e30f;
  float least = time;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) least = fminf(least, __shfl_xor_sync(kAllLanes, least, step));
  if (least > 0.97f * __shfl_sync(kAllLanes, time, 0)) return -1;
  return __ffs(__ballot_sync(kAllLanes, time == least)) - 1;
}

}  // namespace
