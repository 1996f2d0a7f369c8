// Verify over a tree of drafts: a block has value channels of one head of a row, and visits the row's tokens depth first.
//
// A token that follows the last one finds its state in registers. After a leaf, a thread reads the state of the token that
// branches from the buffer of steps. It has written the same words there itself, so no thread waits for another, and
// they are still in the L2 cache as a rule. A tree with n leaves costs n - 1 such reads, in whatever order its tokens are.
//
// Where states are stored as bfloat16, what lies in the buffer is rounded, and the state that goes on is not: a branch begins with
// the state in the pool and takes the tokens above it once more.
#pragma once
#include "calls.cuh"

namespace {

template <class E>
struct TreeArguments : VerifyArguments<E> {
  const int32_t* parents;  // [B, T]: a token before its own, or -1
};

// The tokens of a row, four bits for each: the number of its parent, counted from 1; 0: it follows the state in the pool.
// Dynamic indices would put an array of them into memory.
struct Tree {
  static constexpr uint64_t kOnes = 0x1111111111111111ull;
  static_assert(kMaxTokens == 16);
  uint64_t parents = 0, left = 0;  // left: the lowest of the four bits for each token that was not visited yet

  __device__ __forceinline__ Tree(const int32_t* from, int count) {
#pragma unroll
    for (int t = 0; t < kMaxTokens; ++t) {
      if (t >= count) continue;
      const int parent = from[t];
      left |= uint64_t{1} << 4 * t;
      if (parent >= 0 && parent < t) parents |= static_cast<uint64_t>(parent + 1) << 4 * t;  // others: as -1
    }
  }

  __device__ __forceinline__ int parent(int t) const { return static_cast<int>(parents >> 4 * t & 15) - 1; }

  // The first child of a token that is left, and it is left no more; -1 if there is none.
  __device__ __forceinline__ int take_child(int t) {
    uint64_t other = parents ^ kOnes * static_cast<uint64_t>(t + 1);  // four zeros for a child
    other |= other >> 2;
    other |= other >> 1;
    const uint64_t children = t + 1 < kMaxTokens ? ~other & left : 0;  // four bits do not hold the last token's number
    left &= ~(children & (~children + 1));
    return (__ffsll(static_cast<long long>(children)) - 1) >> 2;
  }
};

// Blocks of a multiprocessor that registers leave room for: as many as verify without a tree has.
template <int D>
constexpr int kTreeBlocks = D == 256 ? 3 : D == 128 ? 4 : 6;

template <class E, int D>
__global__ void __launch_bounds__(kThreads, kTreeBlocks<D>) tree_kernel(const __grid_constant__ TreeArguments<E> p) {
  constexpr bool kRounded = sizeof(E) < sizeof(float);
  const Place<E, D> at(p.H);
  const int slot = p.slots[at.row], to = p.step_slots[at.row];
  const bool live = is_slot(slot, 0, p.num_slots) && is_slot(to, 0, p.num_slots);  // -1, or none: not followed
  const int count = live ? min(p.drafts[at.row], p.T) : 0;
  const int64_t first = at.row * p.T;
  if (count > 0) {
    const E* const start = p.pool + slot * p.pool_stride + at.part();
    E* const steps = p.steps + to * p.steps_stride + at.part();
    const int64_t step_size = static_cast<int64_t>(p.H) * D * D;
    Tree tree(p.parents + first, count);
    Rows<E, D> rows;
    rows.load(start);
    int t = -1;  // rows holds the state after this token
    while (tree.left != 0) {
      int next = tree.take_child(t);
      uint32_t path = 0;  // a bit for each token to take
      if (next < 0) {
        do {
          t = tree.parent(t);
          next = tree.take_child(t);
        } while (next < 0);
        rows.load(t < 0 || kRounded ? start : steps + t * step_size);
        for (int above = t; kRounded && above >= 0; above = tree.parent(above)) path |= 1u << above;
      }
      t = next;
      if constexpr (kRounded) {
        path |= 1u << t;
#pragma unroll 1
        for (; path != 0; path &= path - 1) verify_token(p, at, rows, first + __ffs(static_cast<int>(path)) - 1);
      } else {
        verify_token(p, at, rows, first + t);
      }
      rows.store(steps + t * step_size);
    }
  }
  const int done = max(count, 0);
  write_zeros<E, D>(p.output, first + done, p.T - done, p.H, at);
}

}  // namespace
