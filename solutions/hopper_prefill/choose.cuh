// What a block has: both slices of a state, or one; and whether one kernel has the call, or two. What is better depends on how
// long sequences are, which the device knows and the host does not.
#pragma once
#include <algorithm>

#include "problem.cuh"

namespace {

// What a chunk with output takes, in cycles, where memory does not hold it up: by slices in a block, whose one slice is given P;
// where one slice finds P, as two do; besides its chunks a block takes kPass.
__host__ __device__ constexpr int chunk_cycles(int groups) { return groups == 1 ? 1620 : 2750; }
constexpr int kFindsPCycles = 2050, kPass = 6500;
constexpr int kDecided = 31;  // sequences: a lane of a warp looks at one, and the last at none

// Whether one kernel for long sequences has the call, where it is launched beside two: whose blocks the call is not leave at once.
// By a warp.
__device__ __forceinline__ bool one_has_it(const Problem& p) {
  const int lane = lane_here();
  return __ballot_sync(kAllLanes, lane < p.N && count_chunks(p, lane) > p.one_up_to) == 0;
}

// Of how many of the longest sequences each slice is a block's of its own: of 0 to p.most, a lane looks at one. By a warp;
// `lengths` in chunks, longest first, which is how blocks begin. Where not all can begin at once, the last block of a sequence
// does so, at the latest, when multiprocessors have shared all that is before it (Graham 1966, list schedules); mostly it does
// at kBegins of that.
__device__ __forceinline__ int choose_sliced(const Problem& p, const float* lengths) {
  constexpr float kBegins = 0.85f, kWorthIt = 0.92f;
  if (p.whole > 0 && lengths[0] == lengths[p.N - 1]) return 0;  // as the host has it, who takes them to be alike
  const int lane = lane_here();
  const float heads = p.H, places = p.multiprocessors, share = 1 / places, begins = kBegins * share;
  float before = 0, blocks = 0, time = 0;
#pragma unroll 4
  for (int rank = 0; rank < p.N; ++rank) {
    const bool one = rank < lane;
    const float more = one ? 2 * heads : heads, each = fmaf(lengths[rank], one ? p.one_takes : p.both_take, kPass);
    const float behind = fmaf(more, each, before);
    blocks += more;
    time = fmaxf(time, blocks > places ? fmaf(begins, behind - each, each) : each);
    before = behind;
  }
  time = lane > p.most ? INFINITY : fmaxf(time, before * share);
  float least = time;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) least = fminf(least, __shfl_xor_sync(kAllLanes, least, step));
  if (least > kWorthIt * __shfl_sync(kAllLanes, time, 0)) return 0;
  return __ffs(__ballot_sync(kAllLanes, time == least)) - 1;
}

// How many blocks a head there may be besides those of both slices: for the host.
inline int64_t more_blocks(const Problem& p) {
  const int64_t behind = p.whole == 0 ? 0 : int64_t{p.N} * p.H - p.whole;
  return std::max((behind + p.H - 1) / p.H, int64_t{p.most});
}

struct Share {
  int n, h, slice, groups;  // n < 0: nothing
};

// That of a block, counted by sequences, longest first, then heads, then slices, where there are two blocks: of the first ones,
// or of the (sequence, head) behind p.whole. By a warp; `lengths` is shared, for this alone.
__device__ __forceinline__ Share find_share(const Problem& p, int block, float* lengths) {
  const int lane = lane_here(), chunks = lane < p.N ? count_chunks(p, lane) : -1, mine = find_rank(p, lane, chunks);
  if (lane < p.N) lengths[mine] = static_cast<float>(chunks);
  __syncwarp();
  const int sliced = p.most > 0 ? choose_sliced(p, lengths) : 0;
  const int from = sliced > 0 || p.whole == 0 ? 0 : p.whole, end = from == 0 ? sliced * p.H : p.N * p.H;  // pairs of two blocks
  const int behind = block - from, inside = 2 * (end - from);
  const bool one = behind >= 0 && behind < inside;
  const int pair = behind < 0 ? block : one ? from + behind / 2 : end + behind - inside, rank = pair / p.H;
  const unsigned here = __ballot_sync(kAllLanes, lane < p.N && mine == rank);
  return {__ffs(here) - 1, pair % p.H, one ? behind % 2 : 0, one ? 1 : 2};
}

}  // namespace
