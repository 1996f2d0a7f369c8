// Sequences of up to 64 tokens, which are one chunk: both walks and the gradients in one kernel. What is given of states, and dh0, are most of
// what such a sequence moves, and here nothing else but tiles passes through memory. The state behind the chunk is not needed:
//   X^T = V^T - (S K^T) diag(gamma)        r^T = X^T E^T                    with S = h0
//   Y^T = G^T P + (dS K^T) diag(gamma_C / gamma)       x^T = Y^T M          with dS = dht
//   dh0 = gamma_C dS + G^T diag(scale gamma) Q - x^T diag(beta gamma) K
// and the gradients are those of gradients.cuh, with r, x and both states in shared memory. A block takes (sequence, key head) one after the
// other, and the heads that share it in turn. Each of two warpgroups walks over half of the value channels, and then finds gradients of half of
// the key channels, whose sums it keeps in registers meanwhile: so a state is read 64 key channels at a time, and dht once more in the end.
#pragma once
#include "dots.cuh"
#include "gradients.cuh"

namespace {

constexpr int kBriefThreads = 256;

struct BriefShared {
  alignas(1024) unsigned char k[kHalves * kBoxBytes], q[kHalves * kBoxBytes];
  Part part[kHalves];  // by half of the value channels; v lands where r will be
  unsigned char matrices[2][kBoxBytes];
  ForwardTile forward;
  ReverseTile reverse;
  Decays decays;
  GateSums sums;
  float of_beta[kWalkers][kChunk], of_end[kWalkers][kChunk], of_states[kWalkers];  // as in WalkSums, and Problem::of_end
  alignas(8) uint64_t landed, queries;
};
static_assert(sizeof(BriefShared) <= kMostShared);

struct BriefTask {
  int64_t first;  // token
  int n, valid, k_head;  // valid 0: nothing but dh0
};

// Half of the key channels of a warpgroup's slice of a state, from there on.
using HalfSlice = float[32];
__device__ __forceinline__ void load_half(HalfSlice& S, const float* from, bool k_first, int row, int column) {
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const int r = row + i % 4 / 2 * 8, c = column + i / 4 * 8;
    const float2 pair = from != nullptr ? load_pair(from, k_first, r, c) : make_float2(0.f, 0.f);
    S[i] = pair.x, S[i + 1] = pair.y;
  }
}
__device__ __forceinline__ void save_half(const HalfSlice& S, float* to, bool k_first, int row, int column) {
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const int r = row + i % 4 / 2 * 8, c = column + i / 4 * 8;
    if (k_first) {
      to[r + c * kHeadSize] = S[i], to[r + (c + 1) * kHeadSize] = S[i + 1];
    } else {
      *reinterpret_cast<float2*>(to + r * kHeadSize + c) = make_float2(S[i], S[i + 1]);
    }
  }
}

// As a left operand, and what that loses.
template <class E>
__device__ __forceinline__ void pack_half(Tokens& bits, Tokens& rest, const HalfSlice& S) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float x = S[8 * k + 2 * e], y = S[8 * k + 2 * e + 1];
      bits[k][e] = pack<E>(x, y);
      const float2 rounded = unpack<E>(bits[k][e]);
      rest[k][e] = pack<E>(x - rounded.x, y - rounded.y);
    }
  }
  keep(bits), keep(rest);
}

// The sum of products over a warp's channels, of each token.
__device__ __forceinline__ void dot_values(const float (&x)[32], const float (&r)[32], float* to, int lane) {
  float sums[16] = {};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = 8 * k + 2 * e, n = 2 * (2 * k + e / 2);
      sums[n] = fmaf(x[i], r[i], sums[n]), sums[n + 1] = fmaf(x[i + 1], r[i + 1], sums[n + 1]);
    }
  }
  add_rows(sums, lane);
  *reinterpret_cast<float2*>(to + 2 * lane) = make_float2(sums[0], sums[1]);
}

__device__ __forceinline__ const float* state_of_pair(const float* states, int64_t pair) {
  return states == nullptr ? nullptr : states + pair * kHeadSize * kHeadSize;
}

// What a head needs, and queries and keys where they are others; by one thread.
__device__ __forceinline__ void ask_brief(const Problem& p, const Maps& maps, BriefShared& s, const BriefTask& task, int turn) {
  const int h = task.k_head * p.k_group + turn, token = static_cast<int>(task.first);
  const uint32_t landed = shared_address(&s.landed), queries = shared_address(&s.queries);
  if (turn % p.q_group == 0) {
    barrier_expect(queries, (turn == 0 ? 2 : 1) * kHalves * kBoxBytes);
    if (turn == 0) load_boxes(shared_address(s.k), &maps.k, 0, task.k_head, token, queries);
    load_boxes(shared_address(s.q), &maps.q, 0, h / p.q_group, token, queries);
  }
  const int64_t at = at_place(p, task.first / kChunk + task.n, h);  // where nothing is cut
  const unsigned char* const tile = tile_at(p.forward_tiles, at, 0);
  barrier_expect(landed, 2 * kHalves * kBoxBytes + kForwardBytes + kReverseBytes + static_cast<int>(sizeof(Decays)));
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    load_boxes(shared_address(s.part[half].r), &maps.slice_of_v, half, h / p.v_group, token, landed);
    load_boxes(shared_address(s.part[half].g), &maps.slice_of_g, half, h, token, landed);
  }
#pragma unroll
  for (int term = 0; term < kTerms; ++term) {
    const int behind = term == kTerms - 1 ? static_cast<int>(sizeof(ForwardDecays)) : 0;
    load_lower(shared_address(s.forward.E[term]), tile + term * kTriangle, behind, landed);
  }
  load_bytes(shared_address(&s.reverse), tile_at(p.reverse_tiles, at, 0), kReverseBytes, landed);
  load_bytes(shared_address(&s.decays), &decays_at(p, at), sizeof(Decays), landed);
}

// Rows of the next sequence, NaN maybe, once all has landed; by all threads.
__device__ __forceinline__ void clear_brief(BriefShared& s, int valid, bool with_queries, bool with_keys) {
  if (valid == kChunk) return;
  const auto clear = [&](const unsigned char* box) { clear_rows(shared_address(box), valid, threadIdx.x, kBriefThreads); };
  for (int half = 0; half < kHalves; ++half) {
    clear(s.part[half].r), clear(s.part[half].g);
    if (with_queries) clear(s.q + half * kBoxBytes);
    if (with_keys) clear(s.k + half * kBoxBytes);
  }
  fence_async();
  __syncthreads();
}

// Both walks, over one head: r, x times beta, and both states to shared memory, dv and dh0 to memory. `parities`: of what lands, by bit.
template <class E>
__device__ __forceinline__ void walk_brief(const Problem& p, BriefShared& s, const BriefTask& task, int turn, int& parities) {
  const int of_block = warp_here(), wg = of_block / 4, warp = of_block % 4, lane = lane_here();
  const int64_t pair = at_place(p, task.n, task.k_head * p.k_group + turn);
  const int row = kSlice * wg + 16 * warp + lane / 4, column = 2 * (lane % 4);
  Part& part = s.part[wg];
  const uint32_t k = shared_address(s.k), q = shared_address(s.q);
  float x[32], y[32], through = 0.f;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    HalfSlice S, dS;
    load_half(S, state_of_pair(p.initial_state, pair), p.k_first, row, column + 64 * half);
    load_half(dS, state_of_pair(p.dht, pair), p.k_first, row, column + 64 * half);
    if (half == 0) {
      const bool others = turn % p.q_group == 0;
      if (others) barrier_wait(shared_address(&s.queries), parities >> 1 & 1), parities ^= 2;
      barrier_wait(shared_address(&s.landed), parities & 1), parities ^= 1;
      clear_brief(s, task.valid, others, turn == 0);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) through = fmaf(S[i], dS[i], through);
    Tokens bits[2], rest[2];
    pack_half<E>(bits[0], rest[0], S), pack_half<E>(bits[1], rest[1], dS);
    wgmma_fence();
    multiply<E>(x, rest[0], k + half * kBoxBytes, half > 0);
    multiply<E>(x, bits[0], k + half * kBoxBytes, true);
    multiply<E>(y, rest[1], k + half * kBoxBytes, half > 0);
    multiply<E>(y, bits[1], k + half * kBoxBytes, true);
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      stmatrix(shared_address(part.S) + half * kBoxBytes + place_of_lane(warp, i, lane), bits[0][i]);
      stmatrix(shared_address(part.dS) + half * kBoxBytes + place_of_lane(warp, i, lane), bits[1][i]);
    }
    wgmma_wait<0>();
    settle(x), settle(y);
    keep(bits[0]), keep(bits[1]), keep(rest[0]), keep(rest[1]);
  }
  through = add_all(through);
  if (lane == 0) s.of_states[of_block] = through;

  const uint32_t decays = shared_address(&s.forward.decays), back = shared_address(&s.reverse.decays);
  float4 decay[4];
  Tokens bits, g_bits;
  float r[32], o[32];
  load_tokens(bits, shared_address(part.r), warp, lane), load_tokens(g_bits, shared_address(part.g), warp, lane);
  load_decays(decay, decays + offsetof(ForwardDecays, from_start), lane);
  add_decayed<E>(bits, x, decay, -1.f);
  wgmma_fence();
#pragma unroll
  for (int term = 0; term < kTerms; ++term) multiply_square<E>(r, bits, shared_address(s.forward.E[term]), term > 0);
  multiply_upper<E>(o, g_bits, shared_address(s.reverse.P), false);
  wgmma_commit();
  wgmma_wait<0>();
  settle(r), settle(o);
  keep(bits), keep(g_bits);
  store_tokens<E>(r, shared_address(part.r), warp, lane);  // this warp has read the same channels there
  dot_values(y, r, s.of_end[of_block], lane);
  load_decays(decay, back + offsetof(ReverseDecays, to_end), lane);
  pack_sum<E>(bits, o, y, decay);
  wgmma_fence();
#pragma unroll
  for (int term = 0; term < kTerms; ++term) multiply_upper<E>(x, bits, shared_address(s.reverse.M[term]), term > 0);
  wgmma_commit();
  decay_tokens<E>(g_bits, g_bits, back + offsetof(ReverseDecays, read), lane);
  wgmma_wait<0>();
  settle(x);
  keep(bits);
  load_decays(decay, back + offsetof(ReverseDecays, erased), lane);
  pack_decayed<E>(bits, x, decay);
  const float end = load_one(back + offsetof(ReverseDecays, end));
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    HalfSlice dS, update;
    wgmma_fence();
    multiply_by<E>(update, g_bits, q + half * kBoxBytes, false);
    multiply_by<E>(update, bits, k + half * kBoxBytes, true);
    wgmma_commit();
    load_half(dS, state_of_pair(p.dht, pair), p.k_first, row, column + 64 * half);
    if (half == 0) {
      load_decays(decay, back + offsetof(ReverseDecays, beta), lane);
      store_decayed<E>(x, decay, shared_address(part.dv), warp, lane);
      dot_values(x, r, s.of_beta[of_block], lane);
    }
    wgmma_wait<0>();
    settle(update);
    keep(bits), keep(g_bits);
#pragma unroll
    for (int i = 0; i < 32; ++i) dS[i] = fmaf(end, dS[i], update[i]);
    save_half(dS, p.dh0 + pair * kHeadSize * kHeadSize, p.k_first, row, column + 64 * half);
  }
}

// What is in shared memory to dv; by all threads.
__device__ __forceinline__ void write_values(const Problem& p, BriefShared& s, const BriefTask& task, int h) {
#pragma unroll 1
  for (int at = threadIdx.x; at < task.valid * 16; at += kBriefThreads) {
    const int row = at / 16, piece = at % 16;
    const uint4 words = load_shared(shared_address(s.part[piece / 8].dv) + swizzled(row, piece % 8));
    *reinterpret_cast<uint4*>(p.writes + ((task.first + row) * p.H + h) * kHeadSize + 8 * piece) = words;
  }
}

template <class E>
__device__ __forceinline__ void find_brief_gradients(const Problem& p, BriefShared& s, const BriefTask& task, int h, float (&dQ)[32], float (&dK)[32]) {
  Products of;
  {
    const int wg = warp_here() / 4;
    const auto nothing = [](int) {};
    multiply_part<E>(of, s.part[0], false, wg, nothing), multiply_part<E>(of, s.part[1], true, wg, nothing);
    wgmma_wait<0>();
    settle_products(of);
  }
  const int of_block = warp_here(), wg = of_block / 4, warp = of_block % 4, lane = lane_here();
  const uint32_t all_k = anew(shared_address(s.k)), all_q = all_k + kHalves * kBoxBytes, k = all_k + wg * kBoxBytes, q = all_q + wg * kBoxBytes;
  add_states<E>(dQ, dK, of, s.decays, p.scale, s.sums, q, k, wg, warp, lane);
  float products[32];
  multiply_tokens<E>(products, wg == 0 ? all_q : all_k, all_k);
  wgmma_wait<0>();
  settle(products);
  const uint32_t scores = anew(shared_address(s.matrices)), keys = scores + kBoxBytes;
  const int at_warp = warp_here();
  find_between<E>(of.between, products, s.decays, p.scale, s.sums, at_warp < 4 ? scores : keys, at_warp / 4, at_warp % 4, lane_here());
  fence_async();
  __syncthreads();
  multiply_matrices<E>(dQ, dK, scores, keys, q, k);
  if (at_warp == 0) {
    write_gates(p, s.sums, s.decays, s.of_states, p.dht != nullptr ? s.of_end[0] : nullptr, false, task.first, task.valid, h, lane_here());
  } else if (at_warp == 4) {
    write_betas(p, {s.of_beta[0], kChunk}, task.first, task.valid, h, lane_here());
  }
  wgmma_wait<0>();
  settle(dQ), settle(dK);
}

// The nth (sequence, key head); one that is longer has valid -1.
__device__ __forceinline__ BriefTask brief_task(const Problem& p, int nth) {
  const int n = nth / p.k_heads;
  const int64_t first = bound(p, n), length = bound(p, n + 1) - first;
  return BriefTask{first, n, length > p.brief ? -1 : length < 0 ? 0 : static_cast<int>(length), nth % p.k_heads};
}

// The states of the head behind this one, to the cache; by one thread.
__device__ __forceinline__ void bring_next(const Problem& p, const BriefTask& task, int turn, int nth) {
  constexpr int kBytes = kHeadSize * kHeadSize * static_cast<int>(sizeof(float));
  int n = task.n, h = task.k_head * p.k_group + turn + 1;
  if (turn + 1 == p.k_group) {
    const int next = nth + gridDim.x;
    if (next >= p.N * p.k_heads) return;
    const BriefTask after = brief_task(p, next);
    if (after.valid <= 0) return;
    n = after.n, h = after.k_head * p.k_group;
  }
  const int64_t pair = at_place(p, n, h);
  if (p.initial_state != nullptr) bring_near(state_of_pair(p.initial_state, pair), kBytes);
  if (p.dht != nullptr) bring_near(state_of_pair(p.dht, pair), kBytes);
}

// So many blocks as there is room for, or fewer. Alone: no other kernel looks at what is behind the last sequence.
template <class E>
__global__ void __launch_bounds__(kBriefThreads, 1) gdn_brief_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps, bool alone) {
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<BriefShared*>(memory);
  if (alone) write_all_zeros(p);
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&s.landed), 1), barrier_init(shared_address(&s.queries), 1);
    barrier_init_done();
  }
  clear_squares(shared_address(s.forward.E), kTerms);
  {
    const int warp = warp_here();
    clear_others(shared_address(s.matrices[warp / 4]), warp / 4, warp % 4, lane_here());
  }
  fence_async();
  __syncthreads();
  int parities = 0;
#pragma unroll 1
  for (int nth = blockIdx.x; nth < p.N * p.k_heads; nth += gridDim.x) {
    const BriefTask task = brief_task(p, nth);
    if (task.valid < 0) continue;
    if (task.valid == 0) {  // dh0 is dht
      const int64_t from = at_place(p, task.n, task.k_head * p.k_group) * kHeadSize * kHeadSize;
      for (int at = 4 * threadIdx.x; at < p.k_group * kHeadSize * kHeadSize; at += 4 * kBriefThreads) {
        const float4 zeros = make_float4(0.f, 0.f, 0.f, 0.f);
        *reinterpret_cast<float4*>(p.dh0 + from + at) = p.dht == nullptr ? zeros : *reinterpret_cast<const float4*>(p.dht + from + at);
      }
      continue;
    }
    float dQ[32] = {}, dK[32] = {};
#pragma unroll 1
    for (int turn = 0; turn < p.k_group; ++turn) {
      const int h = task.k_head * p.k_group + turn;
      if (threadIdx.x == 0) ask_brief(p, maps, s, task, turn);
      walk_brief<E>(p, s, task, turn, parities);
      fence_async();
      __syncthreads();
      if (threadIdx.x == 0) bring_next(p, task, turn, nth);
      write_values(p, s, task, h);
      find_brief_gradients<E>(p, s, task, h, dQ, dK);
      if ((turn + 1) % p.q_group == 0) {
        store_rows<E>(task.first, task.valid, dQ, p.dq, p.q_heads, h / p.q_group, warp_here() / 4, warp_here() % 4, lane_here());
#pragma unroll
        for (int i = 0; i < 32; ++i) dQ[i] = 0.f;
      }
      __syncthreads();  // nobody looks at this head any more
    }
    store_rows<E>(task.first, task.valid, dK, p.dk, p.k_heads, task.k_head, warp_here() / 4, warp_here() % 4, lane_here());
  }
}

}  // namespace
