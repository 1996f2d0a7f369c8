// As advance.cuh has it, of blocks that prepare the chunks of long sequences themselves: both slices of a state. The next chunk's
// first product is under way before this one's output is written. K K^T of the chunk after the next one and Q K^T of the next one
// are found here, half of their columns by each warpgroup: beside them a warp would take three times as long for each as it does
// alone. T and P are made of them by other warps (long_prepare.cuh): the decays of P alone are 130 instructions of a chunk's chain.
//
// T comes in halves, T_11 and T_22 of 32 tokens, and G_21 = Gamma * K K^T between them:
//   V'_1 = T_11 X_1     V'_2 = T_22 (X_2 - G_21 V'_1)     and what V'_1 writes is added to the state meanwhile
#pragma once
#include "long_shared.cuh"
#include "operands.cuh"
#include "products.cuh"
#include "short_advance.cuh"

namespace {

// This thread's part of half of a state, of key channels from `first` on, two at a time: so they come to the registers where they
// stay, and nothing waits for a neighbour's (state.cuh). Null: zeros.
__device__ __forceinline__ void load_half(float (&half)[32], const float* from, int first, bool k_first) {
  const int lane = lane_here(), row = 16 * anew(threadIdx.x / 32) + lane / 4;  // nothing of this is kept over chunks
  const int column = first + 2 * (lane % 4);
  if (from == nullptr) {
#pragma unroll
    for (int i = 0; i < 32; ++i) half[i] = 0.f;
  } else if (k_first) {
#pragma unroll
    for (int i = 0; i < 32; ++i) half[i] = from[row + i % 4 / 2 * 8 + (column + i / 4 * 8 + i % 2) * kStaySize];
  } else {
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const float2 pair = *reinterpret_cast<const float2*>(from + (row + i % 4 / 2 * 8) * kStaySize + column + i / 4 * 8);
      half[i] = pair.x, half[i + 1] = pair.y;
    }
  }
}
// As [K, V].
__device__ __forceinline__ void save_half(const float (&half)[32], float* to, int first) {
  const int lane = lane_here(), row = 16 * anew(threadIdx.x / 32) + lane / 4, column = first + 2 * (lane % 4);
#pragma unroll
  for (int i = 0; i < 32; ++i) to[row + i % 4 / 2 * 8 + (column + i / 4 * 8 + i % 2) * kStaySize] = half[i];
}

constexpr int kBetweenTurns = 1;                          // the named barrier of those who advance
constexpr int kRowsOfWarp = 16, kHalfRowBytes = 64 * 4;  // of a state
static_assert(4 * kRowsOfWarp * kHalfRowBytes == 2 * kBoxBytes);

// A warpgroup's 64 value channels.
template <class E>
__device__ __forceinline__ void advance_long(const Problem& p, Long& s, const CUtensorMap& states, int wg) {
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0), lane = threadIdx.x % 32;
  constexpr uint32_t kKeysBytes = sizeof(s.keys[0]), kQueriesBytes = sizeof(s.queries[0]), kValuesBytes = sizeof(s.values[0]);
  constexpr uint32_t kTile = offsetof(LongKeys, tile), kDecays = kTile + offsetof(StateTile, decays), kP = offsetof(LongQueries, P);
  constexpr uint32_t kFromStart = kDecays + offsetof(Decays, from_start), kToEnd = kDecays + offsetof(Decays, to_end);
  constexpr uint32_t kReadOut = kDecays + offsetof(Decays, read_out);
  // In a box of v, or of the output, whose rows are tokens, for ldmatrix and stmatrix; and of the lane's four tokens of 16.
  // Read anew, so that they are kept and not found from the thread's index in every chunk.
  const uint32_t of_lane = anew(wg * kBoxBytes + swizzled(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
  const uint32_t of_column = anew(16 * (lane % 4));
  const auto leaves = [] { return static_cast<int>(lane_here() < kLeavers); };  // says for its warp that it has left a place
  uint32_t n = 0, turn = 0;  // the chunk, counted over all turns, and the turn
  // All that depends on the chunk alone the compiler finds once a chunk: found again for each use it takes 40 instructions more.
  const auto keys_of = [&](uint32_t c) { return shared_address(s.keys) + c % kLongKeys * kKeysBytes; };
  const auto keys = [&] { return keys_of(n); };
  const auto queries_of = [&](uint32_t c) { return shared_address(s.queries) + c % kLongQueries * kQueriesBytes; };
  const auto queries = [&] { return queries_of(n); };
  const auto values = [&] { return shared_address(s.values) + n % kLongValues * kValuesBytes; };
  const auto of_keys = [&](const uint64_t* barriers) { return shared_address(barriers) + 8 * (n % kLongKeys); };
  const auto of_queries = [&](const uint64_t* barriers) { return shared_address(barriers) + 8 * (n % kLongQueries); };
  const auto of_values = [&](const uint64_t* barriers) { return shared_address(barriers) + 8 * (n % kLongValues); };
  const auto keys_parity = [&] { return static_cast<int>(n / kLongKeys & 1); };
  const auto queries_parity = [&] { return static_cast<int>(n / kLongQueries & 1); };
  const auto values_parity = [&] { return static_cast<int>(n / kLongValues & 1); };
  const auto values_left = [&] { return shared_address(s.empty) + 8 * ((n - 1) % kLongValues); };  // by the chunk before
  Slice<kStaySize> S;
  uint32_t state_bits[8][4];
  const auto pack_state = [&](int half) {
    pack_channels<E>(&state_bits[4 * half], S[half]);
    keep(state_bits);  // packed here, and not where they are needed
  };
  float x[32], o[32], y[2][16];  // S K^T; S Q^T, then O^T; V'^T: tokens 0 to 31, 32 to 63
  float(&z)[16] = y[1];          // K K^T, then Q K^T, where V' of the last tokens is not yet found
  float added[16];               // X^T of the last tokens
  float all;                     // gamma_C
  float4 rests[4];               // gamma_C / gamma
  uint32_t bits[4][4];           // V^T, the fragments of a left operand; then X^T; then V'^T
  uint32_t decayed[4][4];
  int v_here = 0, t_here = 0, p_here = 0, decays_here = 0, k_here = 0;  // what of the chunk has been seen to be there
  const auto load_decays = [&](float4(&to)[4], uint32_t decays) {
#pragma unroll
    for (int k = 0; k < 4; ++k) to[k] = load_four(keys() + decays + of_column + 64 * k);
  };
  // Lanes are not known to agree about it: else it would come to a uniform register, and be waited for at once.
  const auto load_all = [&] { all = load_one(keys() + kFromStart + 4 * (kChunk - 1) + (of_column >> 31)); };
  // S K^T, of one half of the key channels after the other.
  const auto begin = [&](auto half) {
    wgmma_fence();
    multiply<E, 4 * half, 4 * half + 4>(x, state_bits, keys());
    wgmma_commit();
  };
  const auto scale_state = [&] {
    settle(S[0]), settle(S[1]);  // lest they are scaled before products are on their way
#pragma unroll
    for (int e = 0; e < 32; ++e) S[0][e] *= all, S[1][e] *= all;
    settle(S[0]), settle(S[1]);
  };
  constexpr std::integral_constant<int, 0> kFirst;
  constexpr std::integral_constant<int, 1> kSecond;
  // 32 columns of a product of boxes, by each warpgroup, to z.
  const auto multiply_half = [&](uint32_t a, uint32_t b) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const int ahead = step / 4 * kBoxBytes + step % 4 * 32;
      wgmma_shared<E>(z, descriptor(a, ahead), descriptor(b + wg * (kBoxBytes / 2), ahead), step > 0);
    }
    wgmma_commit();
  };
  // The warp's blocks at or below the diagonal, to `place`, which says where block m of its row is.
  const auto write_blocks = [&](auto place) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = 2 * wg + half;
      const uint32_t at = place(m) + 16 * lane_here();
      store_four_if(m <= warp, at, &z[8 * half]);
      store_four_if(m <= warp, at + 512, &z[8 * half + 4]);
    }
    __syncwarp();
  };
  // Q K^T of chunk c, whose keys have been waited for, for the warp that finds P; that has done with those of the chunk before.
  const auto begin_scores = [&](uint32_t c) {
    barrier_wait(shared_address(s.q_landed) + 8 * (c % kLongQueries), c / kLongQueries & 1);
    multiply_half(queries_of(c), keys_of(c));
  };
  const auto write_scores = [&] {
    write_blocks([&](int m) { return shared_address(s.scores) + fragments_of(warp, m); });
    barrier_arrive_if(leaves(), shared_address(&s.scored));
  };
  // K K^T of chunk c, for a warp that inverts. That has done with the chunk before whose place it has: T of it is there.
  const auto begin_products = [&](uint32_t c) {
    barrier_wait_unless(k_here, shared_address(s.full) + 8 * (c % kLongKeys), c / kLongKeys & 1);
    multiply_half(keys_of(c), keys_of(c));
  };
  const auto write_products = [&](uint32_t c) {
    const uint32_t inverter = c % kInverters, room = shared_address(s.rooms) + inverter * static_cast<uint32_t>(sizeof(Room));
    constexpr uint32_t kOwn = offsetof(Room, scratch);
    write_blocks([&](int m) { return room + (m == warp ? kOwn + warp * kFragments : fragments_below(warp, m)); });
    barrier_arrive_if(leaves(), shared_address(s.multiplied) + 8 * inverter);
  };
  const auto wait_decays = [&] { barrier_wait_unless(decays_here, of_keys(s.decayed), keys_parity()); };
  // All looks at once, while products are under way: each takes 60 cycles.
  const auto look_ahead = [&] {
    const uint32_t ahead = n + kAhead;
    k_here = barrier_test(shared_address(s.full) + 8 * (ahead % kLongKeys), ahead / kLongKeys & 1);
    decays_here = barrier_test(of_keys(s.decayed), keys_parity());
    t_here = barrier_test(of_keys(s.inverted), keys_parity());
    v_here = barrier_test(of_values(s.v_full), values_parity());
  };
  // Two parts of a chunk, so that no product is under way where the loop begins anew: the compiler would wait for it.
  //
  // A chunk up to T_22, while its S K^T is under way.
  const auto find_v = [&](auto is_first, bool goes_on) {
    if constexpr (!is_first) wait_decays(), load_all();
    wgmma_fence();
    multiply<E, 0, 8>(o, state_bits, queries());  // S Q^T
    wgmma_commit();
    if constexpr (!is_first) {
      scale_state();
      __syncwarp();
      barrier_arrive_if(leaves(), values_left());
    }
    barrier_wait_unless(v_here, of_values(s.v_full), values_parity());
    const auto load_v = [&](int k) { ldmatrix_transposed(bits[k], values() + of_lane + 2048 * k); };
    wgmma_wait<1>();
    settle(x);
    if constexpr (!is_first) {
      settle(z);
      barrier_wait_unless(t_here, of_keys(s.inverted), keys_parity());  // and so the warp has done with its products
      write_products(n + kAhead);
    }
    p_here = barrier_test(of_queries(s.found), queries_parity());
    begin_scores(n + 1);
    const auto gamma = [&](int k) { return load_four(keys() + kFromStart + of_column + 64 * k); };
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      load_v(k);
      subtract_read_of<E>(bits[k], &x[8 * k], gamma(k));
    }
    wgmma_wait<1>();  // S Q^T is there long since: the registers of its left operand are wanted
    settle(o);
    keep(state_bits);
    wgmma_fence();
    multiply_lower_low<E>(y[0], bits, keys() + kTile);
    wgmma_commit();
#pragma unroll
    for (int k = 2; k < 4; ++k) {
      load_v(k);
      subtract_read_to<E>(&added[8 * (k - 2)], &x[8 * k], bits[k], gamma(k));
    }
    settle(added);
    wgmma_wait<0>();
    settle(y[0]);
    settle(z);
    keep(bits);
#pragma unroll
    for (int k = 0; k < 2; ++k) pack_tokens<E>(bits[k], &y[0][8 * k]);
    wgmma_fence();
    multiply_below<E>(added, bits, keys() + kTile);
    wgmma_commit();
    // Meanwhile. The upper half of V' waits for Q K^T, whose sums are where it will be.
    __syncwarp();
    barrier_arrive_if(leaves() && goes_on, of_queries(s.q_empty));
    barrier_wait_unless(p_here, of_queries(s.found), queries_parity());
    write_scores();
    wgmma_wait<0>();
    settle(added);
    keep(bits);
  };
  // The rest of V', state and output; in the end S K^T of the next chunk is under way, if there is one.
  const auto use_v = [&](auto is_last) {
#pragma unroll
    for (int k = 2; k < 4; ++k) pack_tokens<E>(bits[k], &added[8 * (k - 2)]);
    wgmma_fence();
    multiply_last<E>(y[1], bits, keys() + kTile);
    wgmma_commit();
    load_decays(rests, kToEnd);
#pragma unroll
    for (int k = 0; k < 2; ++k) decay_tokens<E>(decayed[k], &y[0][8 * k], rests[k]);
    wgmma_fence();
    update_state_half<E, 0, 2>(S[0], decayed, keys());
    update_state_half<E, 0, 2>(S[1], decayed, keys() + kBoxBytes);
    wgmma_commit();
    wgmma_wait<1>();
    settle(y[1]);
    keep(bits);
    float4 reads[4];  // scale gamma
    load_decays(reads, kReadOut);
#pragma unroll
    for (int k = 2; k < 4; ++k) decay_tokens<E>(decayed[k], &y[1][8 * (k - 2)], rests[k]);
    wgmma_fence();
    update_state_half<E, 2, 4>(S[0], decayed, keys());
    wgmma_commit();
    update_state_half<E, 2, 4>(S[1], decayed, keys() + kBoxBytes);
    wgmma_commit();
    // While the update is under way. In a loop, which turns but once: else the compiler has the update wait for all of this.
    int turns = anew(min(p.H, 1));  // 1, which the compiler does not know
    do {
      turns = anew(turns - 1);
      settle(y[1]), settle(o);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k >= 2) pack_tokens<E>(bits[k], &y[1][8 * (k - 2)]);
        scale_tokens(&o[8 * k], reads[k]);
      }
    } while (turns > 0);
    wgmma_fence();
    multiply_square<E>(o, bits, queries() + kP);  // + V'^T P^T
    wgmma_commit();
    const uint32_t v_of_this = values() + of_lane, keys_left = of_keys(s.keys_empty);
    ++n;
    if constexpr (!is_last) look_ahead();
    // The next chunk waits for the state, for one half of it after the other, and not for the output.
    wgmma_wait<2>();
    settle(S[0]);
    if constexpr (!is_last) {
      pack_state(0);
      begin(kFirst);  // its keys have been waited for
    }
    wgmma_wait<is_last ? 1 : 2>();
    settle(S[1]);
    keep(decayed);
    __syncwarp();
    if constexpr (!is_last) {
      barrier_arrive_if(leaves(), keys_left);
      pack_state(1);
      begin(kSecond);
    }
    wgmma_wait<is_last ? 0 : 2>();
    settle(o);
    keep(bits);
    store_output<E>(o, v_of_this);
    if constexpr (!is_last) begin_products(n + kAhead);
    // O^T is where v was, of which this warp has read the same channels. From there it goes to memory (long_feed.cuh); where
    // the chunk is not whole, from here.
    if constexpr (is_last) {
      const Work& work = s.work[turn % kLongTurns];
      const int rows = static_cast<int>(work.end - work.start) - (work.chunks - 1) * kChunk;
      if (rows < kChunk) {
        __syncwarp();
        const int lane = lane_here(), warp = anew(threadIdx.x / 32);  // of eight
        const uint32_t own = warp / 4 * kBoxBytes + swizzled(lane % 8 + lane / 16 * 8, 2 * (warp % 4) + lane / 8 % 2);
        write_tail(p, work, rows, v_of_this - own);
      }
    }
  };
  // A turn's state leaves from where keys and queries of its last chunk were, of which each warp has a part. So these are left later:
  // once the next turn's first product is under way.
  const auto leave_last = [&] {
    const uint32_t last = n - 1;
    stored_read();
    __syncwarp();
    const bool any = leaves() && n > 0;
    barrier_arrive_if(any, shared_address(s.keys_empty) + 8 * (last % kLongKeys));
    barrier_arrive_if(any, shared_address(s.q_empty) + 8 * (last % kLongQueries));
  };
  const auto stage = [&](const float(&half)[32], int row, int box) {
    const uint32_t last = n - 1, place = (wg == 0 ? keys_of(last) : queries_of(last)) + warp * kRowsOfWarp * kHalfRowBytes;
    const int lane = lane_here();
    const uint32_t at = place + swizzled(lane / 4, lane % 4 / 2) + lane % 2 * 8;
    stored_read();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      store_pair((at + i / 16 * kRowsOfWarp * 128 + i % 4 / 2 * 1024) ^ (i / 4 % 4 * 32), half[i], half[i + 1]);
    }
    fence_async();
    __syncwarp();
    store_state_part_if(lane == 0, &states, place, row, box);
  };
  // Which state of a tensor a turn has: so that the compiler knows that to be in global memory.
  constexpr int kState = kStaySize * kStaySize;
  const auto pair_of = [&](const Work& work) { return static_cast<int64_t>(work.n) * p.H + work.h; };
  // What the block has next, and where its state is.
  const auto take_turn = [&](const float*& from) {
    barrier_wait(shared_address(&s.told[turn % kLongTurns]), turn / kLongTurns & 1);
    const Work& work = s.work[turn % kLongTurns];
    const int chunks = __shfl_sync(kAllLanes, work.chunks, 0);
    from = chunks < 0 || p.initial_state == nullptr ? nullptr : p.initial_state + pair_of(work) * kState;
    __syncwarp();
    barrier_arrive_if(leaves(), shared_address(&s.taken[turn % kLongTurns]));
    return chunks;
  };
  // The same, of what has chunks. Other states are copied here: past the products they would need registers of their own, which spill.
  const auto take_next = [&](const float*& from) {
    int chunks = take_turn(from);
#pragma unroll 1
    while (chunks == 0) {
      float* const to = p.final_state + pair_of(s.work[turn % kLongTurns]) * kState;
      for (int e = 16 * kStaySize * anew(threadIdx.x / 32) + 4 * lane_here(), end = e + 16 * kStaySize; e < end; e += 128) {
        const float4 four = from == nullptr ? float4{} : *reinterpret_cast<const float4*>(from + e);
        *reinterpret_cast<float4*>(to + e) = four;
      }
      ++turn;
      chunks = take_turn(from);
    }
    return chunks;
  };
  const float* from;
  int chunks = take_next(from);
  load_half(S[0], from, 0, p.k_first), load_half(S[1], from, 64, p.k_first);
#pragma unroll 1
  while (chunks > 0) {
    v_here = decays_here = k_here = 0;
    // While the state comes. A turn's last chunk has left to the next turn what its loop would find ahead.
#pragma unroll 1
    for (uint32_t c = n == 0 ? 0 : n + kAhead; c <= n + kAhead; ++c) {
      begin_products(c);
      wgmma_wait<0>();
      settle(z);
      if (c >= kInverters) {
        const uint32_t before = c - kInverters;
        barrier_wait(shared_address(s.inverted) + 8 * (before % kLongKeys), before / kLongKeys & 1);
      }
      write_products(c);
    }
    if (n == 0) {
      begin_scores(0);
      wgmma_wait<0>();
      settle(z);
      write_scores();
    }
    wait_decays();
    pack_state(0), pack_state(1);
    load_all();
    scale_state();  // here, where nothing is under way: else the compiler waits for it
    begin(kFirst), begin(kSecond);
    leave_last();
    find_v(std::true_type{}, chunks > 1);
#pragma unroll 1
    for (int more = chunks - 1; more > 0; --more) {
      use_v(std::false_type{});
      find_v(std::false_type{}, more > 1);
    }
    use_v(std::true_type{});
    __syncwarp();
    barrier_arrive_if(leaves(), values_left());
    const int64_t pair = pair_of(s.work[turn % kLongTurns]);  // its place is another turn's once the next is taken
    ++turn;
    chunks = take_next(from);
    // The next state is asked for before this one leaves: what comes behind so many stores waits for them.
    load_half(x, from, 0, p.k_first), load_half(o, from, 64, p.k_first);
    named_barrier(kBetweenTurns, 256);  // nobody reads those keys and queries any more
    if (p.k_first) {
      save_half(S[0], p.final_state + pair * kState, 0), save_half(S[1], p.final_state + pair * kState, 64);
    } else {
      const int row = static_cast<int>(pair) * kStaySize + 16 * (anew(threadIdx.x / 32));
      stage(S[0], row, 0), stage(S[1], row, 2);
    }
#pragma unroll
    for (int e = 0; e < 32; ++e) S[0][e] = x[e], S[1][e] = o[e];
  }
  stored_all();
}

}  // namespace
