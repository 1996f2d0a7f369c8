// What a call is given, and where its sequences, chunks and segments lie.
#pragma once
#include "instructions.cuh"

namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kChunk = 64;
constexpr int kSlice = 64;  // value channels of a warpgroup
constexpr int kFewTokens = 8;  // that are advanced one by one (few.cuh)
constexpr int kStaySize = 128;  // of the heads that blocks stay with (stay.cuh)
// Forms that leave the same bits alone are chosen from: one slice or both in a block, blocks that stay, and those that prepare the
// chunks of short sequences. Segments have other sums, and so have long sequences in one kernel and those of few tokens.
#ifdef GDN_INVARIANT
constexpr bool kInvariant = true;
#else
constexpr bool kInvariant = false;
#endif
// The head size is `D`, 64 or 128: a parameter of what depends on it.

// Heads: state head h has query head h / q_group, key head h / k_group, value head h / v_group.
struct Problem {
  const int64_t* cu_seqlens;         // [N + 1]
  const float *g, *beta;             // [T, H]; null: alpha and beta are one
  const float* initial_state;        // [N, H, D, D]; null: zeros
  void* output;                      // [T, H, D], of the type of q
  float* final_state;                // [N, H, D, D]
  float* checkpoints;                // [num_checkpoints, H, D, D]
  const int64_t* checkpoint_starts;  // [N + 1]
  int64_t num_checkpoints;
  unsigned char* tiles;              // [places, H] of what is prepared of a chunk, of ..
  int tile_bytes;
  float *before, *transfer;          // [segments, H, D, D]: the state before each, at first what the one before it makes of
                                     // zeros; and of the identity (join.cuh)
  int every;                         // chunks from a checkpoint to the next; 0: there are none
  int first, length;                 // chunks of a sequence's first segment, and of others, no more; length 0: nothing is cut
  int64_t segments;                  // places of those others
  bool firsts;                       // the first segments are this kernel's, or else the others
  int64_t tokens;
  int N, H, q_group, k_group, v_group;
  int device, multiprocessors;
  int one_up_to;  // where no sequence has more chunks one kernel has the call, launched beside two; 0: it is not launched so
  int* queue;  // where blocks stay: which sequences they take (queue.cuh)
  int stays;   // so many blocks; 0: each block has one (sequence, head), or a part
  int few;     // sequences of no more tokens are advanced token by token (few.cuh), and are not in the queue; 0: none are
  float scale;
  bool k_first, log_gates;
  bool decides;                      // each block, what it has (choose.cuh): of no more than ..
  int most;                          // .. so many sequences, the longest ones, one slice, or else ..
  int whole;                         // .. of the (sequence, head) behind so many; 0: of none
  float one_takes, both_take;        // a chunk of a block with one slice, or with both, where all multiprocessors have one: cycles
#ifdef GDN_CLOCKS
  unsigned* clocks;  // [warpgroups, warps, kClocked chunks, 16], of block 0
#endif
};

// For clocks.py, which has the kernel write down when it is where.
#ifdef GDN_CLOCKS
constexpr int kClocked = 64;
__device__ __forceinline__ void stamp(const Problem& p, int wg, int c, int i) {
  if (p.clocks == nullptr || threadIdx.x % 32 != 0 || c >= kClocked || blockIdx.x + blockIdx.y + blockIdx.z != 0) return;
  unsigned now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
  p.clocks[((wg * 4 + threadIdx.x / 32 % 4) * kClocked + c) * 16 + i] = now;
}
#define GDN_STAMP(wg, c, i) stamp(p, wg, c, i)
#else
#define GDN_STAMP(wg, c, i)
#endif

// The first token of sequence n. Whatever cu_seqlens holds, no token outside of the tensors is reached.
__device__ __forceinline__ int64_t bound(const Problem& p, int n) {
  const int64_t token = p.cu_seqlens[n];
  return token < 0 ? 0 : token > p.tokens ? p.tokens : token;
}

__device__ __forceinline__ int count_chunks(const Problem& p, int n) {
  const int64_t length = bound(p, n + 1) - bound(p, n);
  return length < 0 ? 0 : static_cast<int>((length + kChunk - 1) / kChunk);
}

// The place of a sequence's first chunk: no two chunks share one, and nothing has to be counted first.
__device__ __forceinline__ int64_t first_chunk(const Problem& p, int n) { return bound(p, n) / kChunk + n; }

// The last sequence whose first chunk is not behind `place`; by a warp, which looks at 32 of them at a time.
__device__ __forceinline__ int find_sequence(const Problem& p, int64_t place) {
  int from = 0, count = p.N;
  while (count > 1) {
    const int step = (count + 31) / 32, n = from + lane_here() * step;
    const bool before = n < from + count && first_chunk(p, n) <= place;
    const int last = __popc(__ballot_sync(kAllLanes, before)) - 1;  // the first is: places begin with 0
    const int next = from + (last < 0 ? 0 : last) * step;
    count = min(step, from + count - next), from = next;
  }
  return from;
}

// Chunk c of sequence n, where its tokens begin and how many it has; none: there is no such chunk.
struct Chunk {
  int64_t first;
  int valid;
};

// The chunk of a place; by a warp.
__device__ __forceinline__ Chunk find_chunk(const Problem& p, int64_t place) {
  const auto chunk = [&](int n, int64_t from, int64_t to) {
    const int64_t c = place - (from / kChunk + n), first = from + c * kChunk;
    const bool there = c >= 0 && first < to;  // less than 0: the bounds do not rise
    return Chunk{first, there ? static_cast<int>(min(int64_t{kChunk}, to - first)) : 0};
  };
  if (p.N >= 32) {
    const int n = find_sequence(p, place);
    return chunk(n, bound(p, n), bound(p, n + 1));
  }
  const int lane = lane_here();  // all bounds at once
  const int64_t mine = lane <= p.N ? bound(p, lane) : 0;
  const int last = __popc(__ballot_sync(kAllLanes, lane < p.N && mine / kChunk + lane <= place)) - 1, n = last < 0 ? 0 : last;
  return chunk(n, __shfl_sync(kAllLanes, mine, n), __shfl_sync(kAllLanes, mine, n + 1));
}

// --- segments behind the first ------------------------------------------------------------------------------------
//
// Their places follow each other, sequence by sequence. Few sequences are cut: a lane for each.
constexpr int kCut = 32;

// How many places they may need, as the host counts them: the most if all chunks are one sequence's, as a first segment has as
// many as others or more.
inline int64_t count_places(int64_t tokens, int64_t sequences, int64_t first, int64_t length) {
  const int64_t chunks = sequences > 1 ? tokens / kChunk + sequences : (tokens + kChunk - 1) / kChunk;
  return std::max<int64_t>(0, chunks - first + length - 1) / length;
}

// Of sequence n; none where there is no such sequence.
__device__ __forceinline__ int count_segments(const Problem& p, int n) {
  return n < p.N ? max(0, count_chunks(p, n) - p.first + p.length - 1) / p.length : 0;
}

struct Segment {
  int n, i;        // of which sequence, which one behind the first
  int64_t second;  // the place of i = 0 ..
  int behind;      // .. and how many places there are: bounds that do not rise could ask for more than there are
};

// The z-th of those behind the first, but for the last `less` of each sequence, or, of a sequence n, what there is; by a warp.
__device__ __forceinline__ Segment find_segment(const Problem& p, int z, int less, int n = -1) {
  const int lane = lane_here(), mine = count_segments(p, lane), counted = max(0, mine - less);
  int before = mine, counted_before = counted;
#pragma unroll
  for (int step = 1; step < kCut; step *= 2) {
    const int x = __shfl_up_sync(kAllLanes, before, step), y = __shfl_up_sync(kAllLanes, counted_before, step);
    if (lane >= step) before += x, counted_before += y;
  }
  before -= mine, counted_before -= counted;
  if (n < 0) n = max(0, __popc(__ballot_sync(kAllLanes, lane < p.N && counted_before <= z)) - 1);
  Segment found{n, z - __shfl_sync(kAllLanes, counted_before, n), __shfl_sync(kAllLanes, before, n)};
  found.behind = static_cast<int>(max(int64_t{0}, min(int64_t{__shfl_sync(kAllLanes, mine, n)}, p.segments - found.second)));
  return found;
}

// --- the order in which blocks take sequences ---------------------------------------------------------------------

constexpr int kSorted = 512;  // sequences that are taken longest first; more are taken as they come

// How many sequences are longer than this lane's, which has so many chunks, or as long and before it; by a warp, of up to 32.
__device__ __forceinline__ int find_rank(const Problem& p, int lane, int chunks) {
  int ahead = 0;
  for (int m = 0; m < p.N; ++m) {
    const int other = __shfl_sync(kAllLanes, chunks, m);
    ahead += other > chunks || (other == chunks && m < lane);
  }
  return ahead;
}

// The sequence of which `rank` are longer, or as long and before it; by a block. `lengths` and `found` are shared.
__device__ __forceinline__ int find_ranked(const Problem& p, int rank, int* lengths, int* found) {
  if (p.N <= 32) {  // each warp for itself: nobody waits
    const int lane = lane_here(), ahead = find_rank(p, lane, lane < p.N ? count_chunks(p, lane) : -1);
    return __ffs(__ballot_sync(kAllLanes, lane < p.N && ahead == rank)) - 1;
  }
  for (int n = threadIdx.x; n < p.N; n += blockDim.x) lengths[n] = count_chunks(p, n);
  __syncthreads();
  for (int n = threadIdx.x; n < p.N; n += blockDim.x) {
    const int mine = lengths[n];
    int ahead = 0;
    for (int m = 0; m < p.N; ++m) ahead += lengths[m] > mine || (lengths[m] == mine && m < n);
    if (ahead == rank) *found = n;
  }
  __syncthreads();
  return *found;
}

// What a block has to do. In shared memory, where registers are short.
struct Work {
  int n, h, slice, chunks;
  int q_head, k_head, v_head;
  int groups;          // slices that are advanced
  int before;          // chunks of the sequence
  int64_t place;       // of the first of these chunks
  int64_t start, end;  // tokens: the first of these chunks, behind the last of the sequence
  const float* from;   // a state; null: zeros. That before the second segment, where it is to be joined
  const float* transfer;
  int joins;           // over so many segments behind
  float* to;           // null: nowhere
  bool from_k_first, to_k_first, identity;
};

// That of block (x, h), for a sequence that is not cut, its first segment or that segment; false: nothing. By one thread. x
// counts slices of the state, of groups * kSlice value channels each. Without output: segments that are neither first nor
// last, the slices of the identity behind the others.
template <int D, bool Output>
__device__ __forceinline__ bool find_work(const Problem& p, int groups, const Segment& segment, int x, int h, Work& work) {
  const auto [n, i, second, behind] = segment;
  const int slices = D / kSlice / groups, chunks = count_chunks(p, n);
  const auto state_of = [&](int64_t place) { return (place * p.H + h) * D * D; };
  const bool from_first = p.length == 0 || p.firsts;
  const bool last = from_first ? behind == 0 : i == behind - 1;
  if (!from_first && (i < 0 || i >= behind || (!Output && last))) return false;
  work.identity = x >= slices;
  work.q_head = h / p.q_group, work.k_head = h / p.k_group, work.v_head = h / p.v_group;
  work.n = n, work.h = h, work.groups = groups, work.slice = x % slices * groups * kSlice;
  work.before = from_first ? 0 : p.first + i * p.length, work.place = first_chunk(p, n) + work.before;
  work.chunks = min(p.length == 0 ? chunks : from_first ? p.first : p.length, chunks - work.before);
  work.start = bound(p, n) + static_cast<int64_t>(work.before) * kChunk, work.end = bound(p, n + 1);
  work.from_k_first = p.k_first && from_first, work.to_k_first = p.k_first && last;
  work.from = work.to = nullptr, work.joins = 0;
  if (from_first) {
    if (p.initial_state != nullptr) work.from = p.initial_state + state_of(n);
  } else if (Output) {
    work.from = p.before + state_of(second), work.transfer = p.transfer + state_of(second), work.joins = i;
  }
  if (last) {
    work.to = p.final_state + state_of(n);
  } else if (from_first) {
    work.to = p.before + state_of(second);
  } else if (!Output) {
    work.to = (work.identity ? p.transfer : p.before) + state_of(second + i + 1);
  }
  return true;
}

}  // namespace
