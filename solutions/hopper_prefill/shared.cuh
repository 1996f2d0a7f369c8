// What is prepared of a chunk, and what blocks keep in shared memory.
#pragma once
#include "problem.cuh"

namespace {

constexpr int kStages = 3;           // chunks that there is room for, or more: one is advanced, the others are on their way
constexpr int kCleared = 1;          // named barriers: rows behind a sequence's end
constexpr int kWritten = 2;          // the output of a last chunk that is not whole
constexpr int kTaken = 3;            // and 4: a half of a transfer has been multiplied
// Lanes of a warp that say that it has left a place, or has found P: one is enough for all behind __syncwarp. racecheck does
// not follow that; for it all of them do (README.md).
#ifdef GDN_EVERY_LANE
constexpr int kLeavers = 32;
#else
constexpr int kLeavers = 1;
#endif
// Terms of T, of 16 bits each: one, or two in the variant `strict` (solution.json).
#ifndef GDN_TERMS
#define GDN_TERMS 1
#endif
constexpr int kTerms = GDN_TERMS;
constexpr int kBoxBytes = 64 * 128;  // 64 rows of 64 numbers, swizzled: what wgmma and TMA call SW128
// A row of a head: so many boxes side by side.
template <int D>
constexpr int kHalves = D / 64;
// No product that writes these is under way any more.
template <int Halves>
__device__ __forceinline__ void settle_all(float (&S)[Halves][32]) {
#pragma unroll
  for (int half = 0; half < Halves; ++half) settle(S[half]);
}
// A transfer (join.cuh) lies in memory as wgmma reads it: of rows 0 to 63 the boxes of the first term, those of the second; the
// other rows, if there are any.
template <int D>
constexpr int kTransferBytes = 2 * kHalves<D> * kBoxBytes;  // of 64 rows

// 16-byte piece `piece` of a row of 128 bytes, in a swizzled box.
__device__ __forceinline__ uint32_t swizzled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// Zeros in the rows of a box from `row` on, whole ones, so that the swizzle stays inside of them; by so many threads.
__device__ __forceinline__ void clear_rows(uint32_t box, int row, int thread, int threads) {
#pragma unroll 1
  for (int at = 128 * row + 16 * thread; at < kBoxBytes; at += 16 * threads) {
    store_shared(box + at, make_uint4(0, 0, 0, 0));
  }
}

// --- a lower triangle of 64 x 64 --------------------------------------------------------------------------------
//
// Of 16 x 16 blocks: four cores of 8 rows of 16 bytes, two side by side. Rows are tokens i, columns j <= i. In memory there
// are ten, one after the other; in shared memory, where wgmma reads two at a time, one above the other and without a
// swizzle, two of zeros stand before those on the diagonal whose upper neighbour is not stored:
//   0 11 | 00 10 | 20 30 | 21 31 | 22 32 | 0 33
constexpr int kBlock = 512, kBlocks = 10;  // bytes, blocks
constexpr int kTriangle = 12 * kBlock;
__device__ __forceinline__ constexpr int upper_rows(int s) { return s == 0 ? 2 * kBlock : 0; }  // 0 to 31 of columns 16 s on
__device__ __forceinline__ constexpr int lower_rows(int s) { return (4 + 2 * s) * kBlock; }     // 32 to 63
// The block of rows 16 r and columns 16 s, in memory.
__device__ __forceinline__ constexpr int block_of(int r, int s) {
  return kBlock * (r < 2 ? 1 + r - 2 * s : r < 3 || s < 3 ? 1 + r + 2 * s : 9);
}
// The same in shared memory.
__device__ __forceinline__ constexpr int place_in_triangle(int r, int s) {
  return block_of(r, s) + kBlock * (r == 3 && s == 3 ? 2 : 1);
}

// Heads of 64: P lies as T does. Heads of 128: P is whole in shared memory, so that its product goes to the sums of another
// that is, for which registers are short; in memory the ten blocks, column by column.
template <int D>
constexpr bool kTriangularP = D == 64;
constexpr int kSquare = 16 * kBlock;
__device__ __forceinline__ constexpr int block_of_square(int r, int s) { return kBlock * (4 * s + r); }
template <int D>
__device__ __forceinline__ constexpr int block_of_p(int r, int s) {
  return kTriangularP<D> ? block_of(r, s) : kBlock * (r + 3 * s - s * (s - 1) / 2);
}

// By tokens, in the order in which whoever advances holds columns: the four of 16 that a lane has lie side by side.
struct Decays {
  float from_start[kChunk], to_end[kChunk];  // gamma, gamma_C / gamma
  float read_out[kChunk];                    // scale gamma
};
// The first two of the four; the others are those of eight tokens further.
__device__ __forceinline__ constexpr int place_of_pair(int token) {
  return token / 16 * 16 + token % 8 * 2 + token / 8 % 2 * 2;
}

// What P is found from, by token.
struct Logs {
  float log[kChunk];     // log2 of gamma
  float factor[kChunk];  // gamma of the last of 16 tokens over gamma of this one
};

// What is prepared of a chunk and head: what a state needs, and what its output needs besides: P, or what it is found from.
struct alignas(128) StateTile {
  unsigned char T[kTerms][kTriangle];
  Decays decays;
};
template <int D>
struct Tile : StateTile {
  unsigned char P[kSquare];
  Logs logs;
};
template <>
struct Tile<64> : StateTile {
  unsigned char P[kTriangle];
};
static_assert(sizeof(StateTile) == kTerms * kTriangle + sizeof(Decays));
static_assert(sizeof(Tile<128>) == sizeof(StateTile) + kSquare + sizeof(Logs));
static_assert(sizeof(Tile<64>) == sizeof(StateTile) + kTriangle);
// Whether a block that advances so many slices finds P, which then is not prepared.
constexpr bool finds_p(int groups) { return groups == 2; }
// In memory, without blocks of zeros: T, decays, and P or logs.
constexpr int kDecaysAt = kTerms * kBlocks * kBlock, kPAt = kDecaysAt + static_cast<int>(sizeof(Decays)), kLogsAt = kPAt;
constexpr int tile_bytes(bool with_p) { return kPAt + (with_p ? kBlocks * kBlock : static_cast<int>(sizeof(Logs))); }

// From there to its place, with copies that barrier `landed` counts; by one thread. Of a state's tile there is no more to it.
constexpr int bytes_to_load(bool output, bool with_p) { return output ? tile_bytes(with_p) : kPAt; }
template <int D, bool Output, bool WithP>
__device__ __forceinline__ void load_tile(StateTile& to, const unsigned char* from, uint32_t landed) {
  const auto load = [&](int begin, int bytes, int at) { load_bytes(shared_address(&to) + at, from + begin, bytes, landed); };
  constexpr int kMost = (kBlocks - 1) * kBlock, kTerm = kBlocks * kBlock;
  constexpr bool kWithSquare = WithP && !kTriangularP<D>;
  constexpr int kBehind = sizeof(Decays) + (kWithSquare ? 4 * kBlock : 0);  // of P the first column
#pragma unroll
  for (int term = 0; term < kTerms; ++term) {
    load(term * kTerm, kMost, term * kTriangle + kBlock);
    load(term * kTerm + kMost, kBlock + (term == kTerms - 1 ? kBehind : 0), (term + 1) * kTriangle - kBlock);
  }
  if constexpr (kWithSquare) {
    for (int s = 1; s < 4; ++s) {
      load(kPAt + block_of_p<D>(s, s), (4 - s) * kBlock, static_cast<int>(sizeof(StateTile)) + block_of_square(s, s));
    }
  } else if constexpr (WithP) {
    load(kPAt, kMost, static_cast<int>(sizeof(StateTile)) + kBlock);
    load(kPAt + kMost, kBlock, static_cast<int>(sizeof(StateTile)) + kTriangle - kBlock);
  } else if constexpr (Output) {
    load(kLogsAt, sizeof(Logs), static_cast<int>(sizeof(StateTile)) + kSquare);
  }
}

// The blocks of zeros of so many triangles; by `threads` threads.
template <int Count>
__device__ __forceinline__ void clear_triangles(uint32_t to, int thread, int threads) {
  for (int at = thread; at < Count * 2 * kBlock / 16; at += threads) {
    const int block = at / (kBlock / 16), place = block / 2 * kTriangle + (block % 2 == 0 ? 0 : kTriangle - 2 * kBlock);
    store_shared(to + place + at % (kBlock / 16) * 16, make_uint4(0, 0, 0, 0));
  }
}

// Those of P; by `threads` threads.
template <int D>
__device__ __forceinline__ void clear_p(uint32_t to, int thread, int threads) {
  if constexpr (kTriangularP<D>) {
    clear_triangles<1>(to, thread, threads);
  } else {
    for (int at = thread; at < 6 * kBlock / 16; at += threads) {
      const int i = at / (kBlock / 16), r = i < 3 ? 0 : i < 5 ? 1 : 2, s = i < 3 ? i + 1 : i < 5 ? i - 1 : 3;
      store_shared(to + block_of_square(r, s) + at % (kBlock / 16) * 16, make_uint4(0, 0, 0, 0));
    }
  }
}

// Of a block that writes outputs, or of one that takes a state over a segment and no more.
template <int D, int Groups, bool Output>
struct Stage {
  unsigned char k[kHalves<D> * kBoxBytes], q[kHalves<D> * kBoxBytes], v[Groups * kBoxBytes];
  using Prepared = Tile<D>;
};
template <int D, int Groups>
struct Stage<D, Groups, false> {
  unsigned char k[kHalves<D> * kBoxBytes], v[Groups * kBoxBytes];
  using Prepared = StateTile;
};

// Of one that advances. Barriers: a chunk has landed, but for v; v has; its P is there, where the block finds it; nobody
// needs what is in its place any more; the last chunk has landed, and its boxes hold rows of another sequence; half of a
// transfer has.
template <int D, int Groups, bool Output, int Stages = kStages>
struct Shared {
  using Boxes = Stage<D, Groups, Output>;
  alignas(1024) Boxes boxes[Stages];
  typename Boxes::Prepared tile[Stages];
  alignas(8) uint64_t full[Stages], v_full[Stages], ready[Stages], empty[Stages], tail, joining[2];
  Work work;
  int found;
  bool busy;
};

// Two blocks share a multiprocessor where both have room, which they have for each other's waits to be filled.
constexpr size_t kMostShared = 227 * 1024, kMostOfTwo = (227 - 1) * 1024 / 2;
template <int D, int Groups, bool Output>
constexpr int kBlocksTogether = sizeof(Shared<D, Groups, Output>) <= kMostOfTwo ? 2 : 1;
template <int D, int Groups, bool Output>
constexpr size_t kRoom = kBlocksTogether<D, Groups, Output> == 2 ? kMostOfTwo : kMostShared;

// Behind it, where there are checkpoints: eight rows of a state for each warp that advances, from where TMA takes them while
// chunks go on. Padded: neighbours are in other banks.
template <int D>
constexpr int kRowBytes = 4 * D + 32;
template <int D>
constexpr int kRowsBytes = 8 * kRowBytes<D>;
template <int D, int Groups>
constexpr size_t kStagedBytes = sizeof(Shared<D, Groups, true>) + 4 * Groups * kRowsBytes<D>;
// Two slices with two terms of T leave no room for it, nor do two blocks with heads of 64.
template <int D, int Groups>
constexpr bool kStaged = kStagedBytes<D, Groups> <= kRoom<D, Groups, true>;

// From asking for a chunk to its arrival it is as long as one slice takes for two: a fourth, where there is room.
template <int D, int Groups, bool Output, bool Checkpoints>
constexpr int kStagesOf = Groups == 1 && Output && !Checkpoints &&
                                  sizeof(Shared<D, 1, true, kStages + 1>) <= kRoom<D, Groups, Output>
                              ? kStages + 1
                              : kStages;
template <int D, int Groups, bool Output, bool Checkpoints>
using Block = Shared<D, Groups, Output, kStagesOf<D, Groups, Output, Checkpoints>>;
template <int D, int Groups, bool Output, bool Checkpoints>
constexpr size_t kBlockBytes = Checkpoints && Output && kStaged<D, Groups> ? kStagedBytes<D, Groups>
                                                                          : sizeof(Block<D, Groups, Output, Checkpoints>);

}  // namespace
