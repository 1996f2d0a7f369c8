// Which tokens a block has.
#pragma once
#include "problem.cuh"

namespace {

// Bounds that lie are taken as the ends of the tensors.
__device__ __forceinline__ int bound(const Problem& p, int n) {
  const int64_t x = p.cu_seqlens[n];
  return static_cast<int>(x < 0 ? 0 : x > p.T ? p.T : x);
}

// The last sequence that starts at the token or before it; the first, where there is none. 32 of them are looked at
// together, by the lanes of each warp.
__device__ __forceinline__ int sequence_at(const Problem& p, int token) {
  const int lane = threadIdx.x % 32;
  int low = 0, count = p.N;
  while (count > 1) {
    const int step = (count + 31) / 32, n = low + lane * step;
    const bool before = lane * step < count && bound(p, n) <= token;
    const int reached = max(__popc(__ballot_sync(kAllLanes, before)) - 1, 0);
    low += reached * step;
    count = min(step, count - reached * step);
  }
  return low;
}

// The pieces of sequences that a block has to do: tokens `from` to `to` of sequence n.
//
// Strips are cut without regard to sequences, but for one thing: the first W - 1 tokens of a sequence are one block's,
// that of its very first. A block whose strip would begin among them leaves them out, and one whose strip would end
// among them goes on. So that block alone reads the state, and writes it, with the last rows that it finds in x: nobody
// ever reads what another has written.
template <int W>
struct Walk {
  int n, start, stop, from, to, last;

  __device__ __forceinline__ Walk(const Problem& p, int first, int last) : to(first), last(last) {
    n = sequence_at(p, first);
    start = bound(p, n), stop = bound(p, n + 1);
    if (start < first && first - start < W - 1) to = min(start + W - 1, stop);
    --n;
  }

  // The next piece, or false. Every thread of the block does the same.
  __device__ __forceinline__ bool next(const Problem& p) {
    while (++n < p.N && to < last) {
      start = bound(p, n), stop = bound(p, n + 1);
      if (stop <= to) continue;  // it is empty
      from = max(to, start);
      if (from >= last) return false;
      to = min(stop, max(last, start + W - 1));
      return true;
    }
    return false;
  }
};

}  // namespace
