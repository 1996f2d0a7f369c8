// S [V, K] as codes, with a scale for each row. Eight lanes hold a row; a thread has the codes of a few neighbouring rows.
#pragma once
#include "place.cuh"
#include "units.cuh"

namespace {

// As cuda_decode has them, with the pool of scales beside that of codes.
template <class E>
struct CodeArguments : Arguments<E> {
  float* scales;  // slots of [H, D]
  int64_t scales_stride;
};

// A thread's part of a state, over the tokens of its row. What S holds is a multiple of the state: row r of the state is
// `unit[r]` times it. After a load that is a row's scale, and S has the codes.
template <class E, int D, class Tile>
struct CodeRows {
  using Place = RowPlace<E, D, Tile>;
  static constexpr int R = Place::R, C = Place::C, P = Place::P;
  static_assert(P == 16 && Tile::kTogether);
  uint4 words[R][C];
  float unit[R];
  float S[R][C][P];

  // Asked for; `widen` waits for it.
  __device__ __forceinline__ void load(const E* codes, const float* scales) {
#pragma unroll
    for (int r = 0; r < R; ++r) unit[r] = scales[r];
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < C; ++c) words[r][c] = load16(codes + r * D + c * Place::kNextKey);
    }
  }

  __device__ __forceinline__ void widen() {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < C; ++c) to_floats<E>(words[r][c], S[r][c]);
    }
  }

  // S k and S q of every row: of this thread's key channels.
  template <int N>
  __device__ __forceinline__ void add_products(const float (&q)[C][P], const float (&k)[C][P], float (&sums)[N]) const {
#pragma unroll
    for (int c = 0; c < C; ++c) {
#pragma unroll
      for (int e = 0; e < P; ++e) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          sums[2 * r] = fmaf(S[r][c][e], k[c][e], sums[2 * r]);
          sums[2 * r + 1] = fmaf(S[r][c][e], q[c][e], sums[2 * r + 1]);
        }
      }
    }
  }

  // One token on: outputs to memory, and in S the new state, in units of what the decay has kept.
  template <int N>
  __device__ __forceinline__ void step(const CodeArguments<E>& p, const Place& at, int64_t row, const float (&sums)[N],
                                       const float (&k)[C][P], const float (&v)[R], const Gates& gate,
                                       const Factors& factor) {
    float o[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float u;
      o[r] = read_out(unit[r] * sums[2 * r], unit[r] * sums[2 * r + 1], v[r], gate, factor, p.scale, u);
      const float kept = gate.alpha * unit[r];
      const bool usual = is_usual(kept, u);
      if (!__all_sync(kAllLanes, usual)) {
        const float times = usual ? 1.f : kept;
#pragma unroll
        for (int c = 0; c < C; ++c) {
#pragma unroll
          for (int e = 0; e < P; ++e) S[r][c][e] *= times;
        }
      }
      unit[r] = usual ? kept : 1.f;
      const float add = u * inverse_of(unit[r]);
#pragma unroll
      for (int c = 0; c < C; ++c) {
#pragma unroll
        for (int e = 0; e < P; ++e) S[r][c][e] = fmaf(add, k[c][e], S[r][c][e]);
      }
    }
    if (at.key != 0) return;
    bf16* const out = p.output + (row * p.H + at.h) * D + at.channel;
    if constexpr (Place::kWide == 1) {
#pragma unroll
      for (int r = 0; r < R; ++r) out[r] = __float2bfloat16_rn(o[r]);
    } else {
#pragma unroll
      for (int r = 0; r < R; r += Place::kWide) store_wide<Place::kWide>(out + r, o + r);
    }
  }

  // S to memory: new scales, and codes. S stays as it is.
  template <bool Streaming>
  __device__ __forceinline__ void store(const Place& at, E* codes, float* scales) const {
    float largest[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      largest[r] = 0.f;
#pragma unroll
      for (int c = 0; c < C; ++c) {
#pragma unroll
        for (int e = 0; e < P; ++e) largest[r] = fmaxf(largest[r], fabsf(S[r][c][e]));
      }
    }
    max_of_lanes<Tile::kLanes>(largest);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float factor = factor_of<E>(unit[r], largest[r]);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        float x[P];
#pragma unroll
        for (int e = 0; e < P; ++e) x[e] = __fmul_rn(S[r][c][e], factor);
        store16<Streaming>(codes + r * D + c * Place::kNextKey, to_codes<E>(x));
      }
      if (at.key == 0) scales[r] = scale_of<E>(unit[r], largest[r]);
    }
  }
};

// |q|^2, |k|^2, q . k, added to the last three sums: of a thread's key channels.
template <int C, int P, int N>
__device__ __forceinline__ void add_token(const float (&q)[C][P], const float (&k)[C][P], float (&sums)[N]) {
#pragma unroll
  for (int c = 0; c < C; ++c) {
#pragma unroll
    for (int e = 0; e < P; ++e) {
      sums[N - 3] = fmaf(q[c][e], q[c][e], sums[N - 3]);
      sums[N - 2] = fmaf(k[c][e], k[c][e], sums[N - 2]);
      sums[N - 1] = fmaf(q[c][e], k[c][e], sums[N - 1]);
    }
  }
}

template <class E, int D, Slots slots, class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    gdn_quantised_k_last_kernel(const __grid_constant__ CodeArguments<E> p) {
  constexpr bool kVerify = slots == Slots::kVerify;
  constexpr int R = Tile::kRows, C = Tile::kChunks, P = kPer<E>;
  const int T = kVerify ? p.T : 1;
  const RowPlace<E, D, Tile> at(T);
  bring_rows_near<slots>(p, at, T);

  // Everything is asked for before anything is waited for; only slots stand in the way of the state.
  wait_for_previous();
  RowSlots<slots> row(p, T);
  RowToken<E, D, Tile> token;
  __shared__ std::conditional_t<kVerify, Stage<D, Tile::kChannels>, char> stage;
  if constexpr (kVerify) {
    stage_tokens(p, at, T, stage);
  } else {
    const bf16* q_at = p.q + at.first_token * p.qk_stride + blockIdx.y * D;
    const bf16* k_at = p.k + at.first_token * p.qk_stride + blockIdx.y * D;
    const bf16* v_at = p.v + at.first_token * p.v_stride + at.h * D;
    token.load(q_at + at.key, k_at + at.key, v_at, at.channel);
  }
  keep_order();
  const RawGates raw(p, at.first_token + (kVerify ? min(at.lane, T - 1) : 0), at.h);  // lane t: those of token t
  if (!row.finds_source(T, p.num_slots)) {
    if constexpr (kVerify) __pipeline_wait_prior(0);
    write_zeros(p, at, T);
    return;
  }
  keep_order();
  if constexpr (!kVerify) let_next_start();
  CodeRows<E, D, Tile> rows;
  const int scale_at = at.h * D + at.channel;
  rows.load(p.from + row.source * p.slot_stride + at.part, p.scales + row.source * p.scales_stride + scale_at);
  keep_order();
  if constexpr (kVerify) {
    let_next_start();
  } else if (!row.finds_target(p.num_slots)) {
    write_zeros(p, at, T);
    return;
  }

  const Gates gate_of_lane(raw);
  Gates gate = gate_of_lane;
  if constexpr (kVerify) {
    __pipeline_wait_prior(0);
    __syncthreads();
  }
  rows.widen();

#pragma unroll 1
  for (int t = 0; t < T; ++t) {
    if constexpr (kVerify) {
      token.load(&stage.q[t][at.key], &stage.k[t][at.key], stage.v[t], at.kNextGroup * at.group);
      gate.alpha = __shfl_sync(kAllLanes, gate_of_lane.alpha, t);
      gate.beta = __shfl_sync(kAllLanes, gate_of_lane.beta, t);
    }

    float q[C][P], k[C][P], v[R], sums[2 * R + 3] = {};
    token.widen_to(q, k, v);
    rows.add_products(q, k, sums);
    add_token(q, k, sums);
    sum_lanes<1, Tile::kLanes>(sums);
    const Factors factor(p.normalise, sums[2 * R], sums[2 * R + 1], sums[2 * R + 2]);
    rows.step(p, at, at.first_token + t, sums, k, v, gate, factor);
    const int64_t slot = row.target(t);
    rows.template store<kVerify>(at, p.to + slot * p.slot_stride + at.part,
                                 p.scales + slot * p.scales_stride + scale_at);
  }
}

}  // namespace
