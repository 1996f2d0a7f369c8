// What a call is given, and where its sequences, chunks and segments lie.
#pragma once
#include "instructions.cuh"

namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kChunk = 64;
constexpr int D = 128;
constexpr int kSlice = 64;  // value channels of a warpgroup

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
  float *after, *transfer;           // [parts, H, D, D]: the state after a part, at first from zeros; of the identity
  int every;                         // chunks from a checkpoint to the next; 0: there are none
  int length;                        // chunks of a segment; 0: nothing is cut
  int part, first;                   // chunks of a part of a segment; of the first one of a sequence: a part's or a segment's
  int64_t segments, parts;           // places for them
  int64_t tokens;
  int N, H, q_group, k_group, v_group;
  int device, multiprocessors;
  float scale;
  bool k_first, log_gates;
  bool decides;                      // each block, how many slices of a state it has (choose.cuh)
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

// The place of a sequence's first segment, or part: no two share one.
__device__ __forceinline__ int64_t first_segment(const Problem& p, int n) { return (bound(p, n) / kChunk + n) / p.length + n; }
__device__ __forceinline__ int64_t first_part(const Problem& p, int n) { return (bound(p, n) / kChunk + n) / p.part + n; }

// Places of segments of such a length, or parts, as the host counts them. One sequence leaves none unused.
inline int64_t count_places(int64_t tokens, int64_t sequences, int64_t length) {
  if (sequences == 1) return ((tokens + kChunk - 1) / kChunk + length - 1) / length;
  return (tokens / kChunk + sequences) / length + sequences;
}

// One at least: an empty sequence has a final state.
__device__ __forceinline__ int count_segments(const Problem& p, int n) {
  const int64_t count = (count_chunks(p, n) + p.length - 1) / p.length, room = p.segments - first_segment(p, n);
  return static_cast<int>(max(int64_t{1}, min(count, room)));
}

// Before segment i, from 1 on, so many parts of the sequence: those of the first segment, which may be a part itself, and of
// others as many as `part` has it.
__device__ __forceinline__ int parts_before(const Problem& p, int i) {
  return 1 + (p.length - p.first) / p.part + (i - 1) * (p.length / p.part);
}

// Those that the first pass is for: all but those of the last segment.
__device__ __forceinline__ int count_parts(const Problem& p, int n) {
  const int segments = count_segments(p, n);
  const int64_t room = p.parts - first_part(p, n);
  return segments < 2 ? 0 : static_cast<int>(max(int64_t{0}, min(int64_t{parts_before(p, segments - 1)}, room)));
}

// The last sequence whose first chunk, segment or part, as `first` has it, is not behind `place`; by a warp, which looks at 32
// of them at a time.
template <class First>
__device__ __forceinline__ int find_sequence(const Problem& p, int64_t place, First first) {
  int from = 0, count = p.N;
  while (count > 1) {
    const int step = (count + 31) / 32, n = from + lane_here() * step;
    const bool before = n < from + count && first(p, n) <= place;
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
    const int n = find_sequence(p, place, first_chunk);
    return chunk(n, bound(p, n), bound(p, n + 1));
  }
  const int lane = lane_here();  // all bounds at once
  const int64_t mine = lane <= p.N ? bound(p, lane) : 0;
  const int last = __popc(__ballot_sync(kAllLanes, lane < p.N && mine / kChunk + lane <= place)) - 1, n = last < 0 ? 0 : last;
  return chunk(n, __shfl_sync(kAllLanes, mine, n), __shfl_sync(kAllLanes, mine, n + 1));
}

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
  int groups;          // slices that are advanced
  int before;          // chunks of the sequence
  int64_t place;       // of the first of these chunks
  int64_t start, end;  // tokens: the first of these chunks, behind the last of the sequence
  const float* from;   // a state; null: zeros
  float* to;           // null: nowhere
  bool from_k_first, to_k_first, identity;
};

// That of block (x, h, z), for sequence n; false: nothing. By one thread. x counts slices of the state, of groups * kSlice
// value channels each. Without output: parts, but for those of a sequence's last segment, the slices of the identity behind the
// others.
template <bool Output>
__device__ __forceinline__ bool find_work(const Problem& p, int groups, int n, int x, int h, int64_t z, Work& work) {
  const int slices = D / kSlice / groups;
  const auto state_of = [&](int64_t place) { return (place * p.H + h) * D * D; };
  const int chunks = count_chunks(p, n);
  int i = 0, count = 1, length = chunks;  // segment or part i of so many
  if (p.length != 0) {
    i = static_cast<int>(z - (Output ? first_segment(p, n) : first_part(p, n)));
    count = Output ? count_segments(p, n) : count_parts(p, n);
    length = Output ? p.length : i == 0 ? p.first : p.part;
  }
  const bool first = i == 0, last = Output && i == count - 1;
  work.identity = x >= slices;
  if (i < 0 || i >= count || (!Output && first && work.identity)) return false;
  work.n = n, work.h = h, work.groups = groups, work.slice = x % slices * groups * kSlice;
  work.before = Output || first ? i * length : p.first + (i - 1) * length, work.place = first_chunk(p, n) + work.before;
  work.chunks = min(length, chunks - work.before);
  work.start = bound(p, n) + static_cast<int64_t>(work.before) * kChunk, work.end = bound(p, n + 1);
  work.from_k_first = p.k_first && first, work.to_k_first = Output && p.k_first;
  work.from = nullptr;
  if (first) {
    if (p.initial_state != nullptr) work.from = p.initial_state + state_of(n);
  } else if (Output) {
    work.from = p.after + state_of(min(first_part(p, n) + parts_before(p, i), p.parts) - 1);
  }
  if (Output) {
    work.to = last ? p.final_state + state_of(n) : nullptr;
  } else {
    work.to = (work.identity ? p.transfer : p.after) + state_of(z);
  }
  return true;
}

}  // namespace
