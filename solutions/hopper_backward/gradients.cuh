// dq, dk, dv, dg and dbeta, of all chunks at once, once both walks are over. With U = diag(beta) r, dV = diag(beta) x, G = do:
//   dP = scale lower(G U^T)     dA = -strict_lower(dV U^T)     B = dA * Gamma, with the factor beta of A
//   dQ = scale diag(gamma) G S + (dP * Gamma) K
//   dK = (dP * Gamma)^T Q + (B + B^T) K - diag(gamma) dV S + diag(gamma_C / gamma) U dS
// A block has a chunk and a key head, and takes the heads that share it in turn: so dQ and dK are sums in one order, and are
// rounded once. Each of two warpgroups has half of the key channels, and all of one of the two products between tokens.
#pragma once
#include "beside.cuh"
#include "gates.cuh"
#include "maps.cuh"

namespace {

constexpr int kGradientThreads = 256;

struct GradientShared {
  alignas(1024) unsigned char k[kHalves * kBoxBytes], q[kHalves * kBoxBytes];
  Part part[kHalves];
  unsigned char matrices[4][kBoxBytes];  // dP * Gamma, that transposed, B, that transposed
  Decays decays[2];                      // of heads in turns
  int64_t first;                         // token of the chunk
  int valid;                             // tokens
  GateSums sums;
  alignas(8) uint64_t landed[kHalves], queries;
};
static_assert(sizeof(GradientShared) <= kMostShared);

// The place of a block's chunk, found anew and not kept. Where this kernel has begun beside the reverse walk, the last chunk is
// the first that is ready.
__device__ __forceinline__ int place_of_block(const Problem& p) {
  return p.written != nullptr ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
}

// A chunk of a block, and what it asks TMA for.
struct GradientBlock {
  const Problem& p;
  GradientShared& s;
  const Maps& maps;

  __device__ __forceinline__ static int k_head() { return blockIdx.y; }
  // Half of what head h, the `turn`th, needs; by one thread.
  __device__ __forceinline__ void ask(int turn, int half) const {
    const int h = k_head() * p.k_group + turn;
    const int64_t at = at_place(p, place_of_block(p), h);
    const uint32_t landed = shared_address(&s.landed[half]);
    Part& part = s.part[half];
    barrier_expect(landed, static_cast<int>(sizeof(Part)) + (half == 0 ? static_cast<int>(sizeof(Decays)) : 0));
    if (half == 0) load_bytes(shared_address(&s.decays[turn % 2]), p.tiles + at * kTileBytes + kDecaysAt, sizeof(Decays), landed);
    load_boxes(shared_address(part.g), &maps.slice_of_g, half, h, static_cast<int>(s.first), landed);
    load_bytes(shared_address(part.x), p.writes + at * kValueBytes + half * kBoxBytes, kBoxBytes, landed);
    load_bytes(shared_address(part.r), p.errors + at * kValueBytes + half * kBoxBytes, kBoxBytes, landed);
    constexpr int kBytes = kHalves * kBoxBytes;
    load_bytes(shared_address(part.S), p.starts + at * kStateBytes + half * kBytes, kBytes, landed);
    load_bytes(shared_address(part.dS), p.ends + at * kStateBytes + half * kBytes, kBytes, landed);
  }

  __device__ __forceinline__ void ask_queries(int q_head, bool with_keys) const {
    const uint32_t landed = shared_address(&s.queries);
    barrier_expect(landed, (with_keys ? 2 : 1) * kHalves * kBoxBytes);
    load_boxes(shared_address(s.q), &maps.q, 0, q_head, static_cast<int>(s.first), landed);
    if (with_keys) load_boxes(shared_address(s.k), &maps.k, 0, k_head(), static_cast<int>(s.first), landed);
  }

  // Rows of the next sequence, NaN maybe; by all threads.
  __device__ __forceinline__ void clear_tail(uint32_t boxes, int count) const {
    if (s.valid == kChunk) return;
    for (int i = 0; i < count; ++i) clear_rows(boxes + i * kBoxBytes, s.valid, threadIdx.x, kGradientThreads);
    fence_async();
    __syncthreads();
  }

  // 64 channels of the rows of a head, from channel 64 half on.
  template <class E>
  __device__ __forceinline__ void store(const float (&x)[32], void* to, int heads, int head, int half, int warp, int lane) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 16 * warp + lane / 4 + 8 * r;
      auto* const from = static_cast<uint16_t*>(to) + ((s.first + row) * heads + head) * kHeadSize + 64 * half + 2 * (lane % 4);
      if (row >= s.valid) continue;
#pragma unroll
      for (int n = 0; n < 8; ++n) *reinterpret_cast<uint32_t*>(from + 8 * n) = pack<E>(x[4 * n + 2 * r], x[4 * n + 2 * r + 1]);
    }
  }
};

// Rows behind the last sequence belong to none: their gradients are zero.
__device__ __forceinline__ void write_zeros(const Problem& p, int64_t first, int64_t behind, int k_head) {
  const int from = static_cast<int>(max(int64_t{0}, behind - first)), to = static_cast<int>(min(int64_t{kChunk}, p.tokens - first));
  const auto clear = [&](void* x, int heads) {  // those heads of x that this block has
    const int count = heads / p.k_heads;
    for (int at = 16 * from * count + threadIdx.x; at < 16 * to * count; at += kGradientThreads) {
      const int64_t row = (first + at / (16 * count)) * heads + k_head * count + at / 16 % count;
      reinterpret_cast<uint4*>(x)[row * 16 + at % 16] = make_uint4(0, 0, 0, 0);
    }
  };
  clear(p.dq, p.q_heads), clear(p.dk, p.k_heads), clear(p.dv, p.v_heads);
  for (int at = from * p.k_group + threadIdx.x; at < to * p.k_group; at += kGradientThreads) {
    const int64_t i = (first + at / p.k_group) * p.H + k_head * p.k_group + at % p.k_group;
    p.dg[i] = 0.f, p.dbeta[i] = 0.f;
  }
}

// The grid is (places of chunks, key heads).
template <class E>
__global__ void __launch_bounds__(kGradientThreads, 1) gdn_gradients_kernel(const __grid_constant__ Problem p,
                                                                            const __grid_constant__ Maps maps) {
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<GradientShared*>(memory);
  // Whoever waits for this kernel is to wait for that before it, too: one block does.
  if (p.written != nullptr && blockIdx.x + 1 == gridDim.x && blockIdx.y == 0) wait_for_last();
  const int64_t behind = bound(p, p.N), here = int64_t{place_of_block(p)} * kChunk;
  if (here < p.tokens && here + kChunk > behind) write_zeros(p, here, behind, blockIdx.y);
  const auto [first, valid, n, is_first, is_last] = find_chunk(p, place_of_block(p));
  if (valid == 0) return;
  const GradientBlock block{p, s, maps};
  const int of_block = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), wg = of_block / 4, warp = of_block % 4, lane = lane_here();
  const int first_head = block.k_head() * p.k_group;
  if (threadIdx.x == 0) {
    for (auto& landed : s.landed) barrier_init(shared_address(&landed), 1);
    barrier_init(shared_address(&s.queries), 1);
    s.first = first, s.valid = valid;
    s.sums.at_end = is_first || is_last;
    s.sums.exact_end = is_last && p.dht != nullptr ? p.of_end + at_place(p, n, first_head) * kWalkers * kChunk : nullptr;
    barrier_init_done();
    block.ask_queries(first_head / p.q_group, true);
    if (p.written != nullptr) {  // all heads: they are walked side by side
      for (int i = 0; i < p.k_group; ++i) wait_written(p.written + at_place(p, place_of_block(p), first_head + i), kHalves);
    }
    block.ask(0, 0), block.ask(0, 1);
  }
  __syncthreads();
  barrier_wait(shared_address(&s.queries), 0);
  block.clear_tail(shared_address(s.k), 2 * kHalves);
  const uint32_t all_k = shared_address(s.k), all_q = shared_address(s.q), k = all_k + wg * kBoxBytes, q = all_q + wg * kBoxBytes;
  const uint32_t scores = shared_address(s.matrices), keys = scores + 2 * kBoxBytes;
  float dQ[32] = {}, dK[32] = {};
#pragma unroll 1
  for (int turn = 0; turn < p.k_group; ++turn) {
    const int h = block.k_head() * p.k_group + turn;
    const Decays& d = s.decays[turn % 2];
    if (of_block == 0) look_at_gates(p, s.sums, s.first, s.valid, h, lane);
    Products of;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      Part& part = s.part[half];
      barrier_wait(shared_address(&s.landed[half]), turn & 1);
      block.clear_tail(shared_address(part.g), 1);
      multiply_part<E>(of, part, half > 0, wg);
      const float through = add_all(dot_states<E>(part, threadIdx.x, kGradientThreads));
      float& sum = s.sums.through[turn % 2][of_block];
      if (lane == 0) sum = half == 0 ? through : sum + through;
      if (p.v_group == 1) write_values<E>(p, part, d, s.first, s.valid, h, half, threadIdx.x, kGradientThreads);
      wgmma_wait<0>();
      settle_products(of);
      __syncthreads();
      if (threadIdx.x == 0 && turn + 1 < p.k_group) block.ask(turn + 1, half);
    }
    add_states<E>(dQ, dK, of, d, p.scale, s.sums, q, k, wg, warp, lane);
    float products[32];
    wgmma_fence();
    multiply_rows<E, kHeadSize / 16>(products, wg == 0 ? all_q : all_k, all_k, false);
    wgmma_commit();
    wgmma_wait<0>();
    settle(products);
    const int here = anew(lane);  // so that no places found from it are kept over products
    if (wg == 0) {
      find_between<E, true>(of.between, products, d, p.scale, s.sums, scores, scores + kBoxBytes, wg, warp, here);
    } else {
      find_between<E, false>(of.between, products, d, p.scale, s.sums, keys, keys + kBoxBytes, wg, warp, here);
    }
    fence_async();
    __syncthreads();
    wgmma_fence();
    multiply_boxes<E>(dQ, scores, k, true);
    multiply_boxes<E>(dK, scores + kBoxBytes, q, true);
    multiply_boxes<E>(dK, keys, k, true);
    multiply_boxes<E>(dK, keys + kBoxBytes, k, true);
    wgmma_commit();
    if (of_block == 0) {
      write_gates(p, s.sums, d, at_place(p, place_of_block(p), h), s.first, s.valid, h, lane);
    }
    wgmma_wait<0>();
    settle(dQ), settle(dK);
    if ((h + 1) % p.q_group != 0) continue;
    block.store<E>(dQ, p.dq, p.q_heads, h / p.q_group, wg, warp, lane);
#pragma unroll
    for (int i = 0; i < 32; ++i) dQ[i] = 0.f;
    if (turn + 1 == p.k_group) break;
    __syncthreads();  // this head's queries are read
    if (threadIdx.x == 0) block.ask_queries((h + 1) / p.q_group, false);
    barrier_wait(shared_address(&s.queries), (turn + 1) / p.q_group & 1);
    block.clear_tail(all_q, kHalves);
  }
  block.store<E>(dK, p.dk, p.k_heads, block.k_head(), wg, warp, lane);
}

}  // namespace
