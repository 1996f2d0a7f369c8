// k_last: S [V, K], a row of S is contiguous in key channels.
#pragma once
#include <cuda_pipeline.h>

#include <type_traits>

#include "slots.cuh"

namespace {

// `Lanes`: side by side in a row. `Loads`: 16-byte loads of the state a thread. `Warps`: of a block, where a head has
// rows for so many. `Together`: a thread's rows are neighbours, and its v and its
// outputs words of up to 8 bytes.
template <class E, int D, int Lanes, int Loads, int Warps, bool Together>
struct RowTile {
  static constexpr bool kTogether = Together;
  static constexpr int kLanes = Lanes * kPer<E> <= D ? Lanes : D / kPer<E>;
  static constexpr int kChunks = D / (kLanes * kPer<E>);        // of a row, a thread
  static constexpr int kRows = Loads >= kChunks ? Loads / kChunks : 1;  // a thread
  static constexpr int kRowsOfWarp = kRows * (32 / kLanes);
  static constexpr int kWarps = Warps * kRowsOfWarp <= D ? Warps : D / kRowsOfWarp;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kGroups = kThreads / kLanes;             // rows side by side
  static constexpr int kChannels = kRows * kGroups;             // value channels of a block
  static constexpr int kTiles = D / kChannels;
  static_assert(kRows >= 1 && kTiles * kChannels == D && kChunks * kLanes * kPer<E> == D);
};

// The tokens of a row that has several: all on their way while the state is.
template <int D, int Channels>
struct Stage {
  alignas(16) bf16 q[kMaxTokens][D], k[kMaxTokens][D], v[kMaxTokens][Channels];
};

// Where a block is, and in it a thread.
template <class E, int D, class Tile>
struct RowPlace {
  static constexpr int R = Tile::kRows, C = Tile::kChunks, P = kPer<E>;
  static constexpr int kNextRow = Tile::kTogether ? 1 : Tile::kGroups, kNextKey = Tile::kLanes * P;
  static constexpr int kNextGroup = Tile::kTogether ? R : 1;
  // Value channels of one load of v and one store of the output.
  static constexpr int kWide = !Tile::kTogether ? 1 : R % 4 == 0 ? 4 : R % 2 == 0 ? 2 : 1;
  int tile, h;
  int64_t first_token;
  int lane;
  int group;    // of the rows that lie side by side, the thread's
  int channel;  // a thread's first value channel; the next is kNextRow on
  int key;      // and its first key channel; the next chunk is kNextKey on
  int part;     // in a slot

  __device__ __forceinline__ explicit RowPlace(int T)
      : tile(blockIdx.x % Tile::kTiles),
        h(blockIdx.y * (gridDim.x / Tile::kTiles) + blockIdx.x / Tile::kTiles),
        first_token(static_cast<int64_t>(blockIdx.z) * T),
        lane(threadIdx.x % 32),
        group(threadIdx.x / Tile::kLanes),
        channel(tile * Tile::kChannels + kNextGroup * group),
        key(P * (threadIdx.x % Tile::kLanes)),
        part((h * D + channel) * D + key) {}
};

// Into L2: the block's part of a state, and the vectors that go with it.
template <Slots slots, class E, int D, class Tile>
__device__ __forceinline__ void bring_rows_near(const Arguments<E>& p, const RowPlace<E, D, Tile>& at, int T) {
  // Vectors by few: lines that all blocks of many heads ask for at once, those of a and b, would be a queue.
  if (threadIdx.x == 0) {
    const int slot = guess_slot<slots>(p, T);
    if (slots == Slots::kNone || is_slot(slot, p.num_slots)) {
      bring_near(p.from + slot * p.slot_stride + (at.h * D + at.tile * Tile::kChannels) * D,
                 Tile::kChannels * D * sizeof(E));
    }
  } else if (threadIdx.x == 1) {
    bring_near(p.q + at.first_token * p.qk_stride + blockIdx.y * D, D * sizeof(bf16));
  } else if (threadIdx.x == 2) {
    bring_near(p.k + at.first_token * p.qk_stride + blockIdx.y * D, D * sizeof(bf16));
  } else if (threadIdx.x == 4 && blockIdx.x + blockIdx.y == 0) {  // lines that all blocks of a row share
    bring_line_near(p.a + at.first_token * p.H);
    bring_line_near(p.b + at.first_token * p.H);
    if constexpr (slots != Slots::kNone) bring_line_near(p.write + at.first_token);
  } else if (threadIdx.x == 3 && Tile::kChannels % 8 == 0) {
    bring_near(p.v + at.first_token * p.v_stride + at.h * D + at.tile * Tile::kChannels, Tile::kChannels * sizeof(bf16));
  }
}

// What a thread needs of a token, as it is in memory.
template <class E, int D, class Tile>
struct RowToken {
  using Place = RowPlace<E, D, Tile>;
  Packed<Place::P> q[Place::C], k[Place::C];
  alignas(2 * Place::kWide) bf16 v[Place::R];

  // q and k from the thread's first key channel on; v from its value channel `first` on.
  __device__ __forceinline__ void load(const bf16* from_q, const bf16* from_k, const bf16* from_v, int first) {
#pragma unroll
    for (int c = 0; c < Place::C; ++c) {
      q[c].load(from_q + c * Place::kNextKey);
      k[c].load(from_k + c * Place::kNextKey);
    }
#pragma unroll
    for (int r = 0; r < Place::R; r += Place::kWide) load_wide<Place::kWide>(v + r, from_v + first + r * Place::kNextRow);
  }

  __device__ __forceinline__ void widen_to(float (&to_q)[Place::C][Place::P], float (&to_k)[Place::C][Place::P],
                                           float (&to_v)[Place::R]) const {
#pragma unroll
    for (int c = 0; c < Place::C; ++c) q[c].widen_to(to_q[c]), k[c].widen_to(to_k[c]);
#pragma unroll
    for (int r = 0; r < Place::R; ++r) to_v[r] = __bfloat162float(v[r]);
  }
};

// All tokens of a row to shared memory, in pieces of 16 bytes, in the background.
template <class E, int D, class Tile>
__device__ __forceinline__ void stage_tokens(const Arguments<E>& p, const RowPlace<E, D, Tile>& at, int T,
                                             Stage<D, Tile::kChannels>& stage) {
  const bf16* q_at = p.q + at.first_token * p.qk_stride + blockIdx.y * D;
  const bf16* k_at = p.k + at.first_token * p.qk_stride + blockIdx.y * D;
  const bf16* v_at = p.v + at.first_token * p.v_stride + at.h * D;
  constexpr int kOfKeys = D / 8, kOfValues = Tile::kChannels / 8, kOfToken = 2 * kOfKeys + kOfValues;
  static_assert(Tile::kChannels % 8 == 0);
#pragma unroll 1
  for (int n = threadIdx.x; n < T * kOfToken; n += Tile::kThreads) {
    const int t = n / kOfToken, piece = n % kOfToken;
    if (piece < kOfKeys) {
      __pipeline_memcpy_async(&stage.q[t][8 * piece], q_at + t * p.qk_stride + 8 * piece, 16);
    } else if (piece < 2 * kOfKeys) {
      __pipeline_memcpy_async(&stage.k[t][8 * (piece - kOfKeys)], k_at + t * p.qk_stride + 8 * (piece - kOfKeys), 16);
    } else {
      const int i = 8 * (piece - 2 * kOfKeys);
      __pipeline_memcpy_async(&stage.v[t][i], v_at + t * p.v_stride + at.tile * Tile::kChannels + i, 16);
    }
  }
  __pipeline_commit();
}

// The output of a row that is skipped.
template <class E, int D, class Tile>
__device__ __forceinline__ void write_zeros(const Arguments<E>& p, const RowPlace<E, D, Tile>& at, int T) {
  for (int n = threadIdx.x; n < T * Tile::kChannels; n += Tile::kThreads) {
    const int t = n / Tile::kChannels, i = at.tile * Tile::kChannels + n % Tile::kChannels;
    p.output[((at.first_token + t) * p.H + at.h) * D + i] = __float2bfloat16_rn(0.f);
  }
}

// Each of N sums over neighbouring lanes, by halves. Level by level over all of them, as in `sum_lanes`.
template <int Lanes, int N>
__device__ __forceinline__ void sum_halves(float (&x)[N]) {
#pragma unroll
  for (int offset = Lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) x[n] += __shfl_xor_sync(kAllLanes, x[n], offset);
  }
}

// A thread's part of a state, over the tokens of its row.
template <class E, int D, class Tile>
struct Rows {
  using Place = RowPlace<E, D, Tile>;
  static constexpr int R = Place::R, C = Place::C, P = Place::P;
  uint4 S[R][C];

  __device__ __forceinline__ void load(const E* from) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < C; ++c) S[r][c] = load16(from + r * Place::kNextRow * D + c * Place::kNextKey);
    }
  }

  // S k and S q of every row, then |q|^2, |k|^2, q . k: adds those of key channels of chunk c.
  __device__ __forceinline__ void add_products(int c, const float (&q)[P], const float (&k)[P], float (&sums)[2 * R + 3]) const {
#pragma unroll
    for (int e = 0; e < P; ++e) {
      sums[2 * R] = fmaf(q[e], q[e], sums[2 * R]);
      sums[2 * R + 1] = fmaf(k[e], k[e], sums[2 * R + 1]);
      sums[2 * R + 2] = fmaf(q[e], k[e], sums[2 * R + 2]);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float x[P];
      unpack(S[r][c], x);
#pragma unroll
      for (int e = 0; e < P; ++e) {
        sums[2 * r] = fmaf(x[e], k[e], sums[2 * r]);
        sums[2 * r + 1] = fmaf(x[e], q[e], sums[2 * r + 1]);
      }
    }
  }

  // The same over all key channels. At head size 128, which several tiles serve, all tiles add in one order: a load is a chain,
  // then half of a row is added to the other half until one sum is left, first in a thread that has both, then over lanes. At
  // other sizes a thread's channels are one chain, which needs fewer registers.
  __device__ __forceinline__ void sum(const float (&q)[C][P], const float (&k)[C][P], float (&sums)[2 * R + 3]) const {
    if constexpr (D == 128 && C > 1) {
      static_assert(C == 2);
      float others[2 * R + 3] = {};
      add_products(0, q[0], k[0], sums);
      add_products(1, q[1], k[1], others);
#pragma unroll
      for (int n = 0; n < 2 * R + 3; ++n) sums[n] += others[n];
    } else {
#pragma unroll
      for (int c = 0; c < C; ++c) add_products(c, q[c], k[c], sums);
    }
    sum_halves<Tile::kLanes>(sums);
  }

  // One token on, here and in memory, where its row of outputs is `row`.
  template <bool Streaming>
  __device__ __forceinline__ void write(const Arguments<E>& p, const Place& at, int64_t row, const float (&sums)[2 * R + 3],
                                        const float (&k)[C][P], const float (&v)[R], const Gates& gate,
                                        const Factors& factor, E* to) {
    float o[R];
    bf16* const out = p.output + (row * p.H + at.h) * D + at.channel;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float u;
      o[r] = read_out(sums[2 * r], sums[2 * r + 1], v[r], gate, factor, p.scale, u);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        float x[P];
        unpack(S[r][c], x);
#pragma unroll
        for (int e = 0; e < P; ++e) x[e] = fmaf(u, k[c][e], gate.alpha * x[e]);
        S[r][c] = pack(x);
        store16<Streaming>(to + r * Place::kNextRow * D + c * Place::kNextKey, S[r][c]);
      }
      if (Place::kWide == 1 && at.key == 0) out[r * Place::kNextRow] = __float2bfloat16_rn(o[r]);
    }
    if constexpr (Place::kWide > 1) {
      if (at.key != 0) return;
#pragma unroll
      for (int r = 0; r < R; r += Place::kWide) store_wide<Place::kWide>(out + r, o + r);
    }
  }
};

template <class E, int D, Slots slots, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) gdn_decode_k_last_kernel(const __grid_constant__ Arguments<E> p) {
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
  if constexpr (slots == Slots::kNone) let_next_start();
  const RawGates raw(p, at.first_token + (kVerify ? min(at.lane, T - 1) : 0), at.h);  // lane t: those of token t

  if constexpr (slots != Slots::kNone) {
    if (!row.finds_source(T, p.num_slots)) {
      if constexpr (kVerify) __pipeline_wait_prior(0);
      write_zeros(p, at, T);
      return;
    }
  }
  keep_order();
  if constexpr (slots == Slots::kPool) let_next_start();
  Rows<E, D, Tile> rows;
  rows.load(p.from + row.source * p.slot_stride + at.part);
  keep_order();
  if constexpr (kVerify) let_next_start();
  if constexpr (slots == Slots::kPool) {
    if (!row.finds_target(p.num_slots)) {
      write_zeros(p, at, T);
      return;
    }
  }

  const Gates gate_of_lane(raw);
  Gates gate = gate_of_lane;
  if constexpr (kVerify) {
    __pipeline_wait_prior(0);
    __syncthreads();
  }

#pragma unroll 1
  for (int t = 0; t < T; ++t) {
    if constexpr (kVerify) {
      token.load(&stage.q[t][at.key], &stage.k[t][at.key], stage.v[t], at.kNextGroup * at.group);
      gate.alpha = __shfl_sync(kAllLanes, gate_of_lane.alpha, t);
      gate.beta = __shfl_sync(kAllLanes, gate_of_lane.beta, t);
    }

    float q[C][P], k[C][P], v[R], sums[2 * R + 3] = {};
    token.widen_to(q, k, v);
    rows.sum(q, k, sums);
    const Factors factor(p.normalise, sums[2 * R], sums[2 * R + 1], sums[2 * R + 2]);
    const int64_t token_at = at.first_token + t;
    E* const to = p.to + row.target(t) * p.slot_stride + at.part;
    rows.template write<kVerify>(p, at, token_at, sums, k, v, gate, factor, to);
  }
}

}  // namespace
