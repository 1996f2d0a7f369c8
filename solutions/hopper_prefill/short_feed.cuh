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

// By a warp. A chunk is asked for as soon as its place is free, a state as soon as the one before has been read.
template <class Block>
struct ShortFeeder {
  const Problem& p;
  Block& s;
  const Maps& maps;
  const ShortMaps& parts;
  int asked = 0;  // chunks, of all turns

  __device__ __forceinline__ static int uniform(int x) { return __shfl_sync(kAllLanes, x, 0); }

  // The (sequence, head) of a turn; chunks < 0: there is none left.
  struct Turn {
    int n, h, chunks, start, end;
  };
  // The order is volatile: the kernel before may have written it while this one was running.
  __device__ __forceinline__ Turn find(int pair) const {
    if (pair >= p.N * p.H) return {0, 0, -1, 0, 0};
    const int rank = pair / p.H, h = pair - rank * p.H;
    const bool as_they_come = !Block::kStates && p.queue == nullptr;
    const int n = as_they_come ? rank : uniform(*reinterpret_cast<const volatile int*>(p.queue + kQueued + rank));
    const int start = uniform(static_cast<int>(bound(p, n))), end = uniform(static_cast<int>(bound(p, n + 1)));
    return {n, h, end < start ? 0 : (end - start + kChunk - 1) / kChunk, start, end};
  }
  __device__ __forceinline__ int take_next() const {
    if (!Block::kStates && p.queue == nullptr) return p.N * p.H;
    return uniform(lane_here() == 0 ? atomicAdd(p.queue, 1) : 0);
  }

  // Says what the next turn is, and asks for its state in L2, from where those who advance take it.
  __device__ __forceinline__ void tell_turn(const Turn& turn, int number) const {
    if (number > 0) barrier_wait(shared_address(&s.taken), (number - 1) & 1);
    __syncwarp();  // before it may be taken again
    if (lane_here() == 0) {
      Work& work = s.work[number % kShortTurns];
      const int64_t state = (static_cast<int64_t>(turn.n) * p.H + turn.h) * kStaySize * kStaySize;
      work.h = turn.h, work.chunks = turn.chunks, work.slice = 0, work.start = turn.start, work.end = turn.end;
      work.identity = false;
      work.from = p.initial_state == nullptr ? nullptr : p.initial_state + state;
      work.to = p.final_state + state;
      if (turn.chunks >= 0 && work.from != nullptr) prefetch_bytes(work.from, kStaySize * kStaySize * 4);
      barrier_arrive(shared_address(&s.told));
    }
    __syncwarp();
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
    barrier_wait(shared_address(&s.keys_empty[c % Block::kPlaces]), c / Block::kPlaces & 1);
  }

  // Once its output is there, it goes to memory.
  __device__ __forceinline__ void let_out(int c) const {
    const int i = c % Block::kPlaces;
    barrier_wait(shared_address(&s.empty[i]), c / Block::kPlaces & 1);
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

  // To L2, ahead of being asked for: else a chunk takes as long to come as one is advanced.
  __device__ __forceinline__ void prefetch_chunk(const Turn& turn, int c) const {
    const int token = turn.start + c * kChunk;
    if (c >= turn.chunks) return;
    if (lane_here() == 0) {
      prefetch_boxes(&maps.k, 0, turn.h / p.k_group, token);
      prefetch_boxes(&maps.q, 0, turn.h / p.q_group, token);
      prefetch_boxes(&maps.v, 0, turn.h / p.v_group, token);
    }
    for (int t = token + lane_here(); t < min(token + kChunk, turn.end); t += 32) {
      const int64_t at = static_cast<int64_t>(t) * p.H + turn.h;
      if (p.g != nullptr) prefetch_line(p.g + at);
      if (p.beta != nullptr) prefetch_line(p.beta + at);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void ask_chunk(const Turn& turn, int c) {
    const int i = asked % Block::kPlaces, token = turn.start + c * kChunk, rows = min(turn.end - token, kChunk);
    const int bytes = (rows + kShortRows - 1) / kShortRows * kShortRows * 256;  // of k, and of q and v
    auto& place = s.places[i];
    const bool first = asked < Block::kPlaces;
    GDN_STAMP(2, asked, 0);
    if (!first) wait_keys_empty(asked - Block::kPlaces);
    GDN_STAMP(2, asked, 1);
    if (lane_here() == 0) {
      s.asks[i] = {token, rows, turn.h};
      barrier_arrive(shared_address(&s.asked[i]));
      const uint32_t landing = shared_address(&s.landed[i]);
      barrier_expect(landing, 2 * bytes);
      load(shared_address(place.k), &maps.k, parts.k, rows, turn.h / p.k_group, token, landing);
      load(shared_address(place.q), &maps.q, parts.q, rows, turn.h / p.q_group, token, landing);
    }
    __syncwarp();
    if (!first) let_out(asked - Block::kPlaces);
    GDN_STAMP(2, asked, 2);
    if (lane_here() == 0) {
      // Where rows of v are to be cleared, somebody else says that they are there.
      const uint32_t landing = shared_address(Block::kStates || rows < kChunk ? &s.v_landed[i] : &s.v_full[i]);
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
    for (int last = asked + Block::kPlaces; asked < last; ++asked) {
      const int i = asked % Block::kPlaces;
      if (asked >= Block::kPlaces) wait_keys_empty(asked - Block::kPlaces), let_out(asked - Block::kPlaces);
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
      const bool chunk_first = Block::kStates && before <= 1;
      const int chunks = turn.chunks;
      if (chunk_first && chunks > 0) ask_chunk(turn, 0);
      if constexpr (Block::kStates) {
        ask_state(turn, number);
      } else {
        tell_turn(turn, number);
      }
      if (chunks < 0) break;
#pragma unroll 1
      for (int c = chunk_first; c < chunks; ++c) {
        if constexpr (!Block::kStates) prefetch_chunk(turn, c + LONG_AHEAD);
        ask_chunk(turn, c);
      }
      before = chunks;
      turn = find(take_next());
    }
    finish();
  }
};

}  // namespace
