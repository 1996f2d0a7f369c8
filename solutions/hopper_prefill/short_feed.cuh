// Of a block that prepares its own chunks: the warp that asks for states and chunks, of one (sequence, head) after the other.
#pragma once
#include "feed.cuh"
#include "queue.cuh"
#include "short_shared.cuh"

namespace {

// Boxes of one half, of 16, 32 and 48 rows: of a chunk that is not whole no more is asked for than it has, rounded up. And a
// slice of a state.
struct ShortMaps {
  CUtensorMap q[3], k[3], v[3], states;
};

// Which (sequence, head) a block has, one after the other: by a warp.
struct TurnFeeder {
  const Problem& p;
  const Maps& maps;

  __device__ __forceinline__ static int uniform(int x) { return __shfl_sync(kAllLanes, x, 0); }

  // The (sequence, head) of a turn; chunks < 0: there is none left.
  struct Turn {
    int n, h, chunks, start, end;
  };
  __device__ __forceinline__ static Turn turn_of(int n, int h, int start, int end) {
    return {n, h, end < start ? 0 : (end - start + kChunk - 1) / kChunk, start, end};
  }
  // The order is volatile: the kernel before may have written it while this one was running.
  __device__ __forceinline__ Turn find(int pair) const {
    const int sequences = p.few == 0 ? p.N : uniform(*reinterpret_cast<const volatile int*>(p.queue + 1));
    if (pair >= sequences * p.H) return {0, 0, -1, 0, 0};
    const int rank = pair / p.H, h = pair - rank * p.H;
    // Where no block has a second turn there is no queue.
    const int n = p.queue == nullptr ? rank : uniform(*reinterpret_cast<const volatile int*>(p.queue + kQueued + rank));
    return turn_of(n, h, uniform(static_cast<int>(bound(p, n))), uniform(static_cast<int>(bound(p, n + 1))));
  }
};

// A chunk is asked for as soon as its place is free, a state as soon as the one before has been read.
struct ShortFeeder : TurnFeeder {
  Short& s;
  const ShortMaps& parts;
  int asked = 0;  // chunks, of all turns

  __device__ __forceinline__ ShortFeeder(const Problem& p, Short& s, const Maps& maps, const ShortMaps& parts)
      : TurnFeeder{p, maps}, s(s), parts(parts) {}

  __device__ __forceinline__ int take_next() const {
    return uniform(lane_here() == 0 ? atomicAdd(p.queue, 1) : 0);
  }

  // A slice for each warpgroup, as soon as that has read the one before.
  __device__ __forceinline__ void ask_state(const Turn& turn, int number) const {
    const int pair = turn.n * p.H + turn.h;
    for (int slice = 0; slice < 2; ++slice) {
      const uint32_t landing = shared_address(&s.state_full[slice]);
      if (number > 0) barrier_wait(shared_address(&s.state_empty[slice]), (number - 1) & 1);
      if (lane_here() == 0) {
        if (slice == 0) {
          Work& work = s.work[number % kShortTurns];
          work.h = turn.h, work.chunks = turn.chunks, work.slice = 0, work.start = turn.start, work.end = turn.end;
          work.to = p.final_state + static_cast<int64_t>(pair) * kStaySize * kStaySize;
        }
        if (turn.chunks >= 0 && p.initial_state != nullptr) {
          barrier_expect(landing, sizeof(s.state[0]));
          const int row = pair * kStaySize + (p.k_first ? 0 : slice * kSlice), box = p.k_first ? 2 * slice : 0;
          load_state_part(shared_address(s.state[slice]), &parts.states, row, box, landing);
        } else {
          barrier_arrive(landing);
        }
      }
      __syncwarp();
    }
  }

  // For nobody to need k and q of chunk `c`, counted over all turns.
  __device__ __forceinline__ void wait_keys_empty(int c) const {
    barrier_wait(shared_address(&s.keys_empty[c % kShortPlaces]), c / kShortPlaces & 1);
  }

  // Once its output is there, it goes to memory.
  __device__ __forceinline__ void let_out(int c) const {
    const int i = c % kShortPlaces;
    barrier_wait(shared_address(&s.empty[i]), c / kShortPlaces & 1);
    if (lane_here() == 0) {
      fence_async();  // what others have written there is read by TMA, or written over by it
      const auto [token, h] = s.going[i];
      if (token >= 0) store_boxes(&maps.output, shared_address(s.places[i].v), 0, h, token);
    }
    __syncwarp();
  }

  // 64 rows of a head, or as many as there are boxes for.
  __device__ __forceinline__ void load(uint32_t to, const CUtensorMap* whole, const CUtensorMap* parts, int rows, int head,
                                       int token, uint32_t landing) const {
    const int size = (rows + kShortRows - 1) / kShortRows;
    if (size == kChunk / kShortRows) return load_boxes(to, whole, 0, head, token, landing);
    load_boxes(to, parts + size - 1, 0, head, token, landing);
    load_boxes(to + kBoxBytes, parts + size - 1, 1, head, token, landing);
  }

  __device__ __forceinline__ void ask_chunk(const Turn& turn, int c) {
    const int i = asked % kShortPlaces, token = turn.start + c * kChunk, rows = min(turn.end - token, kChunk);
    const int bytes = (rows + kShortRows - 1) / kShortRows * kShortRows * 256;  // of k, and of q and v
    auto& place = s.places[i];
    const bool first = asked < kShortPlaces;
    if (!first) wait_keys_empty(asked - kShortPlaces);
    if (lane_here() == 0) {
      s.asks[i] = {token, rows, turn.h};
      barrier_arrive(shared_address(&s.asked[i]));
      const uint32_t landing = shared_address(&s.landed[i]);
      barrier_expect(landing, 2 * bytes);
      load(shared_address(place.k), &maps.k, parts.k, rows, turn.h / p.k_group, token, landing);
      load(shared_address(place.q), &maps.q, parts.q, rows, turn.h / p.q_group, token, landing);
    }
    __syncwarp();
    if (!first) let_out(asked - kShortPlaces);
    if (lane_here() == 0) {
      const uint32_t landing = shared_address(&s.v_landed[i]);
      stored_read();  // the output that was in the place of v
      s.going[i] = {rows == kChunk ? token : -1, turn.h};
      barrier_expect(landing, bytes);
      load(shared_address(place.v), &maps.v, parts.v, rows, turn.h / p.v_group, token, landing);
    }
    __syncwarp();
    ++asked;
  }

  // That there is no more, to both warps that invert.
  __device__ __forceinline__ void finish() {
    for (int last = asked + kShortPlaces; asked < last; ++asked) {
      const int i = asked % kShortPlaces;
      if (asked >= kShortPlaces) wait_keys_empty(asked - kShortPlaces), let_out(asked - kShortPlaces);
      if (lane_here() == 0) {
        s.asks[i].rows = -1;
        barrier_arrive(shared_address(&s.asked[i]));
      }
      __syncwarp();
    }
    if (lane_here() == 0) stored_all();
  }

  __device__ __forceinline__ void run() {
    wait_for_last();
    fence_async_memory();
    Turn turn = find(blockIdx.x);
    int before = 0;  // chunks of the turn before
#pragma unroll 1
    for (int number = 0;; ++number) {
      // A turn's first chunk has the place of a chunk of the turn before, or, where that has but one, of one before that:
      // then the place is free before the state is.
      const bool chunk_first = before <= 1;
      const int chunks = turn.chunks;
      if (chunk_first && chunks > 0) ask_chunk(turn, 0);
      ask_state(turn, number);
      if (chunks < 0) break;
#pragma unroll 1
      for (int c = chunk_first; c < chunks; ++c) ask_chunk(turn, c);
      before = chunks;
      turn = find(take_next());
    }
    finish();
  }
};

}  // namespace
