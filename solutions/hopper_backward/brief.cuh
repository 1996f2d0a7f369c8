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
constexpr int kParked = kTerms == 1 ? 32 : 16;  // sums of dQ, of a thread: there is no room for them in registers during a walk

// A (sequence, key head), or a chunk of that: its first token, and how many it has. 0: nothing but dh0; less: it is not this kernel's.
struct BriefTask {
  int64_t first;
  int nth, n, valid, k_head, chunks, c;
  __device__ __forceinline__ bool is_last() const { return c == chunks - 1; }
};

struct BriefShared {
  alignas(1024) unsigned char k[kHalves * kBoxBytes], q[kHalves * kBoxBytes];
  Part part[kHalves];  // by half of the value channels; v lands where r will be
  unsigned char matrices[2][kBoxBytes];
  float4 parked[kParked / 4][kBriefThreads];
  ForwardTile forward;
  ReverseTile reverse;
  Decays decays;
  GateSums sums;
  BriefTask task;
  float of_beta[kWalkers][kChunk], of_end[kWalkers][kChunk], of_states[kWalkers];  // as in WalkSums, and Problem::of_end
  alignas(8) uint64_t landed, queries;
};
static_assert(sizeof(BriefShared) <= kMostShared);

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
// As stmatrix has left it.
template <class E>
__device__ __forceinline__ void unpack_half(HalfSlice& S, uint32_t box, int warp, int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t bits[4];
    ldmatrix(bits, box + place_of_lane(warp, k, lane));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 pair = unpack<E>(bits[e]);
      S[8 * k + 2 * e] = pair.x, S[8 * k + 2 * e + 1] = pair.y;
    }
  }
}
// r of a chunk that has been walked over, with what it has lost, if anything; as a warp holds it.
template <class E>
__device__ __forceinline__ void take_errors(float (&r)[32], const Tokens& bits, const uint4* rests, int lane) {
  uint4 lost[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) lost[k] = make_uint4(0, 0, 0, 0);
  if (rests != nullptr) {
#pragma unroll
    for (int k = 0; k < 4; ++k) lost[k] = rests[32 * k + lane];
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 x = unpack<E>(bits[k][e]), rest = unpack<E>(e == 0 ? lost[k].x : e == 1 ? lost[k].y : e == 2 ? lost[k].z : lost[k].w);
      r[8 * k + 2 * e] = x.x + rest.x, r[8 * k + 2 * e + 1] = x.y + rest.y;
    }
  }
}

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

// What a head needs, and queries and keys where they are others; by one thread. Walked: S and r are there.
template <bool Walked>
__device__ __forceinline__ void ask_brief(const Problem& p, const Maps& maps, BriefShared& s, int turn) {
  const BriefTask& task = s.task;
  const int h = task.k_head * p.k_group + turn, token = static_cast<int>(task.first);
  const uint32_t landed = shared_address(&s.landed), queries = shared_address(&s.queries);
  if (turn % p.q_group == 0) {
    barrier_expect(queries, (turn == 0 ? 2 : 1) * kHalves * kBoxBytes);
    if (turn == 0) load_boxes(shared_address(s.k), &maps.k, 0, task.k_head, token, queries);
    load_boxes(shared_address(s.q), &maps.q, 0, h / p.q_group, token, queries);
  }
  const int64_t at = at_place(p, first_chunk(p, task.n) + task.c, h);
  const unsigned char* const tile = tile_at(p.forward_tiles, at, 0);
  constexpr int kOfForward = Walked ? kStateBytes : kForwardBytes;
  barrier_expect(landed, 2 * kHalves * kBoxBytes + kOfForward + kReverseBytes + static_cast<int>(sizeof(Decays)));
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    if constexpr (Walked) {
      load_bytes_once(shared_address(s.part[half].r), p.errors + at * kValueBytes + half * kBoxBytes, kBoxBytes, landed);
      load_bytes_once(shared_address(s.part[half].S), p.starts + at * kStateBytes + half * (kHalves * kBoxBytes), kHalves * kBoxBytes, landed);
    } else {
      load_boxes(shared_address(s.part[half].r), &maps.slice_of_v, half, h / p.v_group, token, landed);
    }
    load_boxes(shared_address(s.part[half].g), &maps.slice_of_g, half, h, token, landed);
  }
#pragma unroll
  for (int term = 0; !Walked && term < kTerms; ++term) {
    const int behind = term == kTerms - 1 ? static_cast<int>(sizeof(ForwardDecays)) : 0;
    load_lower(shared_address(s.forward.E[term]), tile + term * kTriangle, behind, landed);
  }
  load_bytes(shared_address(&s.reverse), tile_at(p.reverse_tiles, at, 0), kReverseBytes, landed);
  load_bytes(shared_address(&s.decays), &decays_at(p, at), sizeof(Decays), landed);
}

// Rows of the next sequence, NaN maybe, once all has landed; by all threads.
__device__ __forceinline__ void clear_brief(BriefShared& s, int valid, bool with_queries, bool with_keys) {
  if (valid == kChunk) return;
  const int thread = anew(threadIdx.x);  // nothing that follows from it is kept over products
  const auto clear = [&](const unsigned char* box) { clear_rows(shared_address(box), valid, thread, kBriefThreads); };
  for (int half = 0; half < kHalves; ++half) {
    clear(s.part[half].r), clear(s.part[half].g);
    if (with_queries) clear(s.q + half * kBoxBytes);
    if (with_keys) clear(s.k + half * kBoxBytes);
  }
  fence_async();
  __syncthreads();
}

// Both walks, or the walk back, over one head of a chunk: r, x times beta, and both states to shared memory, dv and dh0 to memory. `parities`: of what lands, by bit.
template <class E, bool Walked>
__device__ __forceinline__ void walk_brief(const Problem& p, BriefShared& s, int turn, int& parities) {
  const BriefTask& task = s.task;  // read when it is needed: there is no room for more numbers
  const int of_block = warp_here(), wg = of_block / 4, warp = of_block % 4, lane = lane_here();
  const int row = kSlice * wg + 16 * warp + lane / 4, column = 2 * (lane % 4);
  Part& part = s.part[wg];
  const uint32_t k = anew(shared_address(s.k)), q = k + kHalves * kBoxBytes;
  // Between chunks the gradient of the state is where that of the first one will be: each thread has left there what it takes.
  const auto pair = [&] { return at_place(p, task.n, task.k_head * p.k_group + turn); };
  const auto behind = [&] { return !Walked || task.is_last() ? state_of_pair(p.dht, pair()) : p.dh0 + pair() * kHeadSize * kHeadSize; };
  const auto walked_to = [&] { return Walked && task.c > 0; };
  float x[32], y[32], through = 0.f;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    HalfSlice S, dS;
    load_half(S, walked_to() ? nullptr : state_of_pair(p.initial_state, pair()), p.k_first, row, column + 64 * half);
    load_half(dS, behind(), p.k_first, row, column + 64 * half);
    if (half == 0) {
      const bool others = turn % p.q_group == 0;
      if (others) barrier_wait(shared_address(&s.queries), parities >> 1 & 1), parities ^= 2;
      barrier_wait(shared_address(&s.landed), parities & 1), parities ^= 1;
      clear_brief(s, task.valid, others, turn == 0);
    }
    if (walked_to() || (Walked && p.initial_state == nullptr)) unpack_half<E>(S, shared_address(part.S) + half * kBoxBytes, warp, lane);
#pragma unroll
    for (int i = 0; i < 32; ++i) through = fmaf(S[i], dS[i], through);
    Tokens bits[2], rest[2];
    if constexpr (!Walked) pack_half<E>(bits[0], rest[0], S);
    pack_half<E>(bits[1], rest[1], dS);
    wgmma_fence();
    if constexpr (!Walked) multiply<E>(x, rest[0], k + half * kBoxBytes, half > 0), multiply<E>(x, bits[0], k + half * kBoxBytes, true);
    multiply<E>(y, rest[1], k + half * kBoxBytes, half > 0);
    multiply<E>(y, bits[1], k + half * kBoxBytes, true);
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (!Walked) stmatrix(shared_address(part.S) + half * kBoxBytes + place_of_lane(warp, i, lane), bits[0][i]);
      stmatrix(shared_address(part.dS) + half * kBoxBytes + place_of_lane(warp, i, lane), bits[1][i]);
    }
    wgmma_wait<0>();
    if constexpr (!Walked) settle(x), keep(bits[0]), keep(rest[0]);
    settle(y);
    keep(bits[1]), keep(rest[1]);
  }
  through = add_all(through);
  if (lane == 0) s.of_states[of_block] = through;

  const uint32_t decays = anew(shared_address(&s.forward.decays)), back = anew(shared_address(&s.reverse.decays));
  const uint32_t E_at = anew(shared_address(s.forward.E)), M_at = anew(shared_address(s.reverse.M)), P_at = M_at + kTerms * kTriangle;
  float4 decay[4];
  Tokens bits, g_bits;
  float r[32], o[32];
  load_tokens(bits, shared_address(part.r), warp, lane), load_tokens(g_bits, shared_address(part.g), warp, lane);
  if constexpr (!Walked) {
    load_decays(decay, decays + offsetof(ForwardDecays, from_start), lane);
    add_decayed<E>(bits, x, decay, -1.f);
  } else {
    const bool at_end = (task.c == 0 || task.is_last()) && keeps_rests(p);
    const uint4* const rests = p.rests + ((pair() * 2 + task.is_last()) * kWalkers + of_block) * 4 * 32;
    take_errors<E>(r, bits, at_end ? rests : nullptr, lane);
  }
  wgmma_fence();
#pragma unroll
  for (int term = 0; !Walked && term < kTerms; ++term) multiply_square<E>(r, bits, E_at + term * kSquare, term > 0);
  multiply_upper<E>(o, g_bits, P_at, false);
  wgmma_commit();
  wgmma_wait<0>();
  settle(o);
  keep(g_bits);
  if constexpr (!Walked) {
    settle(r), keep(bits);
    store_tokens<E>(r, shared_address(part.r), warp, lane);  // this warp has read the same channels there
  }
  dot_values(y, r, s.of_end[of_block], lane);
  load_decays(decay, back + offsetof(ReverseDecays, to_end), lane);
  pack_sum<E>(bits, o, y, decay);
  wgmma_fence();
#pragma unroll
  for (int term = 0; term < kTerms; ++term) multiply_upper<E>(x, bits, M_at + term * kTriangle, term > 0);
  wgmma_commit();
  load_decays(decay, back + offsetof(ReverseDecays, read), lane);
  decay_bits<E>(g_bits, decay);
  wgmma_wait<0>();
  settle(x);
  keep(bits);
  load_decays(decay, back + offsetof(ReverseDecays, erased), lane);
  pack_decayed<E>(bits, x, decay);
  load_decays(decay, back + offsetof(ReverseDecays, beta), lane);
  store_decayed<E>(x, decay, shared_address(part.dv), warp, lane);
  dot_values(x, r, s.of_beta[of_block], lane);
  const float end = load_one(back + offsetof(ReverseDecays, end));
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    HalfSlice dS, update;
    wgmma_fence();
    multiply_by<E>(update, g_bits, q + half * kBoxBytes, false);
    multiply_by<E>(update, bits, k + half * kBoxBytes, true);
    wgmma_commit();
    load_half(dS, behind(), p.k_first, row, column + 64 * half);
    wgmma_wait<0>();
    settle(update);
    keep(bits), keep(g_bits);
#pragma unroll
    for (int i = 0; i < 32; ++i) dS[i] = fmaf(end, dS[i], update[i]);
    save_half(dS, p.dh0 + pair() * kHeadSize * kHeadSize, p.k_first, row, column + 64 * half);
  }
}

// What is in shared memory to dv; by all threads.
__device__ __forceinline__ void write_values(const Problem& p, BriefShared& s, int h) {
  const BriefTask& task = s.task;
#pragma unroll 1
  for (int at = anew(threadIdx.x); at < task.valid * 16; at += kBriefThreads) {
    const int row = at / 16, piece = at % 16;
    const uint4 words = load_shared(shared_address(s.part[piece / 8].dv) + swizzled(row, piece % 8));
    *reinterpret_cast<uint4*>(p.writes + ((task.first + row) * p.H + h) * kHeadSize + 8 * piece) = words;
  }
}

template <class E>
__device__ __forceinline__ void find_brief_gradients(const Problem& p, BriefShared& s, int turn, float (&dQ)[32], float (&dK)[32]) {
  Products of;
  {
    const int wg = warp_here() / 4;
    const int first = anew(0);  // so that no places are kept over the loop
    multiply_part<E>(of, s.part[first], false, wg), multiply_part<E>(of, s.part[first + 1], true, wg);
    wgmma_wait<0>();
    settle_products(of);
  }
  const int of_block = warp_here(), wg = of_block / 4, warp = of_block % 4, lane = lane_here();
  const uint32_t all_k = anew(shared_address(s.k)), all_q = all_k + kHalves * kBoxBytes, k = all_k + wg * kBoxBytes, q = all_q + wg * kBoxBytes;
  add_states<E>(dQ, dK, of, s.decays, p.scale, s.sums, q, k, wg, warp, lane);
  float products[32];
  wgmma_fence();
  multiply_rows<E, kHeadSize / 16>(products, wg == 0 ? all_q : all_k, all_k, false);
  wgmma_commit();
  wgmma_wait<0>();
  settle(products);
  const uint32_t scores = anew(shared_address(s.matrices)), keys = scores + kBoxBytes;
  const int at_warp = warp_here();
  find_between<E>(of.between, products, s.decays, p.scale, s.sums, at_warp < 4 ? scores : keys, at_warp / 4, at_warp % 4, lane_here());
  fence_async();
  __syncthreads();
  wgmma_fence();
  multiply_boxes<E>(dQ, scores, k, true);
  multiply_turned<E>(dK, scores, q, true);
  multiply_boxes<E>(dK, keys, k, true);
  multiply_turned<E>(dK, keys, k, true);
  wgmma_commit();
  const BriefTask& task = s.task;
  const int h = task.k_head * p.k_group + turn;
  if (at_warp == 0) {
    write_gates(p, s.sums, s.decays, s.of_states, p.dht != nullptr && task.is_last() ? s.of_end[0] : nullptr, false, task.first, task.valid, h, lane_here());
  } else if (at_warp == 4) {
    write_betas(p, {s.of_beta[0], kChunk}, task.first, task.valid, h, lane_here());
  }
  wgmma_wait<0>();
  settle(dQ), settle(dK);
}

// The last chunk of the nth (sequence, key head).
__device__ __forceinline__ BriefTask brief_task(const Problem& p, int nth) {
  const int n = nth / p.k_heads;
  if (n >= p.N) return BriefTask{0, nth, n, -1, 0, 0, 0};
  const int64_t first = bound(p, n), length = bound(p, n + 1) - first;
  if (length > p.brief || length <= 0) return BriefTask{first, nth, n, length > 0 ? -1 : 0, nth % p.k_heads, 0, 0};
  const int tokens = static_cast<int>(length), chunks = (tokens + kChunk - 1) / kChunk, c = chunks - 1;
  return BriefTask{first + int64_t{kChunk} * c, nth, n, tokens - kChunk * c, nth % p.k_heads, chunks, c};
}

// The states of the head behind this one, to the cache; by one thread.
template <bool Walked>
__device__ __forceinline__ void bring_next(const Problem& p, const BriefTask& task, int turn) {
  constexpr int kBytes = kHeadSize * kHeadSize * static_cast<int>(sizeof(float));
  int n = task.n, c = task.c, h = task.k_head * p.k_group + turn + 1;
  bool is_last = task.is_last();
  if (turn + 1 == p.k_group) {
    h -= p.k_group;
    if (Walked) {
      if (--c < 0) return;
      is_last = false;
    } else {
      const BriefTask after = brief_task(p, task.nth + gridDim.x);
      if (after.valid <= 0 || after.chunks > 1) return;
      n = after.n, h = after.k_head * p.k_group;
    }
  }
  const int64_t pair = at_place(p, n, h), at = at_place(p, first_chunk(p, n) + c, h);
  if (Walked) bring_near(p.starts + at * kStateBytes, kStateBytes), bring_near(p.errors + at * kValueBytes, kValueBytes);
  if (!Walked && p.initial_state != nullptr) bring_near(state_of_pair(p.initial_state, pair), kBytes);
  if (is_last && p.dht != nullptr) bring_near(state_of_pair(p.dht, pair), kBytes);
}

__device__ __forceinline__ void park(BriefShared& s, const float (&x)[32]) {
#pragma unroll
  for (int i = 0; i < kParked / 4; ++i) s.parked[i][threadIdx.x] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
}
__device__ __forceinline__ void take_back(const BriefShared& s, float (&x)[32]) {
#pragma unroll
  for (int i = 0; i < kParked / 4; ++i) {
    const float4 four = s.parked[i][threadIdx.x];
    x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
  }
}

// All heads of a chunk and key head.
template <class E, bool Walked>
__device__ __forceinline__ void find_brief(const Problem& p, const Maps& maps, BriefShared& s, int& parities) {
  float dQ[32] = {}, dK[32] = {};
#pragma unroll 1
  for (int turn = 0; turn < p.k_group; ++turn) {
    if (threadIdx.x == 0) ask_brief<Walked>(p, maps, s, turn);
    park(s, dQ);
    walk_brief<E, Walked>(p, s, turn, parities);
    take_back(s, dQ);
    fence_async();
    __syncthreads();
#ifdef GDN_NEAR
    if (threadIdx.x == 0) bring_next<Walked>(p, s.task, turn);
#endif
    write_values(p, s, s.task.k_head * p.k_group + turn);
    find_brief_gradients<E>(p, s, turn, dQ, dK);
    const BriefTask& task = s.task;
    const int h = task.k_head * p.k_group + turn;
    if ((turn + 1) % p.q_group == 0) {
      store_rows<E>(task.first, task.valid, dQ, p.dq, p.q_heads, h / p.q_group, warp_here() / 4, warp_here() % 4, lane_here());
#pragma unroll
      for (int i = 0; i < 32; ++i) dQ[i] = 0.f;
    }
    __syncthreads();  // nobody looks at this head any more
  }
  store_rows<E>(s.task.first, s.task.valid, dK, p.dk, p.k_heads, s.task.k_head, warp_here() / 4, warp_here() % 4, lane_here());
}

// So many blocks as there is room for, or fewer. Alone: no other kernel looks at what is behind the last sequence. Short: sequences of some
// chunks, too.
template <class E, bool Short>
__global__ void __launch_bounds__(kBriefThreads, 1) gdn_brief_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps, bool alone) {
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<BriefShared*>(memory);
  if (alone) write_all_zeros(p);
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&s.landed), 1), barrier_init(shared_address(&s.queries), 1);
    barrier_init_done();
    s.task.nth = static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x);
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
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) s.task = brief_task(p, s.task.nth + gridDim.x);
    __syncthreads();
    if (s.task.n >= p.N) return;
    if (s.task.valid < 0) continue;
    if (s.task.valid == 0) {  // dh0 is dht
      const int64_t from = at_place(p, s.task.n, s.task.k_head * p.k_group) * kHeadSize * kHeadSize;
      for (int at = 4 * threadIdx.x; at < p.k_group * kHeadSize * kHeadSize; at += 4 * kBriefThreads) {
        const float4 zeros = make_float4(0.f, 0.f, 0.f, 0.f);
        *reinterpret_cast<float4*>(p.dh0 + from + at) = p.dht == nullptr ? zeros : *reinterpret_cast<const float4*>(p.dht + from + at);
      }
      continue;
    }
    if (!Short || s.task.chunks == 1) {
      find_brief<E, false>(p, maps, s, parities);
      continue;
    }
#pragma unroll 1
    while (true) {
      find_brief<E, true>(p, maps, s, parities);
      if (s.task.c == 0) break;
      __syncthreads();
      if (threadIdx.x == 0) --s.task.c, s.task.first -= kChunk, s.task.valid = kChunk;
      __syncthreads();
    }
  }
}

}  // namespace
