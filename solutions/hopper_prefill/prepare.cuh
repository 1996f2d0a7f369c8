// What needs no state, of every chunk and head: T, decays and, if asked for, P, to memory.
//
// Blocks that stay, one a multiprocessor. One warp asks for boxes of k and q, unit after unit, a warpgroup multiplies them, and
// other warps take heads in turns, each for itself (invert.cuh). Products lie in slots between them.
#pragma once
#include "invert.cuh"

namespace {

constexpr int kHeads = 4;  // of a unit, at most

// A unit: a chunk, and `heads` heads that share their q and k. A chunk has `units` of them. As many one after the other share a
// query head and a key head.
struct Group {
  int heads, units, of_query_head, of_key_head;
};

constexpr int kRowsCleared = 1;                                                // named barrier
constexpr int count_places_of_boxes(bool with_p) { return with_p ? 2 : 3; }    // one is multiplied, others are on their way
constexpr int count_inverters(bool with_p) { return with_p ? 10 : 15; }        // warps that take heads
// Registers of a thread: at launch each has 96, or 128 with P; of those that multiply, of the others.
constexpr int multiply_registers(bool with_p) { return with_p ? 96 : 64; }
constexpr int invert_registers(bool with_p) { return with_p ? 136 : 104; }
constexpr int prepare_threads(bool with_p) { return 128 + (32 + 32 * count_inverters(with_p) + 127) / 128 * 128; }

// What a warp that takes heads has for itself.
struct Desk {
  Rows rows;
  Scratch scratch;
};

// Barriers: a unit's boxes have landed; they are read; a slot has its products; nobody needs them any more.
template <bool WithP, int Slots>
struct Bench {
  static constexpr int kPlaces = count_places_of_boxes(WithP), kInverters = count_inverters(WithP);
  alignas(1024) unsigned char boxes[kPlaces][(WithP ? 4 : 2) * kBoxBytes];
  alignas(16) unsigned char slot[Slots][(WithP ? 2 : 1) * kProducts];
  alignas(16) Desk desk[kInverters];
  alignas(8) uint64_t landed[kPlaces], read[kPlaces], full[Slots], empty[Slots];
};
// As many slots as there is room for.
template <bool WithP, int Slots = 1>
constexpr int count_slots() {
  if constexpr (sizeof(Bench<WithP, Slots + 1>) > kMostShared) {
    return Slots;
  } else {
    return count_slots<WithP, Slots + 1>();
  }
}

// 32 units of this block, which has every gridDim.x-th of them all: from the i-th on every `step`-th, a lane each. So whoever
// takes units in turns looks up what they are once in 32 of them. By a warp.
struct Units {
  int place, first_head, k_head, q_head;  // the place of its chunk
  int first, valid;                       // the chunk's first token, and how many it has; none: there is no such unit
  __device__ __forceinline__ Units(const Problem& p, const Group& group, int i, int step, int count) {
    const int lane = lane_here();
    i += lane * step;
    const int unit = blockIdx.x + gridDim.x * i, of_chunk = unit % group.units;
    place = unit / group.units, first_head = of_chunk * group.heads;
    k_head = of_chunk / group.of_key_head, q_head = of_chunk / group.of_query_head;
    const auto [token, tokens] = find_chunk_of_lane(p, place);
    first = static_cast<int>(token), valid = i < count ? tokens : 0;
  }
};
__device__ __forceinline__ int of_lane(int x, int lane) { return __shfl_sync(kAllLanes, x, lane); }

__device__ __forceinline__ int count_units(const Problem& p, const Group& group) {
  const int64_t all = (p.tokens / kChunk + p.N) * group.units;
  return static_cast<int>((all - blockIdx.x + gridDim.x - 1) / gridDim.x);
}

__device__ __forceinline__ void arrive_for_warp(uint64_t& barrier, int lane) {
  __syncwarp();
  if (lane == 0 || kLeavers > 1) barrier_arrive(shared_address(&barrier));
}

// A unit that is not there is passed on as others are, and holds nothing.

// By one warp.
template <bool WithP, int Slots>
__device__ __forceinline__ void ask_for_units(const Problem& p, Bench<WithP, Slots>& s, const CUtensorMap& q_map,
                                              const CUtensorMap& k_map, const Group& group) {
  const int lane = lane_here(), count = count_units(p, group);
  Units units(p, group, 0, 1, count);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (i > 0 && i % 32 == 0) units = Units(p, group, i, 1, count);
    const int place = i % s.kPlaces, valid = of_lane(units.valid, i % 32), token = of_lane(units.first, i % 32);
    const int k_head = of_lane(units.k_head, i % 32), q_head = WithP ? of_lane(units.q_head, i % 32) : 0;
    const uint32_t landed = shared_address(&s.landed[place]), boxes = shared_address(s.boxes[place]);
    barrier_wait(shared_address(&s.read[place]), i / s.kPlaces & 1 ^ 1);
    __syncwarp();  // nobody waits any more, when the next round begins
    if (lane == 0) {
      if (valid == 0) {
        barrier_arrive(landed);
      } else {
        barrier_expect(landed, sizeof s.boxes[0]);
        load_boxes(boxes, &k_map, 0, k_head, token, landed);
        if (WithP) load_boxes(boxes + 2 * kBoxBytes, &q_map, 0, q_head, token, landed);
      }
    }
    __syncwarp();
  }
}

// By four warps.
template <class E, bool WithP, int Slots>
__device__ __forceinline__ void multiply_units(const Problem& p, Bench<WithP, Slots>& s, const Group& group) {
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), lane = lane_here(), count = count_units(p, group);
  Units units(p, group, 0, 1, count);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (i > 0 && i % 32 == 0) units = Units(p, group, i, 1, count);
    const int place = i % s.kPlaces, slot = i % Slots, valid = of_lane(units.valid, i % 32);
    const uint32_t k = shared_address(s.boxes[place]);
    barrier_wait(shared_address(&s.landed[place]), i / s.kPlaces & 1);
    if (valid > 0 && valid < kChunk) {  // rows of the next sequence, NaN maybe
      for (int at = 0; at < static_cast<int>(sizeof s.boxes[0]); at += kBoxBytes) clear_rows(k + at, valid, threadIdx.x, 128);
      fence_async();
      named_barrier(kRowsCleared, 128);
    }
    float k_products[32], q_products[32];
    if (valid > 0) {
      multiply_boxes<E>(k_products, k, k);
      if constexpr (WithP) multiply_boxes<E>(q_products, k + 2 * kBoxBytes, k);
      wgmma_wait<0>();
      settle(k_products);
      if constexpr (WithP) settle(q_products);
    }
    arrive_for_warp(s.read[place], lane);
    barrier_wait(shared_address(&s.empty[slot]), i / Slots & 1 ^ 1);
    if (valid > 0) {
      write_products(k_products, s.slot[slot], warp, lane);
      if constexpr (WithP) write_products(q_products, s.slot[slot] + kProducts, warp, lane);
    }
    arrive_for_warp(s.full[slot], lane);
  }
}

// By each of the others: one head of every so many-th unit. No more of them than there are heads in slots: one that waited for a
// unit two rounds ahead would take the end of a round for the one that it means.
template <class E, bool WithP, int Slots>
__device__ __forceinline__ void invert_heads(const Problem& p, Bench<WithP, Slots>& s, const Group& group, int warp) {
  const int lane = lane_here(), step = min(s.kInverters / group.heads, Slots), count = count_units(p, group);
  const int from = warp / group.heads, head = warp - from * group.heads;
  if (from >= step) return;
  auto& [rows, scratch] = s.desk[warp];
  Units units(p, group, from, step, count);
  const auto find_gates = [&](int turn) {
    const int valid = of_lane(units.valid, turn), first = of_lane(units.first, turn);
    return load_gates(p, first, valid, of_lane(units.first_head, turn) + head, lane);
  };
  Gates gates = find_gates(0);
  int turn = 0;  // of 32
#pragma unroll 1
  for (int i = from; i < count; i += step) {
    const bool there = of_lane(units.valid, turn) > 0;
    const int64_t place = of_lane(units.place, turn), h = of_lane(units.first_head, turn) + head;
    unsigned char* const tile = p.tiles + (place * p.H + h) * tile_bytes(WithP);
    if (there) {
      auto* const logs = WithP ? nullptr : reinterpret_cast<Logs*>(tile + kLogsAt);
      find_decays(p, gates, rows, *reinterpret_cast<Decays*>(tile + kDecaysAt), logs, lane);
    }
    turn = (turn + 1) % 32;
    if (turn == 0) units = Units(p, group, i + step, step, count);
    gates = find_gates(turn);  // of the next, on their way from here on
    barrier_wait(shared_address(&s.full[i % Slots]), i / Slots & 1);
    if (there) Inverter<E, WithP>{s.slot[i % Slots], rows, scratch, tile, p.scale, lane}.find();
    arrive_for_warp(s.empty[i % Slots], lane);
  }
}

template <class E, bool WithP>
__global__ void __launch_bounds__(prepare_threads(WithP), 1) gdn_prepare_kernel(
    const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ Group group) {
  let_next_begin();
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<Bench<WithP, count_slots<WithP>()>*>(memory);
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (auto& barrier : s.landed) barrier_init(shared_address(&barrier), 1);
    for (auto& barrier : s.read) barrier_init(shared_address(&barrier), 4 * kLeavers);
    for (auto& barrier : s.full) barrier_init(shared_address(&barrier), 4 * kLeavers);
    for (auto& barrier : s.empty) barrier_init(shared_address(&barrier), group.heads * kLeavers);
    barrier_init_done();
  }
  __syncthreads();
  if (warp < 4) {
    registers_down<multiply_registers(WithP)>();
    multiply_units<E>(p, s, group);
  } else {
    registers_up<invert_registers(WithP)>();
    if (warp == 4) {
      ask_for_units(p, s, q_map, k_map, group);
    } else {
      invert_heads<E>(p, s, group, warp - 5);
    }
  }
}

}  // namespace
