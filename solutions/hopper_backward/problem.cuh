// What a call is given, where its sequences and chunks lie, and what kernels leave for one another.
#pragma once
#include "instructions.cuh"

namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kChunk = 64;  // tokens
constexpr int kSlice = 64;  // value channels of a warpgroup that walks
constexpr int kHeadSize = 128;  // of a head

// Long sequences of few heads are cut into segments, which are sequences to all kernels but those that find the states between them.
// Then `Problem` has the segments' bounds, and initial_state and dht are not null.
//
// The states between segments lie in rows of dv, which nobody has written yet: S behind a segment and then the gradient of it, in the rows of
// the head and of that segment, which has kLeastOfSegment chunks or more, as one follows. Nobody needs the former once the forward walk is
// over; the walk back over this segment has the latter in registers before it leaves dv there. A slice of it has its half of each row.
constexpr int kLeastOfSegment = 8;
struct Segments {
  const int64_t* cu_seqlens;  // of the sequences, of which there are N
  const float *initial_state, *dht;
  int N, length;       // chunks of a segment
  int* owners;         // [Problem::N]: the sequence; -1: there is no such segment. Null: nothing is cut
  int* firsts;         // [N + 1]: the first segment of a sequence
  float* states;       // Problem::writes: the states between them; before they are joined what becomes of zeros, or of given states
  float *transfers, *turned;  // [Problem::N, H, D, D]: what becomes of the identity, and the same transposed
  bool k_first;        // given states, and dh0
};

// What the last kernel has to do, in the order in which it can be done: chunks and key heads.
struct Queue {
  int taken, ready, all, sequences;  // all: one more than there are; 0: not yet known. sequences: that have chunks
};

// Where tiles of chunks and heads lie: so many bytes apart, and that of the second slice so much further, where each has its own.
struct Tiles {
  unsigned char* first;
  int step, second;
};

// Heads: state head h has query head h / q_group, key head h / k_group, value head h / v_group.
struct Problem {
  const int64_t* cu_seqlens;    // [N + 1]
  const float *g, *beta;        // [T, H]; null: alpha and beta are one
  const float* initial_state;   // [N, H, D, D]; null: zeros
  const float* dht;             // the same
  void *dq, *dk, *dv;           // [T, heads, D], of the type of q
  float *dg, *dbeta;            // [T, H]
  float* dh0;                   // [N, H, D, D]
  Tiles forward_tiles, reverse_tiles;  // [places, H]: what is prepared of a chunk for each walk (boxes.cuh)
  unsigned char* decays;        // [places, H]: and for the gradients
  unsigned char *starts, *ends; // [places, H] states: S at a chunk's start, dS at its end, as boxes of 64 x 64
  unsigned char* errors;        // [places, H]: r of each token; boxes too
  uint16_t* writes;             // [T, H, D]: dv of each head: where no heads share values, dv itself
  float* of_end;                // [N, H, kWalkers, 64]: what warps that walk find of r . dS k, of the last chunk, where dht is given
  float* of_ends;               // [N, H, 2]: WalkSums of the first chunk and of the last
  float* of_betas;              // [places, H, kWalkers, 64]: what they find of dbeta in others; null: that is in rows of dq
  uint4* rests;                 // [N, H, 2, kWalkers, 4, 32]: what r loses in 16 bits, of the first chunk and of the last
  int* order;                   // [N]: sequences, longest first; null: they are taken as they come
  Segments segments;
  Queue* queue;
  int* walked;                  // [places, key heads]: blocks that have left what a chunk's gradients need
  int* ready;                   // [places * key heads]: 1 + place * key heads + key head, in the queue's order; 0: not yet
  int* prepared;                // [places, H]: whether a tile is there, where whoever needs it does not come behind all of them; or null
  int* forward_over;            // [N, H, 2]: whether a slice's forward walk is over, where the walk back is beside it; null: it is behind
  float* kept;                  // [N, H, 8, 2, 32, 32]: then what warps that walk back keep of the last chunk, y and x; by lane
  int64_t tokens;
  int places;                   // of chunks
  int N, H, q_heads, k_heads, v_heads, q_group, k_group, v_group;
  int tellers;                  // blocks that leave something of a chunk and head
  int brief;                    // tokens: sequences of so many or fewer are another kernel's (brief.cuh), and have no chunks here. 0: empty ones are not
  int device, multiprocessors;
  float scale;
  bool k_first, log_gates;
};

// The first token of sequence n. Whatever cu_seqlens holds, no token outside of the tensors is reached.
__device__ __forceinline__ int64_t bound(const Problem& p, int n) {
  const int64_t token = p.cu_seqlens[n];
  return token < 0 ? 0 : token > p.tokens ? p.tokens : token;
}

__device__ __forceinline__ int count_chunks(const Problem& p, int n) {
  const int64_t length = bound(p, n + 1) - bound(p, n);
  return length <= p.brief ? 0 : static_cast<int>((length + kChunk - 1) / kChunk);
}

// The place of a sequence's first chunk: no two chunks share one, and nothing has to be counted first. Segments of a sequence follow one
// another without a gap.
__device__ __forceinline__ int64_t first_chunk(const Problem& p, int n) {
  int before = n;  // sequences
  if (p.segments.owners != nullptr) {
    before = p.segments.owners[n];
    if (before < 0) before = p.segments.N;
  }
  return bound(p, n) / kChunk + before;
}

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

// Where a chunk's tokens begin and how many it has; none: there is no such chunk. Its sequence, and whether it is the first or the
// last one of that.
struct Chunk {
  int64_t first;
  int valid, n;
  bool is_first, is_last;
};

// The chunk of a place; by a warp.
__device__ __forceinline__ Chunk find_chunk(const Problem& p, int64_t place) {
  const int n = find_sequence(p, place);
  const int64_t from = bound(p, n), to = bound(p, n + 1);
  const int64_t c = place - first_chunk(p, n), first = from + c * kChunk;
  const bool there = c >= 0 && first < to;  // less than 0: the bounds do not rise
  return Chunk{first, there ? static_cast<int>(min(int64_t{kChunk}, to - first)) : 0, n, c == 0, to - first <= kChunk};
}

// --- the order in which blocks take sequences ---------------------------------------------------------------------

constexpr int kSorted = 512;  // sequences that are taken longest first; more are taken as they come

// Longest first; as long ones as they come. By a block, once a call. `lengths` is shared.
__device__ __forceinline__ void order_sequences(const Problem& p, int* lengths) {
  for (int n = threadIdx.x; n < p.N; n += blockDim.x) lengths[n] = count_chunks(p, n);
  __syncthreads();
  for (int n = threadIdx.x; n < p.N; n += blockDim.x) {
    const int mine = lengths[n];
    int rank = 0;
    for (int m = 0; m < p.N; ++m) rank += lengths[m] > mine || (lengths[m] == mine && m < n);
    p.order[rank] = n;
  }
}

// --- the queue -----------------------------------------------------------------------------------------------------

// Nothing is ready yet; by a row of blocks, of which `block` is one of `blocks`.
__device__ __forceinline__ void empty_queue(const Problem& p, int block, int blocks) {
  const int all = p.places * p.k_heads;
  for (int64_t i = block * blockDim.x + threadIdx.x; i < all; i += blocks * blockDim.x) p.walked[i] = 0, p.ready[i] = 0;
  if (p.forward_over != nullptr) {
    for (int64_t i = block * blockDim.x + threadIdx.x; i < int64_t{2} * p.N * p.H; i += blocks * blockDim.x) p.forward_over[i] = 0;
  }
  if (block != 0) return;
  if (threadIdx.x == 0) *p.queue = Queue{0, 0, 1};
  __syncthreads();
  int chunks = 0, sequences = 0;
  for (int n = threadIdx.x; n < p.N; n += blockDim.x) {
    const int of = count_chunks(p, n);
    chunks += of, sequences += of > 0;
  }
  if (chunks > 0) atomicAdd(&p.queue->all, chunks * p.k_heads), atomicAdd(&p.queue->sequences, sequences);
}

// One of the blocks has left what is needed of a chunk by the heads that share a key head, `at` = place * key heads + key head; by
// one thread.
__device__ __forceinline__ void tell(const Problem& p, int at) {
  const int blocks = p.k_group * p.tellers;
  if (count_in_order(p.walked + at, blocks - 1) != blocks - 1) return;
  const int nth = atomicAdd(&p.queue->ready, 1);
  if (nth < p.places * p.k_heads) store_released(p.ready + nth, at + 1);  // there are more only where bounds do not rise
}

// 1 + place * key heads + key head of the next, once it is ready; 0: there are no more. By one thread.
__device__ __forceinline__ int take_ready(const Problem& p) {
  const int nth = atomicAdd(&p.queue->taken, 1);
  if (nth >= min(p.queue->all - 1, p.places * p.k_heads)) return 0;
  const int found = wait_for_number(p.ready + nth);
  fence_async_memory();
  return found;
}

}  // namespace
