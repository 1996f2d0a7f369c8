// dq, dk, dg and dbeta of a chunk, once both walks have left it. With U = diag(beta) r, dV as the reverse walk has left it,
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

constexpr int kGradientThreads = 256;                    // that multiply, in two warpgroups
constexpr int kGradientBlock = kGradientThreads + 128;  // and those that feed
constexpr int kMatrices = 1, kCleared = 2;              // named barriers of those that multiply
constexpr int kSumsThrough = 0, kSumsFromStart = 1, kSumsToEnd = 6;  // warps that have less to do between tokens

// A chunk and a key head.
struct Task {
  int64_t first;           // token
  int place, valid, k_head;  // valid 0: there are no more
  const WalkSums* at_end;  // of the first head, two apart, if the chunk is a sequence's first or last: the reverse walk has found <S, dS>
  const float* exact_end;  // of the first head, where that has found the gradient of the decay to the end; or null
};

constexpr int kParts = 3;  // places for halves of heads: one is multiplied, the others are on their way
constexpr int kTasks = 3, kHeadsAhead = 3;  // that a block has something of at a time

// Barriers: half of a head has landed, and nobody needs it any more; queries, and keys, the same; what lay in rows of dq has been read; a
// task has been found.
struct GradientShared {
  alignas(1024) unsigned char k[kHalves * kBoxBytes], q[kHalves * kBoxBytes];
  Part part[kParts];
  unsigned char matrices[2][kBoxBytes];  // dP * Gamma; B, transposed
  Decays decays[kHeadsAhead];
  GateSums sums[2];  // of heads in turns
  Task task[kTasks];
  unsigned char unused[480];  // the places of the walk back reach as far (together.cuh)
  alignas(8) uint64_t landed[kParts], left[kParts], queries, queries_left, betas_read, found[kTasks];
  int walkers;  // blocks that walk, where the kernel finds how many do (together.cuh)
};
static_assert(sizeof(GradientShared) <= kMostShared);

__device__ __forceinline__ int next_of(int i, int count) { return i == count - 1 ? 0 : i + 1; }

// The next one that is ready, once it is; by a warp.
__device__ __forceinline__ Task next_task(const Problem& p) {
  int found = 0;
  if (lane_here() == 0) found = take_ready(p);
  found = __shfl_sync(kAllLanes, found, 0) - 1;
  if (found < 0) return Task{};
  const int place = found / p.k_heads, k_head = found % p.k_heads;
  const Chunk chunk = find_chunk(p, place);
  const bool exact = chunk.is_last && p.dht != nullptr;
  const float* const exact_end = exact ? p.of_end + at_place(p, chunk.n, k_head * p.k_group) * kWalkers * kChunk : nullptr;
  const bool at_end = chunk.is_first || chunk.is_last;
  return Task{chunk.first, place, chunk.valid, k_head, at_end ? &ends_at(p, chunk.n, k_head * p.k_group, chunk.is_last) : nullptr, exact_end};
}

// What a block asks TMA for, and what it does with a task's rows.
struct GradientBlock {
  const Problem& p;
  GradientShared& s;
  const Maps& maps;

  // Half of what a head needs, to a place; by one thread.
  __device__ __forceinline__ void ask(const Task& task, int turn, int half, int place, int decays) const {
    const int h = task.k_head * p.k_group + turn;
    const int64_t at = at_place(p, task.place, h);
    const uint32_t landed = shared_address(&s.landed[place]);
    Part& part = s.part[place];
    barrier_expect(landed, static_cast<int>(sizeof(Part)) + (half == 0 ? static_cast<int>(sizeof(Decays)) : 0));
    if (half == 0) load_bytes_once(shared_address(&s.decays[decays]), &decays_at(p, at), sizeof(Decays), landed);
    load_boxes(shared_address(part.g), &maps.slice_of_g, half, h, static_cast<int>(task.first), landed);
    load_boxes(shared_address(part.dv), &maps.slice_of_dv, half, h, static_cast<int>(task.first), landed);
    load_bytes_once(shared_address(part.r), p.errors + at * kValueBytes + half * kBoxBytes, kBoxBytes, landed);
    constexpr int kBytes = kHalves * kBoxBytes;
    load_bytes_once(shared_address(part.S), p.starts + at * kStateBytes + half * kBytes, kBytes, landed);
    load_bytes_once(shared_address(part.dS), p.ends + at * kStateBytes + half * kBytes, kBytes, landed);
  }

  // Finds tasks, and asks for their heads; by a warp.
  __device__ __forceinline__ void feed_heads() const {
    int place = 0, round = 0, decays = 0;
#pragma unroll 1
    for (int i = 0;; i = next_of(i, kTasks)) {  // whoever multiplies has left the third task before
      const Task task = next_task(p);
      if (lane_here() == 0) {
        s.task[i] = task;
        barrier_arrive(shared_address(&s.found[i]));
      }
      others_arrive(lane_here(), shared_address(&s.found[i]));
      if (task.valid == 0) return;
#pragma unroll 1
      for (int turn = 0; turn < p.k_group; ++turn) {
#pragma unroll 1
        for (int half = 0; half < kHalves; ++half) {
          if (round > 0) barrier_wait(shared_address(&s.left[place]), (round - 1) & 1);
          if (lane_here() == 0) ask(task, turn, half, place, decays);
          round += place == kParts - 1, place = next_of(place, kParts);
          __syncwarp();
        }
        decays = next_of(decays, kHeadsAhead);
      }
    }
  }

  // Asks for queries and keys, and sums what walks have found of dbeta; by another.
  template <class E>
  __device__ __forceinline__ void feed_queries() const {
    int asked = 0, round = 0;
#pragma unroll 1
    for (int i = 0;; round += i == kTasks - 1, i = next_of(i, kTasks)) {
      barrier_wait(shared_address(&s.found[i]), round & 1);
      const Task task = s.task[i];
      if (task.valid == 0) return;
#pragma unroll 1
      for (int turn = 0; turn < p.k_group; turn += p.q_group, ++asked) {
        if (asked > 0) barrier_wait(shared_address(&s.queries_left), (asked - 1) & 1);
        if (lane_here() == 0) ask_queries(task, turn, turn == 0);
        __syncwarp();
        if (turn == 0) read_betas<E>(task);
      }
    }
  }

  // What walks have found of dbeta. It may lie in rows of dq, which nobody writes before all of it is read.
  template <class E>
  __device__ __forceinline__ void read_betas(const Task& task) const {
#pragma unroll 1
    for (int turn = 0; turn < p.k_group; ++turn) {
      const int h = task.k_head * p.k_group + turn;
      const int64_t at = at_place(p, task.place, h);
      const bool at_end = task.at_end != nullptr;
      if (!walk_finds_betas<E>(decays_at(p, at), at_end)) continue;
      write_betas(p, at_end ? Betas{task.at_end[2 * turn].of_beta[0], kChunk} : betas_at(p, at, task.first, h), task.first, task.valid, h, lane_here());
    }
    __syncwarp();
    if (lane_here() == 0) barrier_arrive(shared_address(&s.betas_read));
    others_arrive(lane_here(), shared_address(&s.betas_read));
  }

  __device__ __forceinline__ void ask_queries(const Task& task, int turn, bool with_keys) const {
    const uint32_t landed = shared_address(&s.queries);
    barrier_expect(landed, (with_keys ? 2 : 1) * kHalves * kBoxBytes);
    const int q_head = (task.k_head * p.k_group + turn) / p.q_group;
    load_boxes(shared_address(s.q), &maps.q, 0, q_head, static_cast<int>(task.first), landed);
    if (with_keys) load_boxes(shared_address(s.k), &maps.k, 0, task.k_head, static_cast<int>(task.first), landed);
  }

  // Rows of the next sequence, NaN maybe; by all threads that multiply.
  __device__ __forceinline__ void clear_tail(const Task& task, uint32_t boxes, int count) const {
    if (task.valid == kChunk) return;
    for (int i = 0; i < count; ++i) clear_rows(boxes + i * kBoxBytes, task.valid, threadIdx.x, kGradientThreads);
    fence_async();
    named_barrier(kCleared, kGradientThreads);
  }
};

// Of four lanes side by side, which have four words each: number i of lane j becomes number j of lane i.
__device__ __forceinline__ void turn_four(uint32_t (&x)[4], int lane) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(kAllLanes, lane & 1 ? x[i] : x[i + 1], 1);
    x[i] = lane & 1 ? got : x[i], x[i + 1] = lane & 1 ? x[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(kAllLanes, lane & 2 ? x[i] : x[i + 2], 2);
    x[i] = lane & 2 ? got : x[i], x[i + 2] = lane & 2 ? x[i + 2] : got;
  }
}

// 64 channels of the rows of a head, from channel 64 half on; by a warp of four. A lane stores 16 bytes at a time, and four lanes 64 of a row.
template <class E>
__device__ __forceinline__ void store_rows(int64_t first, int valid, const float (&x)[32], void* to, int heads, int head, int half, int warp,
                                           int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = 16 * warp + lane / 4 + 8 * r;
    auto* const from = static_cast<uint16_t*>(to) + ((first + row) * heads + head) * kHeadSize + 64 * half + 8 * (lane % 4);
#pragma unroll
    for (int n = 0; n < 8; n += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = pack<E>(x[4 * (n + i) + 2 * r], x[4 * (n + i) + 2 * r + 1]);
      turn_four(words, lane);
      if (row < valid) store_once(reinterpret_cast<uint4*>(from + 8 * n), make_uint4(words[0], words[1], words[2], words[3]));
    }
  }
}

// Rows behind the last sequence belong to none: their gradients are zero.
__device__ __forceinline__ void write_zeros(const Problem& p, int64_t first, int64_t behind, int k_head) {
  const int from = static_cast<int>(max(int64_t{0}, behind - first)), to = static_cast<int>(min(int64_t{kChunk}, p.tokens - first));
  const auto clear = [&](void* x, int heads) {  // those heads of x that this block has
    const int count = heads / p.k_heads;
    for (int at = 16 * from * count + threadIdx.x; at < 16 * to * count; at += blockDim.x) {
      const int64_t row = (first + at / (16 * count)) * heads + k_head * count + at / 16 % count;
      reinterpret_cast<uint4*>(x)[row * 16 + at % 16] = make_uint4(0, 0, 0, 0);
    }
  };
  clear(p.dq, p.q_heads), clear(p.dk, p.k_heads), clear(p.dv, p.v_heads);
  for (int at = from * p.k_group + threadIdx.x; at < to * p.k_group; at += blockDim.x) {
    const int64_t i = (first + at / p.k_group) * p.H + k_head * p.k_group + at % p.k_group;
    p.dg[i] = 0.f, p.dbeta[i] = 0.f;
  }
}
// The same of all chunks and key heads; by all blocks.
__device__ __forceinline__ void write_all_zeros(const Problem& p) {
  const int64_t behind = bound(p, p.N);
  if (behind >= p.tokens) return;
  for (int at = blockIdx.x; at < p.places * p.k_heads; at += gridDim.x) {
    const int64_t first = static_cast<int64_t>(at / p.k_heads) * kChunk;
    if (first < p.tokens && first + kChunk > behind) write_zeros(p, first, behind, at % p.k_heads);
  }
}

// Where whoever multiplies is: the places of the next half and the next head, and parities by bit: of barriers by part, of queries, of
// tasks, of the head, of betas.
struct Turn {
  int part, decays, parities;
};
constexpr int kOfQueries = kParts, kOfTasks = kOfQueries + 1, kOfHead = kOfTasks + kTasks, kOfBetas = kOfHead + 1;

// Q K^T, or K K^T; under way when it returns.
template <class E>
__device__ __forceinline__ void multiply_tokens(float (&products)[32], uint32_t left, uint32_t k) {
  wgmma_fence();
  multiply_rows<E, kHeadSize / 16>(products, left, k, false);
  wgmma_commit();
}

// What the matrices between tokens add to half of the channels; under way when it returns.
template <class E>
__device__ __forceinline__ void multiply_matrices(float (&dQ)[32], float (&dK)[32], uint32_t scores, uint32_t keys, uint32_t q, uint32_t k) {
  wgmma_fence();
  multiply_boxes<E>(dQ, scores, k, true);
  multiply_turned<E>(dK, scores, q, true);
  multiply_boxes<E>(dK, keys, k, true);
  multiply_turned<E>(dK, keys, k, true);
  wgmma_commit();
}

// The warp of those that multiply, found anew: nothing that follows from it is kept over products.
__device__ __forceinline__ int warp_here() { return __shfl_sync(kAllLanes, threadIdx.x / 32, 0); }

// All of a task's heads.
template <class E>
__device__ __forceinline__ void find_gradients(const GradientBlock& block, const Task& task, Turn& at) {
  const Problem& p = block.p;
  GradientShared& s = block.s;
  float dQ[32] = {}, dK[32] = {};
  int of_query = 0;  // heads of a query head that are behind
#pragma unroll 1
  for (int turn = 0;; ++turn) {  // the last head is a query head's last one
    const int h = task.k_head * p.k_group + turn;
    const Decays& d = s.decays[at.decays];
    GateSums& sums = s.sums[at.parities >> kOfHead & 1];
    at.decays = next_of(at.decays, kHeadsAhead), at.parities ^= 1 << kOfHead;
    Products of;
    Diagonals through;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      Part& part = s.part[at.part];
      barrier_wait(shared_address(&s.landed[at.part]), at.parities >> at.part & 1);
      block.clear_tail(task, shared_address(part.g), 2);
      const int of_block = warp_here();
      multiply_part<E>(of, part, half > 0, of_block / 4, [&](int nth) { through.add<E>(part, nth, of_block, lane_here()); });
      wgmma_wait<0>();
      if (half == 0) settle(dQ), settle(dK);  // of the head before
      settle_products(of);
      __syncwarp();
      warp_arrive(lane_here(), shared_address(&s.left[at.part]));
      at.parities ^= 1 << at.part, at.part = next_of(at.part, kParts);
    }
    // Found anew, and not kept over the products of states.
    const int of_block = warp_here(), wg = of_block / 4, warp = of_block % 4, lane = lane_here();
    const uint32_t all_k = anew(shared_address(s.k)), all_q = all_k + kHalves * kBoxBytes;
    const uint32_t k = all_k + wg * kBoxBytes, q = all_q + wg * kBoxBytes;
    if (of_query == 0) {
      barrier_wait(shared_address(&s.queries), at.parities >> kOfQueries & 1);
      at.parities ^= 1 << kOfQueries;
      block.clear_tail(task, turn == 0 ? all_k : all_q, turn == 0 ? 2 * kHalves : kHalves);
    }
    add_states<E>(dQ, dK, of, d, p.scale, sums, q, k, wg, warp, lane);
    float products[32];
    multiply_tokens<E>(products, wg == 0 ? all_q : all_k, all_k);
    {
      const int own = warp_here();
      const float sum = add_all(through.of_lane(lane_here()));
      if (lane_here() == 0) sums.through[own] = sum;
    }
    wgmma_wait<0>();
    settle(products);
    const uint32_t scores = anew(shared_address(s.matrices)), keys = scores + kBoxBytes;
    const int here = lane_here();  // so that no places found from it are kept over products
    named_barrier(kMatrices, kGradientThreads);  // those of the head before are read
    const int at_warp = warp_here();
    find_between<E>(of.between, products, d, p.scale, sums, at_warp < 4 ? scores : keys, at_warp / 4, at_warp % 4, here);
    if (at_warp == kSumsThrough) {
      if (here == 0) sum_through(sums, task.at_end != nullptr ? task.at_end[2 * turn].of_states : sums.through);
    } else if (at_warp == kSumsFromStart) {
      sum_from_start(sums, d, here);
    } else if (at_warp == kSumsToEnd) {
      sum_to_end(sums, d, task.exact_end != nullptr ? task.exact_end + turn * kWalkers * kChunk : nullptr, here);
    }
    fence_async();
    named_barrier(kMatrices, kGradientThreads);
    multiply_matrices<E>(dQ, dK, scores, keys, q, k);
    // Meanwhile, a lane a token. Nobody waits for one warp that has all of it.
    if (at_warp < 2) {
      write_gate(p, sums, d, task.first, task.valid, h, 32 * at_warp + lane_here());
    } else if (at_warp >= 6 && !walk_finds_betas<E>(d, task.at_end != nullptr)) {
      write_beta(p, sums, d, task.first, task.valid, h, 32 * (at_warp - 6) + lane_here());
    }
    if (++of_query != p.q_group) continue;  // the next head's products follow at once: nobody waits for these before
    wgmma_wait<0>();
    settle(dQ), settle(dK);
    of_query = 0;
    if (turn < p.q_group) {  // before the next task's can be
      barrier_wait(shared_address(&s.betas_read), at.parities >> kOfBetas & 1);
      at.parities ^= 1 << kOfBetas;
    }
    __syncwarp();
    warp_arrive(lane_here(), shared_address(&s.queries_left));  // behind the last head the keys, too
    store_rows<E>(task.first, task.valid, dQ, p.dq, p.q_heads, h / p.q_group, at_warp / 4, at_warp % 4, lane_here());
#pragma unroll
    for (int i = 0; i < 32; ++i) dQ[i] = 0.f;
    if (turn + 1 == p.k_group) break;
  }
  store_rows<E>(task.first, task.valid, dK, p.dk, p.k_heads, task.k_head, warp_here() / 4, warp_here() % 4, lane_here());
}

// By one thread.
__device__ __forceinline__ void prepare_parts(GradientShared& s) {
  for (int i = 0; i < kParts; ++i) {
    barrier_init(shared_address(&s.landed[i]), 1);
    barrier_init(shared_address(&s.left[i]), kGradientThreads / 32 * kSpeakers);
  }
  barrier_init(shared_address(&s.queries), 1), barrier_init(shared_address(&s.betas_read), kSpeakers);
  barrier_init(shared_address(&s.queries_left), kGradientThreads / 32 * kSpeakers);
  for (auto& found : s.found) barrier_init(shared_address(&found), kSpeakers);
}

// Until there are no more tasks; by whoever multiplies.
template <class E>
__device__ __forceinline__ void find_all_gradients(const GradientBlock& block) {
  GradientShared& s = block.s;
  Turn at{};
  const int warp = warp_here();
  barrier_wait(shared_address(&s.found[0]), 0);  // nobody of the block walks any more
  clear_others(shared_address(s.matrices[warp / 4]), warp / 4, warp % 4, lane_here());
#pragma unroll 1
  for (int nth = 0;; nth = next_of(nth, kTasks)) {
    barrier_wait(shared_address(&s.found[nth]), at.parities >> kOfTasks + nth & 1);
    at.parities ^= 1 << kOfTasks + nth;
    if (s.task[nth].valid == 0) return;
    find_gradients<E>(block, s.task[nth], at);
  }
}

}  // namespace
