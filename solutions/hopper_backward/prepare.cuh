// What needs no state, of every chunk and head: inverses, P and decays, to memory.
#pragma once
#include "invert.cuh"
#include "products.cuh"

namespace {

constexpr int kHeads = 4;  // of a block that prepares, at most: a warp each

// How such a block is made up: `units` of `heads` heads that share their q and k. As many units one after the other share a
// query head and a key head.
struct Group {
  int units, heads, of_query_head, of_key_head;
};

// The shared memory of one, in this order. Once all of K and Q are multiplied, what comes of them goes where they were, and
// warps work behind that.
struct Front {
  Rows rows[kHeads];
  alignas(8) uint64_t landed;
};
constexpr int kFront = 5120;
static_assert(sizeof(Front) <= kFront);
constexpr int kUnitBytes = 2 * kHalves * kBoxBytes;  // boxes
static_assert(2 * kProducts <= kUnitBytes);  // what comes of a unit does not reach the boxes of the next one
constexpr int prepare_bytes(int units) {
  const int boxes = units * kUnitBytes, work = units * 2 * kProducts + kHeads * static_cast<int>(sizeof(Scratch));
  return kFront + (boxes > work ? boxes : work);
}

// A block has a chunk, or finds the order of sequences. The grid is (places of chunks and one more, H / (units * heads)).
template <class E>
__global__ void __launch_bounds__(128, 3) gdn_prepare_kernel(
    const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ Group group) {
  DYNAMIC_SHARED(memory);
  auto& front = *reinterpret_cast<Front*>(memory);
  unsigned char* const boxes = memory + kFront;
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), lane = lane_here();
  if (blockIdx.x == p.places) {
    empty_queue(p, blockIdx.y, gridDim.y);
    if (p.order != nullptr && blockIdx.y == 0) order_sequences(p, reinterpret_cast<int*>(memory));
    return;
  }
  const auto [first, valid, n, is_first, is_last] = find_chunk(p, blockIdx.x);
  if (valid == 0) return;
  const int heads = group.units * group.heads, h = blockIdx.y * heads;
  const bool busy = warp < heads;
  const uint32_t landed = shared_address(&front.landed);
  if (threadIdx.x == 0) {
    barrier_init(landed, 1);
    barrier_init_done();
    barrier_expect(landed, group.units * kUnitBytes);
    for (int u = 0; u < group.units; ++u) {
      const uint32_t k = shared_address(boxes) + u * kUnitBytes, q = k + kHalves * kBoxBytes;
      const int unit = blockIdx.y * group.units + u, token = static_cast<int>(first);
      load_boxes(k, &k_map, 0, unit / group.of_key_head, token, landed);
      load_boxes(q, &q_map, 0, unit / group.of_query_head, token, landed);
    }
  }
  load_gates(p, first, valid, h, heads, front.rows);
  unsigned char* const tile = p.tiles + at_place(p, blockIdx.x, h + warp) * kTileBytes;
  __syncthreads();
  if (busy) find_decays(p, front.rows[warp], tile, lane);
  barrier_wait(landed, 0);
  if (valid < kChunk) {  // rows of the next sequence, NaN maybe
    for (int at = 0; at < group.units * kUnitBytes; at += kBoxBytes) clear_rows(shared_address(boxes) + at, valid, threadIdx.x, 128);
    fence_async();
    __syncthreads();
  }
#pragma unroll 1
  for (int u = 0; u < group.units; ++u) {
    const uint32_t k = shared_address(boxes) + u * kUnitBytes, q = k + kHalves * kBoxBytes;
    float k_products[32], q_products[32];  // K K^T, K Q^T
    wgmma_fence();
    multiply_rows<E, kHeadSize / 16>(k_products, k, k, false);
    multiply_rows<E, kHeadSize / 16>(q_products, k, q, false);
    wgmma_commit();
    wgmma_wait<0>();
    settle(k_products), settle(q_products);
    __syncthreads();  // all of this unit's boxes are read, and those of the next lie behind what is written here
    unsigned char* const products = boxes + u * 2 * kProducts;
    write_products<false>(k_products, products, warp, lane);
    write_products<true>(q_products, products + kProducts, warp, lane);
  }
  __syncthreads();
  if (!busy) return;
  auto* const scratch = reinterpret_cast<Scratch*>(boxes + group.units * 2 * kProducts);
  const unsigned char* const products = boxes + (warp < group.heads ? 0 : 2 * kProducts);
  Inverter<E>{products, front.rows[warp], scratch[warp], tile, p.scale, lane}.find();
}

}  // namespace
