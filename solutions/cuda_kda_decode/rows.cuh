// k_last: S [V, K], a row of S is contiguous in key channels.
#pragma once
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

// Where a block is, and in it a thread.
template <class E, int D, class Tile>
struct RowPlace {
  static constexpr int R = Tile::kRows, C = Tile::kChunks, P = kPer<E>;
  static constexpr int kNextRow = Tile::kTogether ? 1 : Tile::kGroups, kNextKey = Tile::kLanes * P;
  static constexpr int kNextGroup = Tile::kTogether ? R : 1;
  // Value channels of one load of v and one store of the output.
  static constexpr int kWide = !Tile::kTogether ? 1 : R % 4 == 0 ? 4 : R % 2 == 0 ? 2 : 1;
  int tile, h;
  int64_t row;
  int channel;  // a thread's first value channel; the next is kNextRow on
  int key;      // and its first key channel; the next chunk is kNextKey on
  int part;     // in a slot

  __device__ __forceinline__ RowPlace()
      : tile(blockIdx.x % Tile::kTiles),
        h(blockIdx.y * (gridDim.x / Tile::kTiles) + blockIdx.x / Tile::kTiles),
        row(blockIdx.z),
        channel(tile * Tile::kChannels + kNextGroup * static_cast<int>(threadIdx.x / Tile::kLanes)),
        key(P * (threadIdx.x % Tile::kLanes)),
        part((h * D + channel) * D + key) {}
};

// Into L2: the block's part of a state, and the vectors that go with it.
template <Slots slots, class E, int D, class Tile>
__device__ __forceinline__ void bring_rows_near(const Arguments<E>& p, const RowPlace<E, D, Tile>& at) {
  // Vectors by few: lines that all blocks of many heads ask for at once, those of a and b, would be a queue.
  if (threadIdx.x == 0) {
    const int slot = guess_slot<slots>(p);
    if (slots == Slots::kNone || is_slot(slot, p.num_slots)) {
      bring_near(p.from + slot * p.slot_stride + (at.h * D + at.tile * Tile::kChannels) * D,
                 Tile::kChannels * D * sizeof(E));
    }
  } else if (threadIdx.x == 1) {
    bring_near(p.q + at.row * p.qk_stride + blockIdx.y * D, D * sizeof(bf16));
  } else if (threadIdx.x == 2) {
    bring_near(p.k + at.row * p.qk_stride + blockIdx.y * D, D * sizeof(bf16));
  } else if (threadIdx.x == 4 && blockIdx.x + blockIdx.y == 0) {  // lines that all blocks of a row share
    bring_line_near(p.b + at.row * p.H);
    if constexpr (slots != Slots::kNone) bring_line_near(p.write + at.row);
  } else if (threadIdx.x == 5) {
    bring_near(p.a + (at.row * p.H + at.h) * D, D * sizeof(bf16));
  } else if (threadIdx.x == 3 && Tile::kChannels % 8 == 0) {
    bring_near(p.v + at.row * p.v_stride + at.h * D + at.tile * Tile::kChannels, Tile::kChannels * sizeof(bf16));
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

// The output of a row that is skipped.
template <class E, int D, class Tile>
__device__ __forceinline__ void write_zeros(const Arguments<E>& p, const RowPlace<E, D, Tile>& at) {
  for (int n = threadIdx.x; n < Tile::kChannels; n += Tile::kThreads) {
    p.output[(at.row * p.H + at.h) * D + at.tile * Tile::kChannels + n] = __float2bfloat16_rn(0.f);
  }
}

// A thread's part of a state.
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

  // S k and S q of every row, S decayed, then |q|^2, |k|^2, q . k: of this thread's key channels.
  __device__ __forceinline__ void add_products(const float (&q)[C][P], const float (&k)[C][P], const float (&alpha)[C][P],
                                               float (&sums)[2 * R + 3]) const {
    float q_then[C][P], k_then[C][P];
#pragma unroll
    for (int c = 0; c < C; ++c) {
#pragma unroll
      for (int e = 0; e < P; ++e) {
        sums[2 * R] = fmaf(q[c][e], q[c][e], sums[2 * R]);
        sums[2 * R + 1] = fmaf(k[c][e], k[c][e], sums[2 * R + 1]);
        sums[2 * R + 2] = fmaf(q[c][e], k[c][e], sums[2 * R + 2]);
        q_then[c][e] = alpha[c][e] * q[c][e], k_then[c][e] = alpha[c][e] * k[c][e];
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        float x[P];
        unpack(S[r][c], x);
#pragma unroll
        for (int e = 0; e < P; ++e) {
          sums[2 * r] = fmaf(x[e], k_then[c][e], sums[2 * r]);
          sums[2 * r + 1] = fmaf(x[e], q_then[c][e], sums[2 * r + 1]);
        }
      }
    }
  }

  // One token on, in memory.
  __device__ __forceinline__ void write(const Arguments<E>& p, const Place& at, const float (&sums)[2 * R + 3],
                                        const float (&k)[C][P], const float (&v)[R], const float (&alpha)[C][P],
                                        float beta, const Factors& factor, E* to) const {
    float o[R];
    bf16* const out = p.output + (at.row * p.H + at.h) * D + at.channel;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float u;
      o[r] = read_out(sums[2 * r], sums[2 * r + 1], v[r], beta, factor, p.scale, u);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        float x[P];
        unpack(S[r][c], x);
#pragma unroll
        for (int e = 0; e < P; ++e) x[e] = fmaf(u, k[c][e], alpha[c][e] * x[e]);
        store16<false>(to + r * Place::kNextRow * D + c * Place::kNextKey, pack(x));
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
__global__ void __launch_bounds__(Tile::kThreads) kda_decode_k_last_kernel(const __grid_constant__ Arguments<E> p) {
  constexpr int R = Tile::kRows, C = Tile::kChunks, P = kPer<E>;
  __shared__ alignas(16) float alphas[D];
  const RowPlace<E, D, Tile> at;
  bring_rows_near<slots>(p, at);

  // Everything is asked for before anything is waited for; only slots stand in the way of the state.
  wait_for_previous();
  const RowSlots<slots> row(p);
  RowToken<E, D, Tile> token;
  token.load(p.q + at.row * p.qk_stride + blockIdx.y * D + at.key, p.k + at.row * p.qk_stride + blockIdx.y * D + at.key,
             p.v + at.row * p.v_stride + at.h * D, at.channel);
  keep_order();
  if constexpr (slots == Slots::kNone) let_next_start();
  const RawGates<D, Tile::kThreads> gates(p, at.row, at.h);

  // -1 skips a row, and so does a slot that is none. The state is asked for before the slot to write is known.
  if constexpr (slots == Slots::kPool) {
    if (!is_slot(row.source, p.num_slots)) {
      write_zeros(p, at);
      return;
    }
  }
  keep_order();
  if constexpr (slots == Slots::kPool) let_next_start();
  Rows<E, D, Tile> rows;
  rows.load(p.from + row.source * p.slot_stride + at.part);
  keep_order();
  if constexpr (slots == Slots::kPool) {
    if (!is_slot(row.target, p.num_slots)) {
      write_zeros(p, at);
      return;
    }
  }

  // The decays, while the state is on its way: a thread makes one, and the block reads all.
  gates.share_alphas(alphas, p.bounded, p.lower_bound);
  const float beta = gates.beta();
  float q[C][P], k[C][P], v[R], alpha[C][P], sums[2 * R + 3] = {};
  token.widen_to(q, k, v);
  __syncthreads();
#pragma unroll
  for (int c = 0; c < C; ++c) {
#pragma unroll
    for (int e = 0; e < P; e += 4) {
      unpack(load16(alphas + at.key + c * RowPlace<E, D, Tile>::kNextKey + e), reinterpret_cast<float(&)[4]>(alpha[c][e]));
    }
  }
  rows.add_products(q, k, alpha, sums);
  sum_lanes<1, Tile::kLanes>(sums);
  const Factors factor(p.normalise, sums[2 * R], sums[2 * R + 1], sums[2 * R + 2]);
  rows.write(p, at, sums, k, v, alpha, beta, factor, p.to + row.target * p.slot_stride + at.part);
}

}  // namespace
