// What needs no state, of every chunk and head: inverses, P and decays, to memory.
#pragma once
#include "invert.cuh"
#include "products.cuh"

namespace {

constexpr int kHeads = 4;  // of a block that prepares: a warp each, or two where they are but two

// How such a block is made up: so many heads share their q and k. As many such blocks one after the other share a query head
// and a key head.
struct Group {
  int heads, of_query_head, of_key_head;
};

// The shared memory of one, in this order. Once K and Q are multiplied, what comes of them goes where they were, and warps
// work behind that.
struct Front {
  Rows rows[kHeads];
  alignas(8) uint64_t landed;
};
constexpr int kFront = 5120;
static_assert(sizeof(Front) <= kFront);
constexpr int kPrepareBoxes = 2 * kHalves * kBoxBytes;
constexpr int kPrepareWork = 2 * kProducts + kHeads * static_cast<int>(sizeof(Scratch));
constexpr int kPrepareBytes = kFront + (kPrepareBoxes > kPrepareWork ? kPrepareBoxes : kPrepareWork);

// A block has a chunk. The grid is (places of chunks, H / heads).
template <class E>
__global__ void __launch_bounds__(128, 4) gdn_prepare_kernel(
    const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ Group group) {
  DYNAMIC_SHARED(memory);
  auto& front = *reinterpret_cast<Front*>(memory);
  unsigned char* const boxes = memory + kFront;
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), lane = lane_here();
  const auto [first, valid, n, is_first, is_last] = find_chunk(p, blockIdx.x);
  if (valid == 0) return;
  const int h = blockIdx.y * group.heads;
  const bool inverts = warp < group.heads, helped = 2 * group.heads <= kHeads;
  const int own = inverts ? warp : warp - group.heads;  // which of the heads
  const uint32_t landed = shared_address(&front.landed), k = shared_address(boxes), q = k + kHalves * kBoxBytes;
  if (threadIdx.x == 0) {
    barrier_init(landed, 1);
    barrier_init_done();
    barrier_expect(landed, kPrepareBoxes);
    load_boxes(k, &k_map, 0, blockIdx.y / group.of_key_head, static_cast<int>(first), landed);
    load_boxes(q, &q_map, 0, blockIdx.y / group.of_query_head, static_cast<int>(first), landed);
  }
  load_gates(p, first, valid, h, group.heads, front.rows);
  unsigned char* const tile = p.tiles + at_place(p, blockIdx.x, h + own) * kTileBytes;
  __syncthreads();
  if (inverts) find_decays(p, front.rows[warp], tile, lane);
  barrier_wait(landed, 0);
  if (valid < kChunk) {  // rows of the next sequence, NaN maybe
    for (int at = 0; at < kPrepareBoxes; at += kBoxBytes) clear_rows(k + at, valid, threadIdx.x, 128);
    fence_async();
    __syncthreads();
  }
  float k_products[32], q_products[32];
  wgmma_fence();
  multiply_rows<E, kHeadSize / 16>(k_products, k, k, false);
  multiply_rows<E, kHeadSize / 16>(q_products, q, k, false);
  wgmma_commit();
  wgmma_wait<0>();
  settle(k_products), settle(q_products);
  __syncthreads();  // all boxes are read
  write_products(k_products, boxes, warp, lane);
  write_products(q_products, boxes + kProducts, warp, lane);
  __syncthreads();
  if (own >= group.heads || (!inverts && !helped)) return;
  auto* const scratch = reinterpret_cast<Scratch*>(boxes + 2 * kProducts);
  const Inverter<E> inverter{boxes, front.rows[own], scratch[own], tile, p.scale, lane};
  if (inverts) inverter.find_inverses();
  if (!inverts || !helped) inverter.find_scores();
}

}  // namespace
