// What needs no state, of every chunk and head: T, decays and, if asked for, P, to memory.
#pragma once
#include "invert.cuh"

namespace {

// A block has a chunk, and `heads` heads that share their q and k. The grid is (places of chunks, H / heads).
template <class E, bool WithP>
__global__ void __launch_bounds__(128, WithP ? 4 : 5) gdn_prepare_kernel(
    const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
    int heads) {
  let_next_begin();
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<Prepared<WithP>*>(memory);
  const int warp_before = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), lane = lane_here();
  const int n = find_sequence(p, blockIdx.x, first_chunk);
  const int c = static_cast<int>(blockIdx.x - first_chunk(p, n));
  if (c < 0 || c >= count_chunks(p, n)) return;  // less than 0: the bounds do not rise
  const int64_t first = bound(p, n) + static_cast<int64_t>(c) * kChunk;
  const int valid = static_cast<int>(min(int64_t{kChunk}, bound(p, n + 1) - first)), h = blockIdx.y * heads;
  const uint32_t landed = shared_address(&s.landed), k = shared_address(s.k), q = shared_address(s.q);
  if (threadIdx.x == 0) {
    barrier_init(landed, 1);
    barrier_init_done();
    barrier_expect(landed, (WithP ? 4 : 2) * kBoxBytes);
    load_boxes(k, &k_map, 0, h / p.k_group, static_cast<int>(first), landed);
    if (WithP) load_boxes(q, &q_map, 0, h / p.q_group, static_cast<int>(first), landed);
  }
  Gates gates{};
  if (warp_before < heads) gates = load_gates(p, first, valid, h + warp_before, lane);
  __syncthreads();
  barrier_wait(landed, 0);
  if (valid < kChunk) {  // rows of the next sequence, NaN maybe
    for (int half = 0; half < 2; ++half) {
      clear_rows(k + half * kBoxBytes, valid, threadIdx.x, 128);
      if (WithP) clear_rows(q + half * kBoxBytes, valid, threadIdx.x, 128);
    }
    fence_async();
    __syncthreads();
  }
  float k_products[32], q_products[32];
  multiply_boxes<E>(k_products, k, k);
  if constexpr (WithP) multiply_boxes<E>(q_products, q, k);
  if (warp_before < heads) find_decays(p, gates, s.decays[warp_before], s.beta[warp_before], lane);
  wgmma_wait<0>();
  settle(k_products);
  if constexpr (WithP) settle(q_products);
  __syncthreads();
  constexpr int kBytes = tile_bytes(WithP);
  auto& made = *reinterpret_cast<Tile*>(s.tile);
  // Blocks above the diagonal, which stay zero.
  store_shared(shared_address(made.T[warp_before % 2]) + (warp_before < 2 ? block_of(0, 1) : block_of(2, 3)) + 16 * lane,
               make_uint4(0, 0, 0, 0));
  if (WithP) clear_p(shared_address(made.P), warp_before, lane);
#pragma unroll 1
  for (int i = 0; i < heads; ++i) {
    const Decays& d = s.decays[i];
    // Anew, and again below: registers are short, what comes of these is not kept in them.
    const int warp = __shfl_sync(kAllLanes, anew(warp_before), 0), lane = lane_here(), row = 16 * warp + lane / 4;
    const float beta[2] = {s.beta[i][row], s.beta[i][row + 8]};
    write_a(k_products, d, weigh(d, beta, warp, lane), s.scratch, s.diagonal, warp, lane);
    if (threadIdx.x == 0) stored_read();  // the tile of the head before
    __syncthreads();
    write_t<E>(s.scratch, shared_address(made.T), beta, warp, lane_here());
    if constexpr (WithP) {
      const int lane = lane_here();
      write_p<E>(q_products, d, weigh(d, {p.scale, p.scale}, warp, lane), shared_address(made.P), warp, lane);
    }
    for (int at = 32 * warp + lane; at < static_cast<int>(sizeof(Decays) / 16); at += 128) {
      reinterpret_cast<uint4*>(&made.decays)[at] = reinterpret_cast<const uint4*>(&d)[at];
    }
    fence_async();  // TMA takes the tile
    __syncthreads();
    if (threadIdx.x == 0) {
      const int64_t place = static_cast<int64_t>(blockIdx.x) * p.H + blockIdx.y * heads + i;
      store_bytes(p.tiles + place * kBytes, shared_address(s.tile), kBytes);
    }
  }
  if (threadIdx.x == 0) stored_all();
}

}  // namespace
