// What needs no state, of every chunk and head: T, P = scale (Gamma * Q K^T) and decays, to memory.
#pragma once
#include "invert.cuh"

namespace {

// P of a chunk, from `products` = Q K^T; by four warps.
template <class E>
__device__ __forceinline__ void write_p(const float (&products)[32], const Decays& d, const Weights& w, uint32_t to, int warp,
                                        int lane) {
  const auto write = [&](const float (&x)[8], int m) {
    const uint32_t words[4] = {pack<E>(x[0], x[1]), pack<E>(x[2], x[3]), pack<E>(x[4], x[5]), pack<E>(x[6], x[7])};
    stmatrix(to + block_of_square(warp, m) + turned(lane), words);
  };
  float x[8];
  weigh_diagonal(w, products, warp, x);
  write(x, warp);
#pragma unroll
  for (int m = 0; m < 3; ++m) {
    if (m >= warp) break;
    weigh_left(d, w, products, m, lane, x);
    write(x, m);
  }
}

// A block has a chunk, and `heads` heads that share their q and k. The grid is (places of chunks, H / heads).
template <class E>
__global__ void __launch_bounds__(128, 4) gdn_prepare_kernel(const __grid_constant__ Problem p,
                                                             const __grid_constant__ CUtensorMap q_map,
                                                             const __grid_constant__ CUtensorMap k_map, int heads) {
  let_next_begin();
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<Prepared*>(memory);
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), lane = lane_here();
  const int n = find_sequence(p, blockIdx.x, first_chunk);
  const int c = static_cast<int>(blockIdx.x - first_chunk(p, n));
  if (c >= count_chunks(p, n)) return;
  const int64_t first = bound(p, n) + static_cast<int64_t>(c) * kChunk;
  const int valid = static_cast<int>(min(int64_t{kChunk}, bound(p, n + 1) - first)), h = blockIdx.y * heads;
  const uint32_t landed = shared_address(&s.landed), k = shared_address(s.k), q = shared_address(s.q);
  if (threadIdx.x == 0) {
    barrier_init(landed, 1);
    barrier_init_done();
    barrier_expect(landed, 4 * kBoxBytes);
    load_boxes(k, &k_map, 0, h / p.k_group, static_cast<int>(first), landed);
    load_boxes(q, &q_map, 0, h / p.q_group, static_cast<int>(first), landed);
  }
  Gates gates{};
  if (warp < heads) gates = load_gates(p, first, valid, h + warp, lane);
  __syncthreads();
  barrier_wait(landed, 0);
  if (valid < kChunk) {  // rows of the next sequence, NaN maybe
    for (int at = 128 * valid + 16 * threadIdx.x; at < kBoxBytes; at += 16 * 128) {
      const uint4 zeros = make_uint4(0, 0, 0, 0);
      store_shared(k + at, zeros), store_shared(k + kBoxBytes + at, zeros);
      store_shared(q + at, zeros), store_shared(q + kBoxBytes + at, zeros);
    }
    fence_async();
    __syncthreads();
  }
  float k_products[32], q_products[32];
  multiply_boxes<E>(k_products, k, k);
  multiply_boxes<E>(q_products, q, k);
  if (warp < heads) find_decays(p, gates, s.decays[warp], lane);
  wgmma_wait<0>();
  settle(k_products);
  settle(q_products);
  __syncthreads();
  for (int i = warp; i < 10; i += 4) {  // blocks above the diagonal, which stay zero
    const int r = i < 3 ? 0 : i < 5 ? 1 : 2, column = i < 3 ? i + 1 : i < 5 ? i - 1 : 3;  // of P, the first six
    const uint32_t at = i < 6 ? shared_address(s.tile.P) + block_of_square(r, column)
                              : shared_address(s.tile.T[i % 2]) + (i < 8 ? block_of(0, 1) : block_of(2, 3));
    store_shared(at + 16 * lane, make_uint4(0, 0, 0, 0));
  }
  Tile* tile = reinterpret_cast<Tile*>(p.tiles) + static_cast<int64_t>(blockIdx.x) * p.H + h;
#pragma unroll 1
  for (int i = 0; i < heads; ++i) {
    const Decays& d = s.decays[i];
    const int lane = lane_here(), row = 16 * warp + lane / 4;  // anew: registers are short
    const float beta[2] = {d.beta[row], d.beta[row + 8]};
    if (threadIdx.x == 0) stored_read();  // the tile of the head before: write_a has all threads meet before T is written
    write_a(k_products, d, weigh(d, beta, warp, lane), s.scratch, s.diagonal, warp, lane);
    const auto find_p = [&] {
      write_p<E>(q_products, d, weigh(d, {p.scale, p.scale}, warp, lane), shared_address(s.tile.P), warp, lane);
    };
    // P while the others invert, by those who have less of T; by the others at last.
    if (warp >= 2) find_p();
    __syncthreads();
    write_t<E>(s.scratch, shared_address(s.tile.T), beta, warp, lane);
    if (warp < 2) find_p();
    if (threadIdx.x < kChunk) {
      s.tile.to_end[threadIdx.x] = d.to_end[threadIdx.x], s.tile.from_start[threadIdx.x] = d.from_start[threadIdx.x];
    }
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) store_bytes(tile + i, shared_address(&s.tile), static_cast<int>(sizeof(Tile)));
  }
  if (threadIdx.x == 0) stored_all();
}

}  // namespace
