// What needs no state, of every chunk and head: inverses, P and decays, to memory.
#pragma once
#include "invert.cuh"
#include "products.cuh"

namespace {

constexpr int kHeads = kMostHeads;  // of a block that prepares, at most: a warp each

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

// A tile once more, for the other slice; by the warp that has found it.
__device__ __forceinline__ void copy_tile(unsigned char* tile, int further, int bytes, int lane) {
  const auto* const from = reinterpret_cast<const uint4*>(tile);
  auto* const to = reinterpret_cast<uint4*>(tile + further);
#pragma unroll 8
  for (int i = lane; i < bytes / 16; i += 32) to[i] = from[i];
}

// A chunk, and `units * heads` heads from unit `nth` of so many on; by a warpgroup, which has `memory` alone, with a barrier that has been
// prepared. `meet`: of the warpgroup.
template <class E, class Meet>
__device__ __forceinline__ void prepare_chunk(const Problem& p, const CUtensorMap* q_map, const CUtensorMap* k_map, const Group& group,
                                              const Chunk& chunk, int64_t place, int nth, unsigned char* memory, int parity, Meet meet) {
  auto& front = *reinterpret_cast<Front*>(memory);
  unsigned char* const boxes = memory + kFront;
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0), lane = lane_here(), thread = threadIdx.x % 128;
  const int heads = group.units * group.heads, h = nth * heads;
  const bool busy = warp < heads;
  const uint32_t landed = shared_address(&front.landed);
  const Gates gates = ask_gates(p, chunk.first, chunk.valid, h, heads);  // ahead of boxes: decays are found while those are on their way
  if (thread == 0) {
    barrier_expect(landed, group.units * kUnitBytes);
    for (int u = 0; u < group.units; ++u) {
      const uint32_t k = shared_address(boxes) + u * kUnitBytes, q = k + kHalves * kBoxBytes;
      const int unit = nth * group.units + u, token = static_cast<int>(chunk.first);
      load_boxes(k, k_map, 0, unit / group.of_key_head, token, landed);
      load_boxes(q, q_map, 0, unit / group.of_query_head, token, landed);
    }
  }
  keep_gates(gates, heads, front.rows);
  const int64_t at = at_place(p, place, h + warp);
  meet();
  if (busy) find_decays(p, front.rows[warp], at, lane);
  barrier_wait(landed, parity);
  if (chunk.valid < kChunk) {  // rows of the next sequence, NaN maybe
    for (int at = 0; at < group.units * kUnitBytes; at += kBoxBytes) clear_rows(shared_address(boxes) + at, chunk.valid, thread, 128);
    fence_async();
    meet();
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
    meet();  // all of this unit's boxes are read, and those of the next lie behind what is written here
    unsigned char* const products = boxes + u * 2 * kProducts;
    write_products<false>(k_products, products, warp, lane);
    write_products<true>(q_products, products + kProducts, warp, lane);
  }
  meet();
  if (!busy) return;
  auto* const scratch = reinterpret_cast<Scratch*>(boxes + group.units * 2 * kProducts);
  const unsigned char* const products = boxes + (warp < group.heads ? 0 : 2 * kProducts);
  unsigned char *const e_tile = tile_at(p.forward_tiles, at, 0), *const m_tile = tile_at(p.reverse_tiles, at, 0);
  Inverter<E>{products, front.rows[warp], scratch[warp], e_tile, m_tile, p.scale, lane}.find();
  __syncwarp();
  if (p.forward_tiles.second > 0) copy_tile(e_tile, p.forward_tiles.second, kForwardBytes, lane);
  if (p.reverse_tiles.second > 0) copy_tile(m_tile, p.reverse_tiles.second, kReverseBytes, lane);
  if (p.prepared == nullptr) return;
  fence_async_memory();  // it is read by copies, as soon as it is there
  __syncwarp();
  if (lane == 0) store_released(p.prepared + at, 1);
}

constexpr int kPreparing = 3;  // blocks of a multiprocessor

// A block has a chunk, or finds the order of sequences. The grid is (places of chunks and one more, H / (units * heads)).
template <class E>
__global__ void __launch_bounds__(128, kPreparing) gdn_prepare_kernel(
    const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ Group group) {
  DYNAMIC_SHARED(memory);
  let_next_begin();
  if (blockIdx.x == p.places) {
    empty_queue(p, blockIdx.y, gridDim.y);
    if (p.order != nullptr && blockIdx.y == 0) order_sequences(p, reinterpret_cast<int*>(memory));
    return;
  }
  const Chunk chunk = find_chunk(p, blockIdx.x);
  if (chunk.valid == 0) return;
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&reinterpret_cast<Front*>(memory)->landed), 1);
    barrier_init_done();
  }
  if (kEveryLane) __syncthreads();
  prepare_chunk<E>(p, &q_map, &k_map, group, chunk, blockIdx.x, blockIdx.y, memory, 0, [] { __syncthreads(); });
}

}  // namespace
