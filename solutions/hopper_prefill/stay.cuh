// A block with both slices of a state: its chunks as in feed.cuh, by a warpgroup that does nothing else and has few registers,
// so that most of what it has to know it looks up each time.
//
// Where there are more (sequence, head) than multiprocessors it stays: behind its first one it takes the next from a counter,
// longest first, while the last chunks of this one are advanced. The first chunks of that are on their way then, through the
// same places of shared memory, and its state comes to L2. The last ones may come as two, a slice each, or the longest ones.
#pragma once
#include "choose.cuh"
#include "feed.cuh"

namespace {

// The order in which sequences are taken, longest first, and of how many of them each slice is a work of its own; by a block.
// Shared, and `lengths` is for this alone.
__device__ __forceinline__ void find_order(const Problem& p, uint16_t* order, int* sliced, int* lengths) {
  if (p.N > kSorted) {  // as they come
    if (threadIdx.x == 0) *sliced = 0;
    return;
  }
  if (p.N <= kDecided) {
    if (threadIdx.x >= 32) return;  // the warp that asks for the first one
    const int lane = lane_here(), chunks = lane < p.N ? count_chunks(p, lane) : -1, rank = find_rank(p, lane, chunks);
    if (lane < p.N) order[rank] = static_cast<uint16_t>(lane), lengths[rank] = chunks;
    __syncwarp();
    const int found = choose_sliced(p, lane < p.N ? lengths[lane] : 0, lengths);
    if (lane == 0) *sliced = found;
    __syncwarp();
    return;
  }
  if (threadIdx.x == 0) *sliced = 0;
  for (int n = threadIdx.x; n < p.N; n += blockDim.x) lengths[n] = count_chunks(p, n);
  __syncthreads();
  for (int n = threadIdx.x; n < p.N; n += blockDim.x) {
    const int mine = lengths[n];
    int ahead = 0;
    for (int m = 0; m < p.N; ++m) ahead += lengths[m] > mine || (lengths[m] == mine && m < n);
    order[ahead] = static_cast<uint16_t>(n);
  }
  __syncthreads();
}

// Work `i` in that order, by heads of a sequence; false: there is no such. Of the first `sliced` sequences there are two of a
// head, a slice each; where that is 0, of the pairs behind `whole`. By one thread.
__device__ __forceinline__ bool find_stayed(const Problem& p, const uint16_t* order, int sliced, int i, Work& work) {
  const int pairs = sliced * p.H, whole = p.whole == 0 || sliced < 0 ? p.N * p.H : p.whole;
  const bool first = i < 2 * pairs, one = sliced > 0 ? first : i >= whole;
  const int pair = sliced > 0 ? (first ? i / 2 : i - pairs) : one ? whole + (i - whole) / 2 : i, rank = pair / p.H;
  if (rank >= p.N) return false;
  const Segment all{p.N <= kSorted ? order[rank] : rank, 0, 0, 0};
  const int slice = !one ? 0 : (sliced > 0 ? i : i - whole) % 2;
  return find_work<true>(p, one ? 1 : 2, all, slice, pair % p.H, work);
}

// By a warp.
struct StayingFeeder {
  const Problem& p;
  Shared<2, true>& s;
  const Maps& maps;
  int turn = 0;              // which work this is, and kOdd, where an odd number of chunks were not whole
  int place = 0, round = 0;  // where the next chunk goes, how often that has been used
  int token = 0, rest = 0;   // where it begins, how many tokens are left
  static constexpr int kOdd = 1 << 30;

  __device__ __forceinline__ const Work& work() const { return s.work[turn & 1]; }
  // False: there is no such work.
  __device__ __forceinline__ bool begin() {
    barrier_wait(shared_address(&s.told[turn & 1]), turn / 2 & 1);
    const Work& work = this->work();
    token = uniform(static_cast<int>(work.start));
    rest = uniform(static_cast<int>(min(work.end - work.start, int64_t{work.chunks} * kChunk)));
    return uniform(work.chunks) >= 0;
  }

  // The output that stands where the next chunk goes, once it is written.
  __device__ __forceinline__ void take() const {
    const Leaving& leaving = s.leaving[place];
    const int rows = uniform(leaving.rows);
    if (rows == 0) return;
    barrier_wait(shared_address(&s.empty[place]), round - 1 & 1);
    unsigned char* const box = s.boxes[place].v;
    const int groups = uniform(leaving.groups), slice = uniform(leaving.slice);
    if (rows < kChunk) {
      named_barrier(kOfStage + kStages + place, 32 + 128 * groups);
      take_rows(p, box, leaving.token, rows, leaving.h, slice, groups);
      fence_async();  // another chunk will come where it was written
      __syncwarp();
      return;
    }
    const int h = uniform(leaving.h), token = uniform(leaving.token), half = slice / kSlice;
    const CUtensorMap* const map = groups == 2 ? &maps.output : &maps.slice_of_output;
    if (lane_here() == 0) {
      fence_async();  // for warps that advance, which have written it: there it would hold them up
      store_boxes(map, shared_address(box), half, h, token);
    }
  }

  // Whether the next chunk is whole; else its boxes hold rows of another sequence.
  __device__ __forceinline__ bool whole() const { return rest >= kChunk; }
  // What says that it has landed.
  __device__ __forceinline__ uint32_t landed(const uint64_t (&full)[kStages]) const {
    return shared_address(whole() ? &full[place] : &s.tail);
  }

  // All of it but v, whose place the output of another may be leaving still.
  __device__ __forceinline__ void ask() const {
    auto& boxes = s.boxes[place];
    take();
    const int k_head = uniform(work().k_head), q_head = uniform(work().q_head), slices = uniform(work().groups);
    if (lane_here() == 0) {
      const Work& work = this->work();
      const uint32_t landed = this->landed(s.full);
      s.leaving[place] = {token, min(rest, kChunk), work.h, work.groups, work.slice};
      barrier_expect(landed, 4 * kBoxBytes + (whole() ? 0 : slices * kBoxBytes) + bytes_to_load(true, false));
      load_boxes(shared_address(boxes.k), &maps.k, 0, k_head, token, landed);
      load_boxes(shared_address(boxes.q), &maps.q, 0, q_head, token, landed);
      if (token == work.start) meet_last<true>(p);
      const int64_t tile = work.place + (token - work.start) / kChunk;
      load_tile<true, false>(s.tile[place], p.tiles + (tile * p.H + work.h) * p.tile_bytes, landed);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void ask_v() {
    auto& boxes = s.boxes[place];
    const int v_head = uniform(work().v_head), half = uniform(work().slice) / kSlice, slices = uniform(work().groups);
    const uint32_t landed = this->landed(s.v_full);
    if (lane_here() == 0) {
      stored_read();
      if (whole()) barrier_expect(landed, slices * kBoxBytes);
      load_boxes(shared_address(boxes.v), slices == 2 ? &maps.v : &maps.slice_of_v, half, v_head, token, landed);
    }
    __syncwarp();
    if (whole()) return;
    barrier_wait(landed, turn >= kOdd);
    turn ^= kOdd;
    clear_behind<true>(boxes, rest, slices);
    named_arrive(kOfStage + place, 32 + 128 * slices);
    __syncwarp();
    if (lane_here() == 0) barrier_arrive(shared_address(&s.full[place])), barrier_arrive(shared_address(&s.v_full[place]));
  }

  __device__ __forceinline__ void move_on() {
    const bool around = place == kStages - 1;
    place = around ? 0 : place + 1, round += around;
  }

  // What is next; by the time that all chunks have been asked for it is there.
  __device__ __forceinline__ void want() const {
    if (p.stays && lane_here() == 0) barrier_arrive(shared_address(&s.wanted));
  }

  __device__ __forceinline__ void feed() {
    while (begin()) {
      if (rest <= 0) want();
#pragma unroll 1
      for (; rest > 0; rest -= kChunk, token += kChunk, move_on()) {
        if (p.length != 0 && place == 1 && round == 0) ask_transfers(p, s);
        ask();
        if (rest <= kChunk) want();
        ask_v();
      }
      if (p.length != 0 && place == 1 && round == 0) ask_transfers(p, s);
      if (!p.stays) break;
      ++turn;
    }
#pragma unroll 1
    for (int i = 0; i < kStages; ++i, move_on()) take();
    if (lane_here() == 0) stored_all();
  }
};

// By a warp: finds what is next when the one that feeds wants it, and everybody has left the place where it is told.
__device__ __forceinline__ void hand_out_work(const Problem& p, Shared<2, true>& s) {
#pragma unroll 1
  for (int turn = 1, more = 1; more; ++turn) {
    const int place = turn % 2;
    int next = 0;
    barrier_wait(shared_address(&s.wanted), (turn - 1) & 1);
    if (lane_here() == 0) {
      if (turn == 1) wait_for_last();  // who has set the counter to zero
      next = static_cast<int>(gridDim.z) + atomicAdd(p.taken, 1);
    }
    if (turn > 1) barrier_wait(shared_address(&s.left[place]), (turn / 2 - 1) & 1);
    __syncwarp();  // all lanes have seen both, before there can be the next
    if (lane_here() == 0) {
      Work& work = s.work[place];
      more = find_stayed(p, s.order, s.sliced, next, work);
      if (!more) work.chunks = -1;
      if (more && work.from != nullptr) {
        const bool all = work.from_k_first;  // rows of a slice lie together otherwise
        prefetch_bytes(work.from + (all ? 0 : work.slice * D), (all ? D : work.groups * kSlice) * D * sizeof(float));
      }
      barrier_arrive(shared_address(&s.told[place]));
    }
    more = __shfl_sync(kAllLanes, more, 0);
  }
}

}  // namespace
