// dq, dk, dg and dbeta, of all chunks at once, once both walks are over. With U = diag(beta) r, dV as the reverse walk has left it,
// which has the factor beta, and G = do:
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

// A chunk and a key head.
struct Task {
  int64_t first;           // token
  int place, valid, k_head;  // valid 0: there are no more
  bool at_end;             // the chunk is a sequence's first or last: the reverse walk has found <S, dS>
  const float* exact_end;  // of the first head, where that has found the gradient of the decay to the end; or null
};

constexpr int kParts = 3;  // places for halves of heads: one is multiplied, the others are on their way
constexpr int kTasks = 3;  // that a block has something of at a time

// What comes next of all that a block asks for: half of a head, where that goes, and where its head's decays do.
struct Asked {
  int task, turn, half, part, decays;
  unsigned taken;  // from where on the next task is looked for
};

struct GradientShared {
  alignas(1024) unsigned char k[kHalves * kBoxBytes], q[kHalves * kBoxBytes];
  Part part[kParts];
  unsigned char matrices[2][kBoxBytes];  // dP * Gamma, B
  Decays decays[kHeadsAhead];
  Task task[kTasks];
  Asked asked;
  GateSums sums;
  alignas(8) uint64_t landed[kParts], queries;
};
static_assert(sizeof(GradientShared) <= kMostShared);

__device__ __forceinline__ int next_of(int i, int count) { return i == count - 1 ? 0 : i + 1; }

// The place of the nth chunk: of sequences as long as one another first those that the reverse walk has left last, which the cache
// still has.
__device__ __forceinline__ int nth_place(const Problem& p, int nth) {
  const int of_each = p.places / p.N;
  return nth < of_each * p.N ? nth % p.N * of_each + nth / p.N : nth;
}

// The block's next one, `taken` on; by a warp.
__device__ __forceinline__ void find_task(const Problem& p, Task& task, unsigned& taken) {
  const int lane = lane_here();
  for (unsigned next = taken;; next += gridDim.x) {
    const int nth = static_cast<int>(next / p.k_heads), place = nth_place(p, nth);
    Chunk chunk{};
    if (nth < p.places) {
      chunk = find_chunk(p, place);
      if (chunk.valid == 0) continue;
    }
    __syncwarp();  // all lanes have read `taken`
    if (lane == 0) {
      task.first = chunk.first, task.valid = chunk.valid, task.place = place, task.k_head = static_cast<int>(next % p.k_heads);
      task.at_end = chunk.is_first || chunk.is_last;
      const bool exact = chunk.is_last && p.dht != nullptr;
      task.exact_end = exact ? p.of_end + at_place(p, chunk.n, task.k_head * p.k_group) * kWalkers * kChunk : nullptr;
      taken = next + gridDim.x;
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

  // Half of what a head needs; by one thread.
  __device__ __forceinline__ void ask(const Task& task, const Asked& what) const {
    const int h = task.k_head * p.k_group + what.turn, half = what.half;
    const int64_t at = at_place(p, task.place, h);
    const uint32_t landed = shared_address(&s.landed[what.part]);
    Part& part = s.part[what.part];
    barrier_expect(landed, static_cast<int>(sizeof(Part)) + (half == 0 ? static_cast<int>(sizeof(Decays)) : 0));
    if (half == 0) load_bytes(shared_address(&s.decays[what.decays]), p.tiles + at * kTileBytes + kDecaysAt, sizeof(Decays), landed);
    load_boxes(shared_address(part.g), &maps.slice_of_g, half, h, static_cast<int>(task.first), landed);
    load_boxes(shared_address(part.dv), &maps.slice_of_dv, half, h, static_cast<int>(task.first), landed);
    load_bytes(shared_address(part.r), p.errors + at * kValueBytes + half * kBoxBytes, kBoxBytes, landed);
    constexpr int kBytes = kHalves * kBoxBytes;
    load_bytes(shared_address(part.S), p.starts + at * kStateBytes + half * kBytes, kBytes, landed);
    load_bytes(shared_address(part.dS), p.ends + at * kStateBytes + half * kBytes, kBytes, landed);
  }

  // The half of a head behind all that have been asked for, if there is one; by the first warp.
  __device__ __forceinline__ void ask_next() const {
    const Asked what = s.asked;
    const Task& task = s.task[what.task];
    if (task.valid == 0) return;
    const bool head_ends = what.half == kHalves - 1, task_ends = head_ends && what.turn + 1 == p.k_group;
    __syncwarp();
    if (lane_here() == 0) {
      ask(task, what);
      s.asked.half = head_ends ? 0 : what.half + 1, s.asked.part = next_of(what.part, kParts);
      if (head_ends) s.asked.turn = task_ends ? 0 : what.turn + 1, s.asked.decays = next_of(what.decays, kHeadsAhead);
      if (task_ends) s.asked.task = next_of(what.task, kTasks);
    }
    __syncwarp();
    if (task_ends) find_task(p, s.task[next_of(what.task, kTasks)], s.asked.taken);
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

// Where a block is: the places of the next half and the next head, and parities of barriers: bits by part, and that of queries.
struct Turn {
  int part, decays, parities;
};
constexpr int kOfQueries = 1 << kParts;

// All of a task's heads, whose queries and keys have been asked for.
template <class E>
__device__ __forceinline__ void find_gradients(const GradientBlock& block, const Task& task, Turn& at) {
  const Problem& p = block.p;
  GradientShared& s = block.s;
  const int of_block = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), wg = of_block / 4, warp = of_block % 4, lane = lane_here();
  float dQ[32] = {}, dK[32] = {};
  bool asked = true;  // for queries
#pragma unroll 1
  for (int turn = 0; turn < p.k_group; ++turn) {
    const int h = task.k_head * p.k_group + turn, nth = at.decays;
    at.decays = next_of(nth, kHeadsAhead);
    const Decays& d = s.decays[nth];
    if (of_block == 0) look_at_gates(p, s.sums, task.first, task.valid, h, lane);
    if (of_block == 7) write_betas(p, at_place(p, task.place, h), task.first, task.valid, h, lane);
    Products of;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      Part& part = s.part[at.part];
      barrier_wait(shared_address(&s.landed[at.part]), at.parities >> at.part & 1);
      at.parities ^= 1 << at.part, at.part = next_of(at.part, kParts);
      block.clear_tail(task, shared_address(part.g), 2);
      multiply_part<E>(of, part, half > 0, wg);
      const float through = add_all(dot_states<E>(part, of_block, lane));
      float& sum = s.sums.through[nth][of_block];
      if (lane == 0) sum = half == 0 ? through : sum + through;
      wgmma_wait<0>();
      settle_products(of);
      __syncthreads();
      if (of_block == 0) block.ask_next();
    }
    // Found anew, and not kept over the products of states.
    const uint32_t all_k = anew(shared_address(s.k)), all_q = all_k + kHalves * kBoxBytes;
    const uint32_t k = all_k + wg * kBoxBytes, q = all_q + wg * kBoxBytes;
    if (asked) {
      barrier_wait(shared_address(&s.queries), at.parities / kOfQueries);
      at.parities ^= kOfQueries;
      block.clear_tail(task, turn == 0 ? all_k : all_q, turn == 0 ? 2 * kHalves : kHalves);
    }
    add_states<E>(dQ, dK, of, d, p.scale, s.sums, q, k, wg, warp, lane);
    float products[32];
    wgmma_fence();
    multiply_rows<E, kHeadSize / 16>(products, wg == 0 ? all_q : all_k, all_k, false);
    wgmma_commit();
    wgmma_wait<0>();
    settle(products);
    const uint32_t scores = anew(shared_address(s.matrices)), keys = scores + kBoxBytes;
    const int here = anew(lane);  // so that no places found from it are kept over products
    if (wg == 0) {
      find_between<E, true>(of.between, products, d, p.scale, s.sums, scores, wg, warp, here);
    } else {
      find_between<E, false>(of.between, products, d, p.scale, s.sums, keys, wg, warp, here);
    }
    fence_async();
    __syncthreads();
    wgmma_fence();
    multiply_boxes<E>(dQ, scores, k, true);
    multiply_turned<E>(dK, scores, q, true);
    multiply_boxes<E>(dK, keys, k, true);
    multiply_turned<E>(dK, keys, k, true);
    wgmma_commit();
    if (of_block == 0) {
      write_gates(p, s.sums, d, nth, task.at_end, task.exact_end, at_place(p, task.place, h), task.first, task.valid, h, lane);
    }
    wgmma_wait<0>();
    settle(dQ), settle(dK);
    asked = (h + 1) % p.q_group == 0;  // the next head has queries of its own
    if (!asked) continue;
    block.store<E>(task, dQ, p.dq, p.q_heads, h / p.q_group, wg, warp, here);
#pragma unroll
    for (int i = 0; i < 32; ++i) dQ[i] = 0.f;
    if (turn + 1 == p.k_group) break;
    __syncthreads();  // this head's queries are read
    if (threadIdx.x == 0) block.ask_queries(task, turn + 1, false);
  }
  block.store<E>(task, dK, p.dk, p.k_heads, task.k_head, wg, warp, anew(lane));
}

// So many blocks as there is room for, or fewer.
template <class E>
__global__ void __launch_bounds__(kGradientThreads, 1) gdn_gradients_kernel(const __grid_constant__ Problem p,
                                                                            const __grid_constant__ Maps maps) {
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<GradientShared*>(memory);
  wait_for_last();
  const int64_t behind = bound(p, p.N);
  if (behind < p.tokens) {
    for (int at = blockIdx.x; at < p.places * p.k_heads; at += gridDim.x) {
      const int64_t first = static_cast<int64_t>(at / p.k_heads) * kChunk;
      if (first < p.tokens && first + kChunk > behind) write_zeros(p, first, behind, at % p.k_heads);
    }
  }
  const GradientBlock block{p, s, maps};
  if (threadIdx.x == 0) {
    for (auto& landed : s.landed) barrier_init(shared_address(&landed), 1);
    barrier_init(shared_address(&s.queries), 1);
    barrier_init_done();
    s.asked = Asked{0, 0, 0, 0, 0, blockIdx.x};
  }
  if (threadIdx.x < 32) {
    __syncwarp();
    find_task(p, s.task[0], s.asked.taken);
    for (int i = 0; i < kParts; ++i) block.ask_next();
    if (threadIdx.x == 0 && s.task[0].valid > 0) block.ask_queries(s.task[0], 0, true);
  }
  __syncthreads();
  Turn at{0, 0, 0};
  int nth = 0;
#pragma unroll 1
  while (s.task[nth].valid > 0) {
    find_gradients<E>(block, s.task[nth], at);
    nth = next_of(nth, kTasks);
    __syncthreads();  // its queries and keys are read
    if (threadIdx.x == 0 && s.task[nth].valid > 0) block.ask_queries(s.task[nth], 0, true);
  }
}

}  // namespace
