// dq, dk, dv, dg and dbeta, of all chunks at once, once both walks are over. With U = diag(beta) r, dV = diag(beta) x, G = do:
//   dP = scale lower(G U^T)     dA = -strict_lower(dV U^T)     B = dA * Gamma, with the factor beta of A
//   dQ = scale diag(gamma) G S + (dP * Gamma) K
//   dK = (dP * Gamma)^T Q + (B + B^T) K - diag(gamma) dV S + diag(gamma_C / gamma) U dS
// A block takes chunks and key heads one after the other, and of each the heads that share it in turn: so dQ and dK are sums in one
// order, and are rounded once. Each of two warpgroups has half of the key channels, and all of one of the two products between tokens.
#pragma once
#include "beside.cuh"
#include "gates.cuh"
#include "maps.cuh"

namespace {

constexpr int kGradientThreads = 256;

// A chunk and a key head. Blocks take one after the other, and ask for the next one's parts before they have done with one.
struct Task {
  int64_t first;           // token
  int place, valid, k_head;  // valid 0: there are no more
  bool at_end;             // the chunk is a sequence's first or last: the reverse walk has found <S, dS>
  const float* exact_end;  // of the first head, where that has found the gradient of the decay to the end; or null
};

struct GradientShared {
  alignas(1024) unsigned char k[kHalves * kBoxBytes], q[kHalves * kBoxBytes];
  Part part[kHalves];
  unsigned char matrices[4][kBoxBytes];  // dP * Gamma, that transposed, B, that transposed
  Decays decays[2];                      // of heads in turns
  Task task[2];                          // in turns
  GateSums sums;
  alignas(8) uint64_t landed[kHalves], queries;
};
static_assert(sizeof(GradientShared) <= kMostShared);

// By a warp. Where this kernel has begun beside the reverse walk, the last chunk is the first that is ready.
__device__ __forceinline__ void find_task(const Problem& p, Task& task) {
  const int lane = lane_here();
  for (;;) {
    int taken = 0;
    if (lane == 0) taken = atomicAdd(p.queue, 1);
    taken = __shfl_sync(kAllLanes, taken, 0);
    const int nth = taken / p.k_heads, place = p.written != nullptr ? p.places - 1 - nth : nth;
    Chunk chunk{};
    if (nth < p.places) {
      chunk = find_chunk(p, place);
      if (chunk.valid == 0) continue;
    }
    if (lane == 0) {
      task.first = chunk.first, task.valid = chunk.valid, task.place = place, task.k_head = taken % p.k_heads;
      task.at_end = chunk.is_first || chunk.is_last;
      const bool exact = chunk.is_last && p.dht != nullptr;
      task.exact_end = exact ? p.of_end + at_place(p, chunk.n, task.k_head * p.k_group) * kWalkers * kChunk : nullptr;
    }
    __syncwarp();
    return;
  }
}

// What a block asks TMA for, and what it does with a task's rows.
struct GradientBlock {
  const Problem& p;
  GradientShared& s;
  const Maps& maps;

  // Where the reverse walk is still under way, for it to have left the task's chunk: all heads, which are walked side by side.
  __device__ __forceinline__ void wait_for(const Task& task) const {
    if (p.written == nullptr) return;
    for (int i = 0; i < p.k_group; ++i) wait_written(p.written + at_place(p, task.place, task.k_head * p.k_group + i), kHalves);
  }

  // Half of what the `turn`th head needs; by one thread.
  __device__ __forceinline__ void ask(const Task& task, int turn, int half, int parity) const {
    const int h = task.k_head * p.k_group + turn;
    const int64_t at = at_place(p, task.place, h);
    const uint32_t landed = shared_address(&s.landed[half]);
    Part& part = s.part[half];
    barrier_expect(landed, static_cast<int>(sizeof(Part)) + (half == 0 ? static_cast<int>(sizeof(Decays)) : 0));
    if (half == 0) load_bytes(shared_address(&s.decays[parity]), p.tiles + at * kTileBytes + kDecaysAt, sizeof(Decays), landed);
    load_boxes(shared_address(part.g), &maps.slice_of_g, half, h, static_cast<int>(task.first), landed);
    load_bytes(shared_address(part.x), p.writes + at * kValueBytes + half * kBoxBytes, kBoxBytes, landed);
    load_bytes(shared_address(part.r), p.errors + at * kValueBytes + half * kBoxBytes, kBoxBytes, landed);
    constexpr int kBytes = kHalves * kBoxBytes;
    load_bytes(shared_address(part.S), p.starts + at * kStateBytes + half * kBytes, kBytes, landed);
    load_bytes(shared_address(part.dS), p.ends + at * kStateBytes + half * kBytes, kBytes, landed);
  }

  __device__ __forceinline__ void ask_queries(const Task& task, int turn, bool with_keys) const {
    const uint32_t landed = shared_address(&s.queries);
    barrier_expect(landed, (with_keys ? 2 : 1) * kHalves * kBoxBytes);
    const int q_head = (task.k_head * p.k_group + turn) / p.q_group;
    load_boxes(shared_address(s.q), &maps.q, 0, q_head, static_cast<int>(task.first), landed);
    if (with_keys) load_boxes(shared_address(s.k), &maps.k, 0, task.k_head, static_cast<int>(task.first), landed);
  }

  // Rows of the next sequence, NaN maybe; by all threads.
  __device__ __forceinline__ void clear_tail(const Task& task, uint32_t boxes, int count) const {
    if (task.valid == kChunk) return;
    for (int i = 0; i < count; ++i) clear_rows(boxes + i * kBoxBytes, task.valid, threadIdx.x, kGradientThreads);
    fence_async();
    __syncthreads();
  }

  // 64 channels of the rows of a head, from channel 64 half on.
  template <class E>
  __device__ __forceinline__ void store(const Task& task, const float (&x)[32], void* to, int heads, int head, int half, int warp,
                                        int lane) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 16 * warp + lane / 4 + 8 * r;
      auto* const from = static_cast<uint16_t*>(to) + ((task.first + row) * heads + head) * kHeadSize + 64 * half + 2 * (lane % 4);
      if (row >= task.valid) continue;
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

// All of a task's heads, whose queries and keys have been asked for, as has been the first head; `phase` has the parities of
// barriers: bit 0 of heads, bit 1 of queries.
template <class E>
__device__ __forceinline__ void find_gradients(const GradientBlock& block, const Task& task, const Task& next, int& phase) {
  const Problem& p = block.p;
  GradientShared& s = block.s;
  const int of_block = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), wg = of_block / 4, warp = of_block % 4, lane = lane_here();
  float dQ[32] = {}, dK[32] = {};
#pragma unroll 1
  for (int turn = 0; turn < p.k_group; ++turn) {
    const int h = task.k_head * p.k_group + turn, parity = phase & 1;
    phase ^= 1;
    const Decays& d = s.decays[parity];
    if (of_block == 0) look_at_gates(p, s.sums, task.first, task.valid, h, lane);
    Products of;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      Part& part = s.part[half];
      barrier_wait(shared_address(&s.landed[half]), parity);
      block.clear_tail(task, shared_address(part.g), 1);
      multiply_part<E>(of, part, half > 0, wg);
      const float through = add_all(dot_states<E>(part, threadIdx.x, kGradientThreads));
      float& sum = s.sums.through[parity][of_block];
      if (lane == 0) sum = half == 0 ? through : sum + through;
      if (p.v_group == 1) write_values<E>(p, part, d, task.first, task.valid, h, half, threadIdx.x, kGradientThreads);
      wgmma_wait<0>();
      settle_products(of);
      __syncthreads();
      if (threadIdx.x == 0) {
        if (turn + 1 < p.k_group) {
          block.ask(task, turn + 1, half, parity ^ 1);
        } else if (next.valid > 0) {
          if (half == 0) block.wait_for(next);
          block.ask(next, 0, half, parity ^ 1);
        }
      }
    }
    // Found anew, and not kept over the products of states.
    const uint32_t all_k = anew(shared_address(s.k)), all_q = all_k + kHalves * kBoxBytes;
    const uint32_t k = all_k + wg * kBoxBytes, q = all_q + wg * kBoxBytes;
    add_states<E>(dQ, dK, of, d, p.scale, s.sums, q, k, wg, warp, lane);
    float products[32];
    wgmma_fence();
    multiply_rows<E, kHeadSize / 16>(products, wg == 0 ? all_q : all_k, all_k, false);
    wgmma_commit();
    wgmma_wait<0>();
    settle(products);
    const uint32_t scores = anew(shared_address(s.matrices)), keys = scores + 2 * kBoxBytes;
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
      write_gates(p, s.sums, d, parity, task.at_end, task.exact_end, at_place(p, task.place, h), task.first, task.valid, h, lane);
    }
    wgmma_wait<0>();
    settle(dQ), settle(dK);
    if ((h + 1) % p.q_group != 0) continue;
    block.store<E>(task, dQ, p.dq, p.q_heads, h / p.q_group, wg, warp, here);
#pragma unroll
    for (int i = 0; i < 32; ++i) dQ[i] = 0.f;
    if (turn + 1 == p.k_group) break;
    __syncthreads();  // this head's queries are read
    if (threadIdx.x == 0) block.ask_queries(task, turn + 1, false);
    barrier_wait(shared_address(&s.queries), phase >> 1 & 1);
    phase ^= 2;
    block.clear_tail(task, all_q, kHalves);
  }
  block.store<E>(task, dK, p.dk, p.k_heads, task.k_head, wg, warp, anew(lane));
}

// So many blocks as there is room for, or fewer.
template <class E>
__global__ void __launch_bounds__(kGradientThreads, 1) gdn_gradients_kernel(const __grid_constant__ Problem p,
                                                                            const __grid_constant__ Maps maps) {
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<GradientShared*>(memory);
  const int64_t behind = bound(p, p.N);
  if (behind < p.tokens) {
    for (int at = blockIdx.x; at < p.places * p.k_heads; at += gridDim.x) {
      const int64_t first = static_cast<int64_t>(at / p.k_heads) * kChunk;
      if (first < p.tokens && first + kChunk > behind) write_zeros(p, first, behind, at % p.k_heads);
    }
  }
  const GradientBlock block{p, s, maps};
  if (threadIdx.x < 32) find_task(p, s.task[0]);
  if (threadIdx.x == 0) {
    for (auto& landed : s.landed) barrier_init(shared_address(&landed), 1);
    barrier_init(shared_address(&s.queries), 1);
    barrier_init_done();
    if (s.task[0].valid > 0) {
      block.ask_queries(s.task[0], 0, true);
      block.wait_for(s.task[0]);
      block.ask(s.task[0], 0, 0, 0), block.ask(s.task[0], 0, 1, 0);
    }
  }
  __syncthreads();
  int phase = 0, nth = 0;
#pragma unroll 1
  while (s.task[nth].valid > 0) {
    const Task& task = s.task[nth];
    Task& next = s.task[nth ^ 1];
    barrier_wait(shared_address(&s.queries), phase >> 1 & 1);
    phase ^= 2, nth ^= 1;
    block.clear_tail(task, shared_address(s.k), 2 * kHalves);
    if (threadIdx.x < 32) find_task(p, next);
    find_gradients<E>(block, task, next, phase);
    __syncthreads();  // its queries and keys are read
    if (threadIdx.x == 0 && next.valid > 0) block.ask_queries(next, 0, true);
  }
  // Whoever waits for this kernel is to wait for that before it, too: one block does.
  if (p.written != nullptr && blockIdx.x == 0) wait_for_last();
}

}  // namespace
