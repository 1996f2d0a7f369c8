// What needs no state, of every chunk and head: T, decays and, if asked for, P, to memory.
#pragma once
#include "choose.cuh"
#include "invert.cuh"
#include "queue.cuh"

namespace {

constexpr int kHeads = 4;  // of a block that prepares: a warp each

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
constexpr int kFront = 4096;
static_assert(sizeof(Front) <= kFront);
template <int D>
constexpr int boxes_of_unit(bool with_p) {
  return (with_p ? 2 : 1) * kHalves<D> * kBoxBytes;
}
constexpr int products_of_unit(bool with_p) { return (with_p ? 2 : 1) * kProducts; }
// From a unit's boxes to the next one's, which what comes of the first is not to reach; whole boxes.
template <int D>
constexpr int unit_bytes(bool with_p) {
  const int products = (products_of_unit(with_p) + kBoxBytes - 1) / kBoxBytes * kBoxBytes;
  return boxes_of_unit<D>(with_p) > products ? boxes_of_unit<D>(with_p) : products;
}
template <int D>
constexpr int prepare_bytes(int units, bool with_p) {
  const int boxes = units * unit_bytes<D>(with_p);
  const int work = units * products_of_unit(with_p) + kHeads * static_cast<int>(sizeof(Scratch));
  return kFront + (boxes > work ? boxes : work);
}

// A block has a chunk. The grid is (places of chunks, H / (units * heads)); where blocks stay the first one finds their order.
template <class E, int D, bool WithP>
__global__ void __launch_bounds__(128, WithP ? 3 : 5) gdn_prepare_kernel(
    const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ Group group) {
  let_next_begin();
  DYNAMIC_SHARED(memory);
  auto& front = *reinterpret_cast<Front*>(memory);
  unsigned char* const boxes = memory + kFront;
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), lane = lane_here();
  if (p.stays != 0 && blockIdx.x == 0) {
    if (blockIdx.y == 0) order_sequences(p, reinterpret_cast<int*>(memory));
    return;
  }
  if constexpr (!WithP && D == kStaySize) {
    if (p.one_up_to > 0 && one_has_it(p)) return;  // but for the order, which that one takes
  }
  const int at = blockIdx.x - (p.stays != 0);  // of the chunk
  const auto [first, valid] = find_chunk(p, at);
  if (valid == 0) return;
  const int heads = group.units * group.heads, h = blockIdx.y * heads;
  const bool busy = warp < heads;
  const uint32_t landed = shared_address(&front.landed);
  const Gates gates = load_gates(p, first, valid, h, heads);
  if (threadIdx.x == 0) {
    barrier_init(landed, 1);
    barrier_init_done();
    barrier_expect(landed, group.units * boxes_of_unit<D>(WithP));
    const auto head_of = [](int unit, int units) { return units == 1 ? unit : unit / units; };
    for (int u = 0; u < group.units; ++u) {
      const uint32_t k = shared_address(boxes) + u * unit_bytes<D>(WithP);
      const int unit = blockIdx.y * group.units + u, token = static_cast<int>(first);
      load_boxes(k, &k_map, 0, head_of(unit, group.of_key_head), token, landed);
      if (WithP) load_boxes(k + kHalves<D> * kBoxBytes, &q_map, 0, head_of(unit, group.of_query_head), token, landed);
    }
  }
  write_gates(p, gates, heads, front.rows);
  unsigned char* const tile = p.tiles + (static_cast<int64_t>(at) * p.H + h + warp) * tile_bytes(WithP);
  __syncthreads();
  if (busy) {
    auto* const logs = WithP ? nullptr : reinterpret_cast<Logs*>(tile + kLogsAt);
    find_decays(p, front.rows[warp], *reinterpret_cast<Decays*>(tile + kDecaysAt), logs, lane);
  }
  barrier_wait(landed, 0);
  if (valid < kChunk) {  // rows of the next sequence, NaN maybe
    for (int at = 0; at < group.units * unit_bytes<D>(WithP); at += kBoxBytes) {
      clear_rows(shared_address(boxes) + at, valid, threadIdx.x, 128);
    }
    fence_async();
    __syncthreads();
  }
#pragma unroll 1
  for (int u = 0; u < group.units; ++u) {
    const uint32_t k = shared_address(boxes) + u * unit_bytes<D>(WithP);
    float k_products[32], q_products[32];
    multiply_boxes<E, D>(k_products, k, k);
    if constexpr (WithP) multiply_boxes<E, D>(q_products, k + kHalves<D> * kBoxBytes, k);
    wgmma_wait<0>();
    settle(k_products);
    if constexpr (WithP) settle(q_products);
    __syncthreads();  // all of this unit's boxes are read, and those of the next lie behind what is written here
    unsigned char* const products = boxes + u * products_of_unit(WithP);
    write_products(k_products, products, warp, lane);
    if constexpr (WithP) write_products(q_products, products + kProducts, warp, lane);
  }
  __syncthreads();
  if (!busy) return;
  auto* const scratch = reinterpret_cast<Scratch*>(boxes + group.units * products_of_unit(WithP));
  const int unit = warp < group.heads ? 0 : 1;
  Inverter<E, D, WithP>{boxes + unit * products_of_unit(WithP), front.rows[warp], scratch[warp], tile, p.scale, lane}.find();
}

}  // namespace
