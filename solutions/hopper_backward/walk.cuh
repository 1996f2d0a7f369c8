// What both walks over the chunks of a sequence share: a block has a (sequence, head), or a slice of its value channels. One
// warp feeds places for chunks; each other warpgroup walks, with a slice of a state in registers.
//
//   feed      asks for what a chunk needs ──full[i]──> walk     ──empty[i]──> feed: takes what was left for memory, in the place
//                                                                             of values, and asks for the next chunk there
#pragma once
#include "operands.cuh"

namespace {

// What a block has to do.
struct Work {
  int n, h, slice, chunks;  // the first value channel
  int q_head, k_head, v_head;
  int64_t place, start;  // of the first chunk; its first token
  int tokens;
  int of_dh0;  // the sequence, whose first chunk this has, or -1
};

// Where the state of a walk that leaves nothing else comes from and goes to.
struct Carried {
  StateAt from, to;
  float* turned;  // transposed, too, or null
  bool identity;
};

template <class Stage, int Groups, int Stages>
struct Walking {
  alignas(1024) Stage stage[Stages];
  unsigned char states[Groups][kHalves * kBoxBytes];  // on their way to memory
  alignas(8) uint64_t full[Stages], empty[Stages], tail;
  uint64_t passed_on, taken;  // states that another warp stores: there are some, there is room
  int states_there, values_there;  // turns of the block of which these are in memory
  Work work;
  Carried carried;
};

// Of sequence n and head h, or of the nth one in their order; by one thread.
__device__ __forceinline__ Work work_of_sequence(const Problem& p, int n, int h, int slice) {
  const int64_t start = bound(p, n);
  int of_dh0 = n;
  if (p.segments.owners != nullptr) {
    of_dh0 = p.segments.owners[n];
    if (of_dh0 >= 0 && p.segments.firsts[of_dh0] != n) of_dh0 = -1;
  }
  return Work{n, h, slice, count_chunks(p, n), h / p.q_group, h / p.k_group, h / p.v_group, first_chunk(p, n), start,
              static_cast<int>(bound(p, n + 1) - start), of_dh0};
}

__device__ __forceinline__ int nth_sequence(const Problem& p, int nth) { return p.order != nullptr ? p.order[nth] : nth; }
__device__ __forceinline__ Work work_of(const Problem& p, int nth, int h, int slice) {
  return work_of_sequence(p, nth_sequence(p, nth), h, slice);
}

// By all threads, once. `clear` makes zeros where nothing lands; `more` prepares more barriers.
template <class Shared, int Groups, int Stages, class Clear, class More>
__device__ __forceinline__ void prepare_places(Shared& s, Clear clear, More more) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < Stages; ++i) {
      barrier_init(shared_address(&s.full[i]), kSpeakers);
      barrier_init(shared_address(&s.empty[i]), 4 * Groups * kSpeakers);
    }
    barrier_init(shared_address(&s.tail), 1);
    more();
    barrier_init_done();
  }
  for (auto& stage : s.stage) clear(stage);
  fence_async();
}

// Turns and tails of the walks that a block has behind it.
struct Behind {
  int turns = 0, tails = 0;
};

// For the tile of a turn, which then may be copied; by a warp. Returns how many turns have theirs: asking takes a microsecond, so it asks
// for 32 of them.
template <class Way>
__device__ __forceinline__ int wait_for_tiles(const Problem& p, const Work& work, int turn, int lane) {
  const auto of = [&](int turn) { return p.prepared + at_place(p, work.place + Way::chunk_of(work, turn), work.h); };
  if (lane == 0) wait_for_number(of(turn));
  __syncwarp();
  const bool there = turn + lane < work.chunks && load_acquired(of(turn + lane)) != 0;
  const unsigned missing = ~__ballot_sync(kAllLanes, there);
  fence_async_memory();
  __syncwarp();
  return turn + (missing == 0 ? 32 : __ffs(missing) - 1);
}

// By a warp, for turns 0, 1, .. of a walk. `Way` knows which chunk a turn has, what it needs, where what it leaves goes, whether
// somebody waits for that, and what it needs late, of which it asks for the next turn's once one is over.
template <class Way, class Shared, int Groups, int Stages>
__device__ __forceinline__ void feed(const Problem& p, Shared& s, const Way& way, Behind& behind) {
  const int lane = lane_here();
  const auto chunks = [&] { return s.work.chunks; };  // read anew: there is no room for it
  const auto take = [&](int turn) {
    const int i = behind.turns + turn;
    barrier_wait(shared_address(&s.empty[i % Stages]), i / Stages & 1);
    if (lane == 0) fence_async();  // for warps that walk, which have written it
    way.leave(p, s.stage[i % Stages], Way::chunk_of(s.work, turn), lane);
    if (lane == 0 && turn + 1 < chunks()) way.ask_late(p, Way::chunk_of(s.work, turn + 1));
  };
  if (lane == 0 && chunks() > 0) way.ask_late(p, Way::chunk_of(s.work, 0));
  [[maybe_unused]] int prepared = 0;
#pragma unroll 1
  for (int turn = 0; turn < chunks(); ++turn) {
    if (turn >= Stages) take(turn - Stages);
    const int c = Way::chunk_of(s.work, turn), rows = s.work.tokens - c * kChunk;
    const int i = behind.turns + turn;
    auto& stage = s.stage[i % Stages];
    const bool whole = rows >= kChunk;
    const uint32_t full = shared_address(&s.full[i % Stages]), landed = whole ? full : shared_address(&s.tail);
    if constexpr (Way::kWaits) {
      if (turn >= prepared) prepared = wait_for_tiles<Way>(p, s.work, turn, lane);
    }
    if (lane == 0) way.ask(p, stage, i % Stages, c, landed);
    if (whole) others_arrive(lane, full);
    __syncwarp();
    if (!whole) {
      // Rows behind the end are the next sequence's: what is in them, NaN maybe, is no business of this one's, so they become
      // zeros before anybody looks.
      barrier_wait(landed, behind.tails & 1);
      ++behind.tails;
      way.clear(stage, rows, lane);
      fence_async();
      __syncwarp();
      if (lane == 0) barrier_arrive(full);
      others_arrive(lane, full);
    }
    if (Way::kTells && turn >= Stages && lane == 0) {
      stored_all();
      way.count(i - Stages + 1);
    }
  }
#pragma unroll 1
  for (int turn = max(0, chunks() - Stages); turn < chunks(); ++turn) {
    take(turn);
    if (lane != 0) continue;
    if (Way::kTells || turn == chunks() - 1) stored_all();
    if (Way::kTells) way.count(behind.turns + turn + 1);
  }
  behind.turns += chunks();
}

// acc (+)= state boxes^T, the first product of a turn; and the state, a left operand, to `states`, from where it goes to memory: each warp its
// own 16 rows. A warp waits for room ahead of each product, so stores between them take no time.
template <class E, bool Keeps>
__device__ __forceinline__ void multiply_and_keep(float (&acc)[32], const uint32_t (&state)[8][4], uint32_t boxes, bool accumulate, uint32_t states,
                                                  int warp, int lane) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    wgmma<E, 0>(acc, state[k], descriptor(boxes, along_row(k)), accumulate || k > 0);
    if constexpr (Keeps) stmatrix(states + k / 4 * kBoxBytes + place_of_lane(warp, k % 4, lane), state[k]);
  }
}

// What a warp has kept, to one that stores it: once that has `taken` the one before.
__device__ __forceinline__ void pass_on(uint32_t passed_on, int lane) {
  fence_async();
  __syncwarp();
  warp_arrive(lane, passed_on);
}

// Stores states that whoever walks passes on, from `to` on; by a warp. Told: it sees each arrive, and says so.
template <bool Told, class Shared>
__device__ __forceinline__ void store_states(Shared& s, unsigned char* to, int64_t step, int& behind) {
  const int chunks = s.work.chunks;
  if (lane_here() == 0) {
#pragma unroll 1
    for (int turn = 0; turn < chunks; ++turn) {
      barrier_wait(shared_address(&s.passed_on), (behind + turn) & 1);
      store_bytes(to, shared_address(s.states), sizeof s.states);
      stored_read();
      barrier_arrive(shared_address(&s.taken));
      to += step;
      if (!Told) continue;
      stored_all();
      store_count(&s.states_there, behind + turn + 1);
    }
    if (!Told) stored_all();
  }
  __syncwarp();
  behind += chunks;
}

// Tells whoever finds gradients of chunks that a block has left; by a warp, which nobody waits for. `first`:
// place * key heads + key head of the first turn; from there on by Step chunks. The first `untold` turns are left out.
template <int Step, class Shared>
__device__ __forceinline__ void tell_turns(const Problem& p, const Shared& s, int first, int untold, int chunks, int& behind) {
  const int all = behind + chunks;
  int told = behind + untold;
#pragma unroll 1
  while (told < all) {
    int there = 0;
    if (lane_here() == 0) there = wait_for_counts(&s.states_there, &s.values_there, told);
    there = min(__shfl_sync(kAllLanes, there, 0), all);
    __syncwarp();
#pragma unroll 1
    for (int turn = told + lane_here(); turn < there; turn += 32) tell(p, first + (turn - behind) * (Step * p.k_heads));
    told = there;
    __syncwarp();
  }
  behind = all;
}

// Whether somebody needs what r loses, in a sequence's first chunk and its last; and where that is, of a warp.
__device__ __forceinline__ bool keeps_rests(const Problem& p) { return p.initial_state != nullptr || p.dht != nullptr; }
__device__ __forceinline__ uint4* rests_of(const Problem& p, const Work& work, bool is_last, int walker) {
  return p.rests + ((at_place(p, work.n, work.h) * 2 + is_last) * kWalkers + walker) * 4 * 32;
}

// Whether a slice's forward walk is over.
__device__ __forceinline__ int* forward_over(const Problem& p, const Work& work) {
  return p.forward_over + at_place(p, work.n, work.h) * kHalves + work.slice / kSlice;
}

// For the forward walk over all slices of a block that walks back.
template <int Groups>
__device__ __forceinline__ void wait_for_forward(const Problem& p, const Work& work) {
#pragma unroll
  for (int i = 0; i < Groups; ++i) wait_for_number(forward_over(p, work) + i);
}

template <int Groups>
constexpr int kWalkThreads = 128 * (Groups + 1);

}  // namespace
