// Of a block that prepares its own chunks: two warps that invert, a place each, and one that finds P. Their products are by
// mma.sync, so that a warp waits for no other.
#pragma once
#include "short_shared.cuh"

namespace {

// A lane's row of 16 x 16 numbers, as ldmatrix asks for it: rows 16 r on, channels 16 k on, of both boxes of a head.
__device__ __forceinline__ uint32_t fragment_at(uint32_t boxes, int r, int k, int lane) {
  return boxes + k / 4 * kBoxBytes + swizzled(16 * r + lane % 16, 2 * (k % 4) + lane / 16);
}

// Rows 16 From to 16 End - 1 of a b^T, blocks of 16 x 16 at or below the diagonal, one after the other.
template <int From, int End>
constexpr int kBlocksOf = (End * (End + 1) - From * (From + 1)) / 2;
template <class E, int From, int End>
__device__ __forceinline__ void multiply_rows(float (&x)[kBlocksOf<From, End>][8], uint32_t a, uint32_t b, int lane) {
#pragma unroll
  for (auto& block : x) {
#pragma unroll
    for (float& number : block) number = 0.f;
  }
#pragma unroll 4
  for (int k = 0; k < kStaySize / 16; ++k) {  // a box at a time: of both at once registers are short
    uint32_t right[End][4];
#pragma unroll
    for (int m = 0; m < End; ++m) ldmatrix(right[m], fragment_at(b, m, k, lane));
#pragma unroll
    for (int r = From; r < End; ++r) {
      uint32_t left[4];
      ldmatrix(left, fragment_at(a, r, k, lane));
#pragma unroll
      for (int m = 0; m <= r; ++m) {
        float(&columns)[2][4] = reinterpret_cast<float(&)[2][4]>(x[(r * (r + 1) - From * (From + 1)) / 2 + m]);
        mma<E>(columns[0], left, right[m][0], right[m][2]);
        mma<E>(columns[1], left, right[m][1], right[m][3]);
      }
    }
  }
}

// Calls `each(block, r, m)` for all blocks of a b^T at or below the diagonal: two times, lest sums take too many registers.
template <class E, class Each>
__device__ __forceinline__ void multiply_lower_blocks(uint32_t a, uint32_t b, int lane, Each each) {
  const auto rows = [&](auto from, auto end) {
    constexpr int kFrom = from, kEnd = end;
    float x[kBlocksOf<kFrom, kEnd>][8];
    multiply_rows<E, kFrom, kEnd>(x, a, b, lane);
#pragma unroll
    for (int r = kFrom; r < kEnd; ++r) {
#pragma unroll
      for (int m = 0; m <= r; ++m) each(x[(r * (r + 1) - kFrom * (kFrom + 1)) / 2 + m], r, m);
    }
  };
  rows(std::integral_constant<int, 0>{}, std::integral_constant<int, 3>{});
  rows(std::integral_constant<int, 3>{}, std::integral_constant<int, 4>{});
}

// What a lane is to invert or to find P of.
__device__ __forceinline__ Asked read_asked(const Short& s, int i) {
  const auto uniform = [](int x) { return __shfl_sync(kAllLanes, x, 0); };
  const Asked& asked = s.asks[i];
  return {uniform(asked.first), uniform(asked.rows), uniform(asked.h)};
}

// A lane has two tokens. Behind the end alpha is 1 and beta 0.
__device__ __forceinline__ void read_gates(const Problem& p, const Asked& asked, Rows& rows, int lane) {
  float g[2], beta[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int t = 2 * lane + e;
    const bool inside = t < asked.rows;
    const int64_t at = (static_cast<int64_t>(asked.first) + t) * p.H + asked.h;
    g[e] = inside && p.g != nullptr ? __ldg(p.g + at) : p.log_gates ? 0.f : 1.f;
    beta[e] = inside && p.beta != nullptr ? __ldg(p.beta + at) : inside ? 1.f : 0.f;
  }
  *reinterpret_cast<float2*>(&rows.log[2 * lane]) = make_float2(g[0], g[1]);
  *reinterpret_cast<float2*>(&rows.beta[2 * lane]) = make_float2(beta[0], beta[1]);
  __syncwarp();
}

// Block m of row r of P, from that of Q K^T.
__device__ __forceinline__ void decay_p(float (&x)[8], const Rows& rows, float scale, int r, int m, int lane) {
  if (m == r) {
    float weights[8];
    weigh_diagonal(weights, rows.log, r, lane);
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] *= scale * weights[e];
  } else {
    const float end = rows.log[16 * m + 15];
    float factors[4], weight[2];
    column_factors(factors, rows.factor, m, lane);
#pragma unroll
    for (int e = 0; e < 2; ++e) weight[e] = scale * exp2_fast(rows.log[16 * r + lane / 4 + 8 * e] - end);
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] *= weight[e / 2 % 2] * factors[e / 4 * 2 + e % 2];
  }
}
template <class E>
__device__ __forceinline__ void pack_block(uint32_t (&words)[4], const float (&x)[8]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) words[e] = pack<E>(x[2 * e], x[2 * e + 1]);
}

// By a warp: decays and T of all chunks that come to place i.
template <class E>
__device__ __forceinline__ void invert_short(const Problem& p, Short& s, int i) {
#pragma unroll 1
  for (int parity = 0;; parity ^= 1) {
    const int lane = lane_here();  // found again, as what depends on it is, and not kept over chunks
    ShortPlace& place = s.places[anew(i)];
    const auto say = [&](uint64_t* barriers) {
      __syncwarp();
      if (lane < kLeavers) barrier_arrive(shared_address(&barriers[i]));
    };
    barrier_wait(shared_address(&s.asked[i]), parity);
    const Asked asked = read_asked(s, i);
    if (asked.rows < 0) break;
    read_gates(p, asked, place.rows, lane);
    find_decays(p, place.rows, place.tile.decays, nullptr, lane);
    barrier_wait(shared_address(&s.landed[i]), parity);
    if (asked.rows < kChunk) {
      for (int half = 0; half < 2; ++half) {
        clear_rows(shared_address(place.k) + half * kBoxBytes, asked.rows, lane, 32);
        clear_rows(shared_address(place.q) + half * kBoxBytes, asked.rows, lane, 32);
      }
      fence_async();
    }
    say(s.full);
    const uint32_t k = shared_address(place.k);
    multiply_lower_blocks<E>(k, k, lane, [&](const float(&x)[8], int r, int m) {
      float4* const at = reinterpret_cast<float4*>(place.products + fragments_of(r, m)) + lane;
      at[0] = make_float4(x[0], x[1], x[2], x[3]), at[32] = make_float4(x[4], x[5], x[6], x[7]);
    });
    // A lane reads what it has written itself.
    Inverter<E, kStaySize, false, true>{place.products, place.rows, place.scratch, place.tile.T[0], p.scale, lane}.find();
    fence_async();
    say(s.inverted);
  }
}

// By a warp: P of each chunk, and zeros in rows of v behind a sequence's end, which are the next sequence's: NaN maybe.
template <class E>
__device__ __forceinline__ void find_p_short(const Problem& p, Short& s) {
#pragma unroll 1
  for (int c = 0;; ++c) {
    const int lane = lane_here();
    const int i = c % kShortPlaces, parity = c / kShortPlaces & 1;
    ShortPlace& place = s.places[i];
    const auto say = [&](uint64_t* barriers) {
      __syncwarp();
      if (lane < kLeavers) barrier_arrive(shared_address(&barriers[i]));
    };
    barrier_wait(shared_address(&s.asked[i]), parity);
    const Asked asked = read_asked(s, i);
    if (asked.rows < 0) break;
    barrier_wait(shared_address(&s.v_landed[i]), parity);
    if (asked.rows < kChunk) {
      for (int half = 0; half < 2; ++half) {
        clear_rows(shared_address(place.v) + half * kBoxBytes, asked.rows, lane, 32);
      }
      fence_async();
    }
    say(s.v_full);
    barrier_wait(shared_address(&s.full[i]), parity);
    const Rows& rows = place.rows;
    const uint32_t to = shared_address(place.P) + turned(lane);
    multiply_lower_blocks<E>(shared_address(place.q), shared_address(place.k), lane, [&](float(&x)[8], int r, int m) {
      uint32_t words[4];
      decay_p(x, rows, p.scale, r, m, lane);
      pack_block<E>(words, x);
      stmatrix(to + block_of_square(r, m), words);
    });
    fence_async();
    say(s.found);
  }
}

}  // namespace
