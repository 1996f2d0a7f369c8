// What needs no state, of every chunk and head: T, decays and, if asked for, P, to memory.
#pragma once
#include "invert.cuh"

namespace {

constexpr int kHeads = 4;  // of a block that prepares: a warp each

// How such a block is made up: `units` of `heads` heads that share their q and k. As many units one after the other share a
// query head and a key head.
struct Group {
  int units, heads, of_query_head, of_key_head;
};

// The shared memory of one, in this order. Behind it Q, of each unit two boxes, where Q K^T goes once they are multiplied, if P
// is prepared; behind that K, and where K was warps work once all of them have multiplied it.
struct Front {
  Rows rows[kHeads];
  alignas(8) uint64_t landed;
};
constexpr int kFront = 4096, kTwoBoxes = 2 * kBoxBytes;
static_assert(sizeof(Front) <= kFront && kProducts <= kTwoBoxes);
constexpr int prepare_bytes(int units, bool with_p) {
  const int work = kHeads * static_cast<int>(sizeof(Scratch)), k = units * kTwoBoxes;
  return kFront + (with_p ? units * kTwoBoxes : 0) + (k > work ? k : work);
}

// A block has a chunk. The grid is (places of chunks, H / (units * heads)).
template <class E, bool WithP>
__global__ void __launch_bounds__(128, WithP ? 3 : 4) gdn_prepare_kernel(
    const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ Group group) {
  let_next_begin();
  DYNAMIC_SHARED(memory);
  auto& front = *reinterpret_cast<Front*>(memory);
  unsigned char* const q_boxes = memory + kFront;
  unsigned char* const k_boxes = q_boxes + (WithP ? group.units * kTwoBoxes : 0);
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), lane = lane_here();
  const auto [first, valid] = find_chunk(p, blockIdx.x);
  if (valid == 0) return;
  const int heads = group.units * group.heads, h = blockIdx.y * heads;
  const bool busy = warp < heads;
  const uint32_t landed = shared_address(&front.landed);
  const Gates gates = load_gates(p, first, valid, h, heads);
  if (threadIdx.x == 0) {
    barrier_init(landed, 1);
    barrier_init_done();
    barrier_expect(landed, group.units * (WithP ? 2 : 1) * kTwoBoxes);
    const auto head_of = [](int unit, int units) { return units == 1 ? unit : unit / units; };
    for (int u = 0; u < group.units; ++u) {
      const int unit = blockIdx.y * group.units + u, token = static_cast<int>(first);
      load_boxes(shared_address(k_boxes) + u * kTwoBoxes, &k_map, 0, head_of(unit, group.of_key_head), token, landed);
      if (WithP) {
        load_boxes(shared_address(q_boxes) + u * kTwoBoxes, &q_map, 0, head_of(unit, group.of_query_head), token, landed);
      }
    }
  }
  write_gates(p, gates, heads, front.rows);
  unsigned char* const tile = p.tiles + (static_cast<int64_t>(blockIdx.x) * p.H + h + warp) * tile_bytes(WithP);
  __syncthreads();
  bool near = true;
  if (busy) {
    auto* const logs = WithP ? nullptr : reinterpret_cast<Logs*>(tile + kLogsAt);
    near = find_decays(p, front.rows[warp], *reinterpret_cast<Decays*>(tile + kDecaysAt), logs, lane);
  }
  barrier_wait(landed, 0);
  if (valid < kChunk) {  // rows of the next sequence, NaN maybe
    for (int at = 0; at < group.units * (WithP ? 2 : 1) * kTwoBoxes; at += kBoxBytes) {
      clear_rows(shared_address(q_boxes) + at, valid, threadIdx.x, 128);
    }
    if (WithP) fence_async();
    __syncthreads();
  }
  if constexpr (WithP) {
#pragma unroll 1
    for (int u = 0; u < group.units; ++u) {
      unsigned char* const q = q_boxes + u * kTwoBoxes;
      float products[32];
      multiply_boxes<E>(products, shared_address(q), shared_address(k_boxes) + u * kTwoBoxes);
      wgmma_wait<0>();
      settle(products);
      __syncthreads();  // all of this unit's Q is read
      write_products(products, q, warp, lane);
    }
  }
  const int unit = warp < group.heads ? 0 : 1;
  float products[kBlocks][8];
  if (busy) multiply_own<E>(products, shared_address(k_boxes) + unit * kTwoBoxes, lane);
  __syncthreads();
  if (!busy) return;
  Scratch& scratch = reinterpret_cast<Scratch*>(k_boxes)[warp];
  Inverter<E, WithP>{products, q_boxes + unit * kTwoBoxes, front.rows[warp], near, scratch, tile, p.scale, lane}.find();
}

}  // namespace
