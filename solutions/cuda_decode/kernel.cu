// The gated delta rule for one token, or a few, of every sequence of a batch: every decode definition.
//
// The state is nearly all of the traffic: D x D elements of every head, read once, written once a token. Each thread
// asks for all of its part of it at once, in 16-byte loads, and holds it in registers. Value channels never mix: every
// block owns some of them, for all key channels, and blocks share nothing.
//
//   k_last   [V, K]: a row of S is contiguous in key channels. A few lanes hold a row, and sum over themselves.
//   k_first  [K, V]: contiguous in value channels. A block holds a strip of them, and sums over its threads.
//
// What waits for the state is kept short. Both sums over key channels, S k and S q, are taken of the state as it was
// read, in one reduction, together with |q|^2, |k|^2 and q . k; norms, decay and the read-out after the write are
// factors and terms of those five: S' q = alpha S q + u (k . q).
//
// float32 throughout; what is written is rounded once.

#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/base.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace {

namespace ffi = tvm::ffi;

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kNormEpsilon = 1e-6f;
constexpr int kMaxTokens = 16;

using bf16 = __nv_bfloat16;

// H: heads of state, gates and output. A query and key head serves H / key_heads value heads: its group.
// The grid is (group * tiles, key_heads, rows), so that no index is divided on the way to the first load.
template <class E>
struct Arguments {
  const bf16 *q, *k, *v;           // the first head of the first token
  int64_t qk_stride, v_stride;     // elements from one token to the next
  const E* from;                   // slots of [H, D, D]; without slots the row is the slot
  E* to;
  int64_t slot_stride;
  const int32_t *read, *write, *accepted;  // [B], [B, T], [B]
  int num_slots;
  const float* A_log;                // [H]
  const bf16 *a, *dt_bias, *b;       // [B, T, H], [H], [B, T, H]
  bf16* output;                      // [B, T, H, D]
  int H, T;
  float scale;
  bool normalise;
};

enum class Slots { kNone, kPool, kVerify };

// --- pieces of both kernels -------------------------------------------------------------------------------------

template <class E>
constexpr int kPer = 16 / sizeof(E);  // elements of a 16-byte access

__device__ __forceinline__ uint4 load16(const void* from) { return *static_cast<const uint4*>(from); }

// `Streaming`: marked as not to be kept in the cache.
template <bool Streaming>
__device__ __forceinline__ void store16(void* to, uint4 x) {
  uint4* at = static_cast<uint4*>(to);
  if (Streaming) {
    __stcs(at, x);
  } else {
    *at = x;
  }
}

// A bfloat16 is the upper half of a float32.
__device__ __forceinline__ void widen(uint32_t pair, float& low, float& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ void unpack(const uint4& x, float (&y)[4]) {
  y[0] = __uint_as_float(x.x), y[1] = __uint_as_float(x.y), y[2] = __uint_as_float(x.z), y[3] = __uint_as_float(x.w);
}

__device__ __forceinline__ void unpack(const uint4& x, float (&y)[8]) {
  widen(x.x, y[0], y[1]), widen(x.y, y[2], y[3]), widen(x.z, y[4], y[5]), widen(x.w, y[6], y[7]);
}

__device__ __forceinline__ uint32_t narrow(float low, float high) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(low))) |
         static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}

__device__ __forceinline__ uint4 pack(const float (&y)[4]) {
  return make_uint4(__float_as_uint(y[0]), __float_as_uint(y[1]), __float_as_uint(y[2]), __float_as_uint(y[3]));
}

__device__ __forceinline__ uint4 pack(const float (&y)[8]) {
  return make_uint4(narrow(y[0], y[1]), narrow(y[2], y[3]), narrow(y[4], y[5]), narrow(y[6], y[7]));
}

// N = 4 or a multiple of 8 consecutive bfloat16, as they are in memory, global or shared. Widened later: to convert is
// to wait for the load, which must not stand before the next one.
template <int N>
struct Packed {
  static_assert(N == 4 || N % 8 == 0);
  static constexpr int kWords = N / 2;
  uint32_t words[kWords];

  __device__ __forceinline__ void load(const bf16* from) {
    if constexpr (N == 4) {
      const uint2 x = *reinterpret_cast<const uint2*>(from);
      words[0] = x.x, words[1] = x.y;
    } else {
#pragma unroll
      for (int n = 0; n < kWords; n += 4) {
        const uint4 x = *reinterpret_cast<const uint4*>(from + 2 * n);
        words[n] = x.x, words[n + 1] = x.y, words[n + 2] = x.z, words[n + 3] = x.w;
      }
    }
  }

  __device__ __forceinline__ void widen_to(float (&to)[N]) const {
#pragma unroll
    for (int n = 0; n < kWords; ++n) widen(words[n], to[2 * n], to[2 * n + 1]);
  }
};

// Each of N sums over the lanes that differ in the bits from `First` up to, and without, `End`. Level by level over all
// of them: shuffles stay in order, and a sum at a time would wait for every one of its own.
template <int First, int End, int N>
__device__ __forceinline__ void sum_lanes(float (&x)[N]) {
#pragma unroll
  for (int offset = First; offset < End; offset *= 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) x[n] += __shfl_xor_sync(kAllLanes, x[n], offset);
  }
}

// As they are in memory: asked for with the rest of a token, so that nothing is waited for twice.
struct RawGates {
  float A_log;
  bf16 a, dt_bias, b;

  template <class E>
  __device__ __forceinline__ RawGates(const Arguments<E>& p, int64_t token, int h)
      : A_log(p.A_log[h]), a(p.a[token * p.H + h]), dt_bias(p.dt_bias[h]), b(p.b[token * p.H + h]) {}
};

// Loads above stay above, and ones below stay below. Left to itself ptxas starts on the gates, and with that waits for
// their loads, before it has asked for the state.
__device__ __forceinline__ void keep_order() { __syncwarp(); }

// Programmatic dependent launch, of sm_90 and later: a kernel may start before the one ahead of it has ended, and waits
// here before it looks at memory.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// The kernel behind may start. Once loads are on their way: earlier, its blocks are in the way of this one's.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Into L2, and nowhere else: asked for before the kernel ahead has ended, and what that one still writes is seen by the
// load all the same. `bytes`: a multiple of 16.
__device__ __forceinline__ void bring_near(const void* from, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes) : "memory");
#endif
}

struct Gates {
  float alpha, beta;

  __device__ __forceinline__ explicit Gates(const RawGates& raw) {
    const float x = __bfloat162float(raw.a) + __bfloat162float(raw.dt_bias);
    const float softplus = fmaxf(x, 0.f) + log1pf(expf(-fabsf(x)));  // no threshold
    alpha = expf(-expf(raw.A_log) * softplus);
    beta = __fdividef(1.f, 1.f + expf(-__bfloat162float(raw.b)));
  }
};

// What a token's key and query amount to, from |q|^2, |k|^2 and q . k as they are in memory.
struct Factors {
  float q, k, product;

  __device__ __forceinline__ Factors(bool normalise, float q_square, float k_square, float dot)
      : q(normalise ? rsqrtf(q_square + kNormEpsilon) : 1.f),
        k(normalise ? rsqrtf(k_square + kNormEpsilon) : 1.f),
        product(dot * q * k) {}
};

// One value channel. `held` and `seen` are S k and S q of the state before its decay, k and q as they are in memory.
// Returns the output; u becomes the factor of k in the write.
__device__ __forceinline__ float read_out(float held, float seen, float v, const Gates& gate, const Factors& factor,
                                          float scale, float& u) {
  u = gate.beta * fmaf(-gate.alpha, held * factor.k, v);  // the error, of the decayed state
  const float o = scale * fmaf(u, factor.product, gate.alpha * (seen * factor.q));
  u *= factor.k;
  return o;
}

__device__ __forceinline__ bool is_slot(int slot, int num_slots) {
  return static_cast<unsigned>(slot) < static_cast<unsigned>(num_slots);
}

// A row's slots. Lane t of every warp knows `mine`, where the state after token t goes; lanes past T know the last.
template <Slots slots>
struct RowSlots {
  int source, mine, accepted;

  template <class E>
  __device__ __forceinline__ RowSlots(const Arguments<E>& p, int T)
      : source(blockIdx.z), mine(blockIdx.z), accepted(0) {
    const int64_t row = blockIdx.z;
    if constexpr (slots != Slots::kNone) {
      mine = p.write[row * T + min(static_cast<int>(threadIdx.x % 32), T - 1)];
      source = p.read[row];
    }
    if constexpr (slots == Slots::kVerify) accepted = p.accepted[row];
  }

  // Whether the row is live; if so, `source` is what it reads. -1 skips a row, and so does a slot that is none. All
  // lanes call it.
  __device__ __forceinline__ bool resolve(int T, int num_slots) {
    if constexpr (slots == Slots::kNone) return true;
    const bool live = __all_sync(kAllLanes, is_slot(mine, num_slots) && is_slot(source, num_slots));
    if constexpr (slots == Slots::kPool) return live;
    const int reached = __shfl_sync(kAllLanes, mine, (accepted - 1) & 31);
    if (accepted != 0) source = reached;
    return live && accepted >= 0 && accepted <= T;
  }

  __device__ __forceinline__ int target(int t) const {
    return slots == Slots::kVerify ? __shfl_sync(kAllLanes, mine, t) : mine;
  }
};

// What a row will read, if the kernel ahead writes no slots any more: a guess, for `bring_near`. Out of range: no guess.
template <Slots slots, class E>
__device__ __forceinline__ int guess_slot(const Arguments<E>& p, int T) {
  const int64_t row = blockIdx.z;
  if constexpr (slots == Slots::kNone) return static_cast<int>(row);
  const auto peek = [](const int32_t* at) { return *const_cast<const volatile int32_t*>(at); };
  if constexpr (slots == Slots::kVerify) {
    const int accepted = peek(p.accepted + row);
    if (accepted > 0 && accepted <= T) return peek(p.write + row * T + accepted - 1);
  }
  return peek(p.read + row);
}

// --- k_last: S [V, K] -------------------------------------------------------------------------------------------

// `Lanes`: side by side in a row. `Loads`: 16-byte loads of the state a thread. `Warps`: of a block, where a head has
// rows for so many. `Ahead`: whether the state is brought near.
template <class E, int D, int Lanes, int Loads, int Warps, bool Ahead>
struct RowTile {
  static constexpr bool kAhead = Ahead;
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

template <class E, int D, Slots slots, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) gdn_decode_k_last_kernel(const __grid_constant__ Arguments<E> p) {
  constexpr bool kVerify = slots == Slots::kVerify;
  constexpr int R = Tile::kRows, C = Tile::kChunks, P = kPer<E>;
  constexpr int kNextRow = Tile::kGroups, kNextKey = Tile::kLanes * P;
  const int T = kVerify ? p.T : 1;
  const int tile = blockIdx.x % Tile::kTiles;
  const int h = blockIdx.y * (gridDim.x / Tile::kTiles) + blockIdx.x / Tile::kTiles;
  const int64_t first_token = static_cast<int64_t>(blockIdx.z) * T;
  const int lane = threadIdx.x % 32;
  const int group = threadIdx.x / Tile::kLanes;
  const int channel = tile * Tile::kChannels + group;  // a thread's first value channel; the next is kNextRow on
  const int key = P * (threadIdx.x % Tile::kLanes);    // and its first key channel; the next chunk is kNextKey on
  const int part = (h * D + channel) * D + key;        // in a slot

  if constexpr (Tile::kAhead) {
    // Vectors by few: lines that all blocks of many heads ask for at once, those of a and b, would be a queue.
    if (threadIdx.x == 0) {
      const int slot = guess_slot<slots>(p, T);
      if (slots == Slots::kNone || is_slot(slot, p.num_slots)) {
        bring_near(p.from + slot * p.slot_stride + (h * D + tile * Tile::kChannels) * D, Tile::kChannels * D * sizeof(E));
      }
    } else if (threadIdx.x == 1) {
      bring_near(p.q + first_token * p.qk_stride + blockIdx.y * D, D * sizeof(bf16));
    } else if (threadIdx.x == 2) {
      bring_near(p.k + first_token * p.qk_stride + blockIdx.y * D, D * sizeof(bf16));
    } else if (threadIdx.x == 4 && blockIdx.x + blockIdx.y == 0) {  // lines that all blocks of a row share
      asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p.a + first_token * p.H)));
      asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p.b + first_token * p.H)));
    } else if (threadIdx.x == 3 && Tile::kChannels % 8 == 0) {
      bring_near(p.v + first_token * p.v_stride + h * D + tile * Tile::kChannels, Tile::kChannels * sizeof(bf16));
    }
  }

  // Everything is asked for before anything is waited for; only slots stand in the way of the state.
  wait_for_previous();
  RowSlots<slots> row(p, T);
  const bf16* q_at = p.q + first_token * p.qk_stride + blockIdx.y * D;
  const bf16* k_at = p.k + first_token * p.qk_stride + blockIdx.y * D;
  const bf16* v_at = p.v + first_token * p.v_stride + h * D;
  float q[C][P], k[C][P], v[R];
  Packed<P> q_raw[C], k_raw[C];
  bf16 v_raw[R];
  __shared__ std::conditional_t<kVerify, Stage<D, Tile::kChannels>, char> stage;
  if constexpr (kVerify) {
    // In pieces of 16 bytes.
    constexpr int kOfKeys = D / 8, kOfValues = Tile::kChannels / 8, kOfToken = 2 * kOfKeys + kOfValues;
    static_assert(Tile::kChannels % 8 == 0);
#pragma unroll 1
    for (int n = threadIdx.x; n < T * kOfToken; n += Tile::kThreads) {
      const int t = n / kOfToken, at = n % kOfToken;
      if (at < kOfKeys) {
        __pipeline_memcpy_async(&stage.q[t][8 * at], q_at + t * p.qk_stride + 8 * at, 16);
      } else if (at < 2 * kOfKeys) {
        __pipeline_memcpy_async(&stage.k[t][8 * (at - kOfKeys)], k_at + t * p.qk_stride + 8 * (at - kOfKeys), 16);
      } else {
        const int i = 8 * (at - 2 * kOfKeys);
        __pipeline_memcpy_async(&stage.v[t][i], v_at + t * p.v_stride + tile * Tile::kChannels + i, 16);
      }
    }
    __pipeline_commit();
  } else {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      q_raw[c].load(q_at + key + c * kNextKey);
      k_raw[c].load(k_at + key + c * kNextKey);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) v_raw[r] = v_at[channel + r * kNextRow];
  }
  keep_order();
  const RawGates raw(p, first_token + (kVerify ? min(lane, T - 1) : 0), h);  // lane t: those of token t

  if constexpr (slots != Slots::kNone) {
    if (!row.resolve(T, p.num_slots)) {
      if constexpr (kVerify) __pipeline_wait_prior(0);
      for (int n = threadIdx.x; n < T * Tile::kChannels; n += Tile::kThreads) {
        const int t = n / Tile::kChannels, i = tile * Tile::kChannels + n % Tile::kChannels;
        p.output[((first_token + t) * p.H + h) * D + i] = __float2bfloat16_rn(0.f);
      }
      return;
    }
  }
  keep_order();
  uint4 S[R][C];
  const E* from = p.from + row.source * p.slot_stride + part;
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int c = 0; c < C; ++c) S[r][c] = load16(from + r * kNextRow * D + c * kNextKey);
  }
  keep_order();
  let_next_start();

  const Gates gate_of_lane(raw);
  Gates gate = gate_of_lane;
  if constexpr (kVerify) {
    __pipeline_wait_prior(0);
    __syncthreads();
  }

#pragma unroll 1
  for (int t = 0; t < T; ++t) {
    if constexpr (kVerify) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        q_raw[c].load(&stage.q[t][key + c * kNextKey]);
        k_raw[c].load(&stage.k[t][key + c * kNextKey]);
      }
#pragma unroll
      for (int r = 0; r < R; ++r) v_raw[r] = stage.v[t][group + r * kNextRow];
      gate.alpha = __shfl_sync(kAllLanes, gate_of_lane.alpha, t);
      gate.beta = __shfl_sync(kAllLanes, gate_of_lane.beta, t);
    }

#pragma unroll
    for (int c = 0; c < C; ++c) q_raw[c].widen_to(q[c]), k_raw[c].widen_to(k[c]);
#pragma unroll
    for (int r = 0; r < R; ++r) v[r] = __bfloat162float(v_raw[r]);
    float sums[2 * R + 3] = {};  // S k and S q of every row, then |q|^2, |k|^2, q . k
#pragma unroll
    for (int c = 0; c < C; ++c) {
#pragma unroll
      for (int e = 0; e < P; ++e) {
        sums[2 * R] = fmaf(q[c][e], q[c][e], sums[2 * R]);
        sums[2 * R + 1] = fmaf(k[c][e], k[c][e], sums[2 * R + 1]);
        sums[2 * R + 2] = fmaf(q[c][e], k[c][e], sums[2 * R + 2]);
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
          sums[2 * r] = fmaf(x[e], k[c][e], sums[2 * r]);
          sums[2 * r + 1] = fmaf(x[e], q[c][e], sums[2 * r + 1]);
        }
      }
    }
    sum_lanes<1, Tile::kLanes>(sums);
    const Factors factor(p.normalise, sums[2 * R], sums[2 * R + 1], sums[2 * R + 2]);

    const int64_t token = first_token + t;
    E* to = p.to + row.target(t) * p.slot_stride + part;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float u;
      const float o = read_out(sums[2 * r], sums[2 * r + 1], v[r], gate, factor, p.scale, u);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        float x[P];
        unpack(S[r][c], x);
#pragma unroll
        for (int e = 0; e < P; ++e) x[e] = fmaf(u, k[c][e], gate.alpha * x[e]);
        S[r][c] = pack(x);
        store16<kVerify>(to + r * kNextRow * D + c * kNextKey, S[r][c]);
      }
      if (key == 0) p.output[(token * p.H + h) * D + channel + r * kNextRow] = __float2bfloat16_rn(o);
    }
  }
}

// --- k_first: S [K, V] ------------------------------------------------------------------------------------------

// `Lanes`: side by side in a row of the state, 16 bytes each; 8 are a line. `Loads`: a thread's key channels. `Ahead`:
// whether the state is brought near.
template <class E, int D, int Lanes, int Loads, bool Ahead>
struct ColumnTile {
  static constexpr bool kAhead = Ahead;
  static constexpr int kLanes = Lanes * kPer<E> <= D ? Lanes : D / kPer<E>;
  static constexpr int kChannels = kLanes * kPer<E>;  // value channels of a block
  static constexpr int kTiles = D / kChannels;
  static constexpr int kKeyLanes = 32 / kLanes;
  static constexpr int kLoads = kKeyLanes * Loads <= D ? Loads : D / kKeyLanes;
  static constexpr int kWarps = D / (kKeyLanes * kLoads);
  static constexpr int kThreads = 32 * kWarps;
  static_assert(kWarps * kKeyLanes * kLoads == D && kTiles * kChannels == D);
};

template <class E, int D, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) gdn_decode_k_first_kernel(const __grid_constant__ Arguments<E> p) {
  constexpr int N = Tile::kLoads, P = kPer<E>, W = Tile::kWarps;
  const int tile = blockIdx.x % Tile::kTiles;
  const int h = blockIdx.y * (gridDim.x / Tile::kTiles) + blockIdx.x / Tile::kTiles;
  const int64_t row = blockIdx.z;
  const int i = tile * Tile::kChannels + P * (threadIdx.x % Tile::kLanes);  // first of P value channels
  const int key = N * (threadIdx.x / Tile::kLanes);                         // first of N key channels
  const int64_t part = row * p.slot_stride + (h * D + key) * D + i;

  if constexpr (Tile::kAhead) {
    const E* const strip = p.from + row * p.slot_stride + static_cast<int64_t>(h) * D * D + tile * Tile::kChannels;
#pragma unroll 1
    for (int n = threadIdx.x; n < D; n += Tile::kThreads) bring_near(strip + n * D, Tile::kChannels * sizeof(E));
    if (threadIdx.x == 0) {
      bring_near(p.q + row * p.qk_stride + blockIdx.y * D, D * sizeof(bf16));
    } else if (threadIdx.x == 1) {
      bring_near(p.k + row * p.qk_stride + blockIdx.y * D, D * sizeof(bf16));
    } else if (threadIdx.x == 2) {
      bring_near(p.v + row * p.v_stride + h * D + tile * Tile::kChannels, Tile::kChannels * sizeof(bf16));
    }
  }

  wait_for_previous();
  float q[N], k[N], v[P];
  Packed<N> q_raw, k_raw;
  Packed<P> v_raw;
  q_raw.load(p.q + row * p.qk_stride + blockIdx.y * D + key);
  k_raw.load(p.k + row * p.qk_stride + blockIdx.y * D + key);
  v_raw.load(p.v + row * p.v_stride + h * D + i);
  keep_order();
  const RawGates raw(p, row, h);
  keep_order();
  uint4 S[N];  // under key channels key .. key + N - 1
#pragma unroll
  for (int n = 0; n < N; ++n) S[n] = load16(p.from + part + n * D);
  keep_order();
  let_next_start();

  const Gates gate(raw);
  q_raw.widen_to(q), k_raw.widen_to(k), v_raw.widen_to(v);

  float sums[2 * P + 3] = {};  // S k of every channel, S q of every channel, then |q|^2, |k|^2, q . k
#pragma unroll
  for (int n = 0; n < N; ++n) {
    sums[2 * P] = fmaf(q[n], q[n], sums[2 * P]);
    sums[2 * P + 1] = fmaf(k[n], k[n], sums[2 * P + 1]);
    sums[2 * P + 2] = fmaf(q[n], k[n], sums[2 * P + 2]);
  }
#pragma unroll
  for (int n = 0; n < N; ++n) {
    float x[P];
    unpack(S[n], x);
#pragma unroll
    for (int e = 0; e < P; ++e) {
      sums[e] = fmaf(x[e], k[n], sums[e]);
      sums[P + e] = fmaf(x[e], q[n], sums[P + e]);
    }
  }
  sum_lanes<Tile::kLanes, 32>(sums);
  if constexpr (W > 1) {  // over the warps, in their order
    constexpr int kParts = (2 * P + 4) / 4;
    __shared__ float4 partial[W][kParts][Tile::kLanes];
    const int column = threadIdx.x % Tile::kLanes;
    if (threadIdx.x % 32 < Tile::kLanes) {
#pragma unroll
      for (int n = 0; n < kParts; ++n) {
        partial[threadIdx.x / 32][n][column] =
            make_float4(sums[4 * n], sums[4 * n + 1], sums[4 * n + 2], n < kParts - 1 ? sums[4 * n + 3] : 0.f);
      }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
      float4 sum = partial[0][n][column];
#pragma unroll
      for (int w = 1; w < W; ++w) {
        const float4 x = partial[w][n][column];
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
      }
      sums[4 * n] = sum.x, sums[4 * n + 1] = sum.y, sums[4 * n + 2] = sum.z;
      if (n < kParts - 1) sums[4 * n + 3] = sum.w;
    }
  }
  const Factors factor(p.normalise, sums[2 * P], sums[2 * P + 1], sums[2 * P + 2]);

  float u[P], o[P];
#pragma unroll
  for (int e = 0; e < P; ++e) o[e] = read_out(sums[e], sums[P + e], v[e], gate, factor, p.scale, u[e]);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    float x[P];
    unpack(S[n], x);
#pragma unroll
    for (int e = 0; e < P; ++e) x[e] = fmaf(u[e], k[n], gate.alpha * x[e]);
    store16<false>(p.to + part + n * D, pack(x));
  }
  if (threadIdx.x < Tile::kLanes) {
    uint2* out = reinterpret_cast<uint2*>(p.output + (row * p.H + h) * D + i);
#pragma unroll
    for (int n = 0; n < P / 4; ++n) {
      out[n] = make_uint2(narrow(o[4 * n], o[4 * n + 1]), narrow(o[4 * n + 2], o[4 * n + 3]));
    }
  }
}

// --- launches ---------------------------------------------------------------------------------------------------

template <class E>
void start(void (*kernel)(Arguments<E>), const Arguments<E>& p, dim3 grid, int threads, cudaStream_t stream) {
  // Of the first device: the module is built for one architecture.
  static const bool has_early_launch = [] {
    int major = 0;
    TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major >= 9;
  }();
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(threads), config.stream = stream;
  config.attrs = &early, config.numAttrs = has_early_launch ? 1 : 0;
  TVM_FFI_CHECK_CUDA_ERROR(cudaLaunchKernelEx(&config, kernel, p));
}

template <class Tile>
dim3 grid_of(dim3 heads) {
  return dim3(heads.x * Tile::kTiles, heads.y, heads.z);
}

template <class E, int D, Slots slots, int Lanes, int Loads, int Warps, bool Ahead>
void launch_rows(const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  using Tile = RowTile<E, D, Lanes, Loads, Warps, Ahead>;
  start<E>(gdn_decode_k_last_kernel<E, D, slots, Tile>, p, grid_of<Tile>(heads), Tile::kThreads, stream);
}

template <class E, int D, int Lanes, int Loads, bool Ahead>
void launch_columns(const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  using Tile = ColumnTile<E, D, Lanes, Loads, Ahead>;
  start<E>(gdn_decode_k_first_kernel<E, D, Tile>, p, grid_of<Tile>(heads), Tile::kThreads, stream);
}

constexpr int64_t kMiB = int64_t{1} << 20;

// The place to tune: lanes in a row, loads a thread, warps a block, whether the state is brought near; for an H200.
// `bytes`: of all states that are read.
template <class E, int D, Slots slots>
void launch_k_last(int64_t bytes, const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  if constexpr (slots == Slots::kVerify) {
    launch_rows<E, D, slots, 16, 4, 8, true>(p, heads, stream);  // the warps of a block share the tokens that it stages
  } else if constexpr (sizeof(E) == 2) {
    if (bytes <= 32 * kMiB) {
      launch_rows<E, D, slots, 8, 8, 4, true>(p, heads, stream);
    } else {
      launch_rows<E, D, slots, 8, 8, 1, false>(p, heads, stream);
    }
  } else if constexpr (slots == Slots::kPool) {
    if (bytes <= 2 * kMiB) {
      launch_rows<E, D, slots, 16, 4, 2, true>(p, heads, stream);
    } else {
      launch_rows<E, D, slots, 16, 4, 2, false>(p, heads, stream);
    }
  } else if (bytes <= 4 * kMiB) {
    launch_rows<E, D, slots, 8, 8, 4, true>(p, heads, stream);
  } else if (bytes <= 8 * kMiB) {
    launch_rows<E, D, slots, 32, 8, 8, true>(p, heads, stream);
  } else if (bytes <= 16 * kMiB) {
    launch_rows<E, D, slots, 8, 16, 8, false>(p, heads, stream);
  } else {
    launch_rows<E, D, slots, 16, 2, 4, false>(p, heads, stream);
  }
}

// The same: lanes in a row, loads a thread, whether the state is brought near.
template <class E, int D>
void launch_k_first(int64_t bytes, const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  if constexpr (sizeof(E) == 2) {
    if (bytes <= 8 * kMiB) {
      launch_columns<E, D, 8, 8, true>(p, heads, stream);
    } else {
      launch_columns<E, D, 8, 8, false>(p, heads, stream);
    }
  } else if (bytes <= 8 * kMiB) {
    launch_columns<E, D, 16, 16, true>(p, heads, stream);
  } else if (bytes <= 64 * kMiB) {
    launch_columns<E, D, 16, 16, false>(p, heads, stream);
  } else {
    launch_columns<E, D, 16, 8, true>(p, heads, stream);
  }
}

// --- host -------------------------------------------------------------------------------------------------------

constexpr DLDataType kBFloat16{kDLBfloat, 16, 1};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};
constexpr DLDataType kInt32{kDLInt, 32, 1};

const char* name_of(DLDataType x) {
  if (x.lanes != 1) return "a vector type";
  if (x.code == kDLBfloat && x.bits == 16) return "bfloat16";
  if (x.code == kDLFloat && x.bits == 32) return "float32";
  if (x.code == kDLInt && x.bits == 32) return "int32";
  return "of another type";
}

bool same(DLDataType x, DLDataType y) { return x.code == y.code && x.bits == y.bits && x.lanes == y.lanes; }

// `alignment`, in bytes: what the widest access of the kernels to this tensor needs.
struct Requirements {
  DLDevice device;

  void operator()(const char* name, const ffi::TensorView& x, DLDataType dtype, unsigned alignment,
                  std::initializer_list<int64_t> shape) const {
    place(name, x, dtype, alignment);
    TVM_FFI_CHECK(x.ndim() == static_cast<int32_t>(shape.size()), ValueError)
        << name << " has " << x.ndim() << " dimensions, not " << shape.size();
    int64_t dense = 1;
    bool contiguous = true;
    for (int32_t i = x.ndim() - 1; i >= 0; --i) {
      const int64_t size = x.size(i);
      TVM_FFI_CHECK(size == shape.begin()[i], ValueError)
          << name << " has size " << size << " in dimension " << i << ", not " << shape.begin()[i];
      contiguous &= size == 1 || x.stride(i) == dense;
      dense *= size;
    }
    TVM_FFI_CHECK(contiguous || dense == 0, ValueError) << name << " is not contiguous";
  }

  void place(const char* name, const ffi::TensorView& x, DLDataType dtype, unsigned alignment) const {
    TVM_FFI_CHECK(same(x.dtype(), dtype), ValueError)
        << name << " is " << name_of(x.dtype()) << ", not " << name_of(dtype);
    TVM_FFI_CHECK(x.device().device_type == kDLCUDA && x.device().device_id == device.device_id, ValueError)
        << name << " is not on the GPU that holds the state";
    TVM_FFI_CHECK(x.numel() == 0 || reinterpret_cast<uintptr_t>(x.data_ptr()) % alignment == 0, ValueError)
        << name << " does not start at a multiple of " << alignment << " bytes";
  }
};

// The sizes that all definitions share.
struct Sizes {
  int64_t rows, T, key_heads, H, D;

  Sizes(int64_t rows, int64_t T, int64_t key_heads, int64_t H, int64_t D)
      : rows(rows), T(T), key_heads(key_heads), H(H), D(D) {
    TVM_FFI_CHECK(D == 64 || D == 128 || D == 256, ValueError)
        << "head_size " << D << " is not served: 64, 128 and 256 are";
    TVM_FFI_CHECK(key_heads > 0 && H % key_heads == 0, ValueError)
        << "num_q_heads " << key_heads << " does not divide num_v_heads " << H;
    TVM_FFI_CHECK(T >= 1 && T <= kMaxTokens, ValueError)
        << T << " tokens a row are not served: 1 to " << kMaxTokens << " are";
    TVM_FFI_CHECK(rows <= 65535 && key_heads <= 65535 && H <= 32767, ValueError)
        << "a batch of " << rows << " rows and " << H << " heads is not served: 65535 and 32767 are the most";
  }
};

void require_dimensions(const char* name, const ffi::TensorView& x, int32_t count) {
  TVM_FFI_CHECK(x.ndim() == count, ValueError) << name << " has " << x.ndim() << " dimensions, not " << count;
}

// What every definition has.
template <class E>
Arguments<E> arguments(const Requirements& require, const Sizes& n, ffi::TensorView A_log, ffi::TensorView dt_bias,
                       ffi::Optional<double> scale, ffi::Optional<bool> use_qk_l2norm) {
  require("A_log", A_log, kFloat32, 4, {n.H});
  require("dt_bias", dt_bias, kBFloat16, 2, {n.H});
  Arguments<E> p{};
  p.A_log = static_cast<const float*>(A_log.data_ptr());
  p.dt_bias = static_cast<const bf16*>(dt_bias.data_ptr());
  p.H = static_cast<int>(n.H);
  p.T = static_cast<int>(n.T);
  p.scale = static_cast<float>(scale.has_value() ? scale.value() : 1.0 / std::sqrt(static_cast<double>(n.D)));
  p.normalise = use_qk_l2norm.has_value() ? use_qk_l2norm.value() : true;
  return p;
}

// Tokens in tensors of their own, [B, T, heads, D].
template <class E>
void take_tokens(Arguments<E>& p, const Requirements& require, const Sizes& n, ffi::TensorView q, ffi::TensorView k,
                 ffi::TensorView v, ffi::TensorView a, ffi::TensorView b, ffi::TensorView output) {
  require("q", q, kBFloat16, 16, {n.rows, n.T, n.key_heads, n.D});
  require("k", k, kBFloat16, 16, {n.rows, n.T, n.key_heads, n.D});
  require("v", v, kBFloat16, 16, {n.rows, n.T, n.H, n.D});
  require("a", a, kBFloat16, 2, {n.rows, n.T, n.H});
  require("b", b, kBFloat16, 2, {n.rows, n.T, n.H});
  require("output", output, kBFloat16, 8, {n.rows, n.T, n.H, n.D});
  p.q = static_cast<const bf16*>(q.data_ptr());
  p.k = static_cast<const bf16*>(k.data_ptr());
  p.v = static_cast<const bf16*>(v.data_ptr());
  p.a = static_cast<const bf16*>(a.data_ptr());
  p.b = static_cast<const bf16*>(b.data_ptr());
  p.output = static_cast<bf16*>(output.data_ptr());
  p.qk_stride = n.key_heads * n.D;
  p.v_stride = n.H * n.D;
}

template <class E>
void take_states(Arguments<E>& p, const Requirements& require, const Sizes& n, ffi::TensorView state,
                 ffi::TensorView new_state) {
  require("state", state, state.dtype(), 16, {n.rows, n.H, n.D, n.D});
  require("new_state", new_state, state.dtype(), 16, {n.rows, n.H, n.D, n.D});
  p.from = static_cast<const E*>(state.data_ptr());
  p.to = static_cast<E*>(new_state.data_ptr());
  p.slot_stride = n.H * n.D * n.D;
}

cudaStream_t stream_of(DLDevice device) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

template <class E, bool KFirst, Slots slots>
void launch(const Arguments<E>& p, const Sizes& n, DLDevice device) {
  if (n.rows == 0 || n.H == 0) return;  // an empty grid is an error
  const ffi::CUDADeviceGuard guard(device.device_id);
  const cudaStream_t stream = stream_of(device);
  const dim3 heads(static_cast<unsigned>(n.H / n.key_heads), static_cast<unsigned>(n.key_heads),
                   static_cast<unsigned>(n.rows));
  const int64_t bytes = n.rows * n.H * n.D * n.D * sizeof(E);
  const auto launch_for = [&](auto size) {
    if constexpr (KFirst) {
      launch_k_first<E, size.value>(bytes, p, heads, stream);
    } else {
      launch_k_last<E, size.value, slots>(bytes, p, heads, stream);
    }
  };
  switch (n.D) {
    case 64: launch_for(std::integral_constant<int, 64>{}); break;
    case 128: launch_for(std::integral_constant<int, 128>{}); break;
    default: launch_for(std::integral_constant<int, 256>{});
  }
}

// Calls `f` with a value of the type of the states' elements.
template <class F>
void by_element(const char* name, const ffi::TensorView& x, F f) {
  if (same(x.dtype(), kFloat32)) return f(float{});
  TVM_FFI_CHECK(same(x.dtype(), kBFloat16), ValueError)
      << name << " is " << name_of(x.dtype()) << ", neither float32 nor bfloat16";
  f(bf16{});
}

// --- dense states -----------------------------------------------------------------------------------------------

template <bool KFirst>
void decode(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, ffi::TensorView state, ffi::TensorView A_log,
            ffi::TensorView a, ffi::TensorView dt_bias, ffi::TensorView b, ffi::Optional<double> scale,
            ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output, ffi::TensorView new_state) {
  require_dimensions("state", state, 4);
  require_dimensions("q", q, 4);
  const Sizes n(state.size(0), 1, q.size(2), state.size(1), state.size(3));
  const Requirements require{state.device()};
  by_element("state", state, [&](auto element) {
    auto p = arguments<decltype(element)>(require, n, A_log, dt_bias, scale, use_qk_l2norm);
    take_tokens(p, require, n, q, k, v, a, b, output);
    take_states(p, require, n, state, new_state);
    launch<decltype(element), KFirst, Slots::kNone>(p, n, require.device);
  });
}

// mixed_qkv [B, (2 key_heads + H) D]: one row holds the heads of q, of k and of v.
void decode_packed(ffi::TensorView mixed_qkv, ffi::TensorView state, ffi::TensorView A_log, ffi::TensorView a,
                   ffi::TensorView dt_bias, ffi::TensorView b, ffi::Optional<double> scale,
                   ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output, ffi::TensorView new_state) {
  require_dimensions("state", state, 4);
  require_dimensions("mixed_qkv", mixed_qkv, 2);
  const int64_t H = state.size(1), D = state.size(3), length = mixed_qkv.size(1), keys = length - H * D;
  TVM_FFI_CHECK(D > 0 && keys > 0 && keys % (2 * D) == 0, ValueError)
      << "a row of mixed_qkv has " << length << " elements: " << H << " value heads leave no whole q and k";
  const Sizes n(state.size(0), 1, keys / (2 * D), H, D);
  const Requirements require{state.device()};
  require("mixed_qkv", mixed_qkv, kBFloat16, 16, {n.rows, length});
  require("a", a, kBFloat16, 2, {n.rows, n.H});
  require("b", b, kBFloat16, 2, {n.rows, n.H});
  require("output", output, kBFloat16, 8, {n.rows, n.H, n.D});
  require.place("state", state, kFloat32, 16);
  auto p = arguments<float>(require, n, A_log, dt_bias, scale, use_qk_l2norm);
  p.q = static_cast<const bf16*>(mixed_qkv.data_ptr());
  p.k = p.q + n.key_heads * n.D;
  p.v = p.k + n.key_heads * n.D;
  p.a = static_cast<const bf16*>(a.data_ptr());
  p.b = static_cast<const bf16*>(b.data_ptr());
  p.output = static_cast<bf16*>(output.data_ptr());
  p.qk_stride = p.v_stride = length;
  take_states(p, require, n, state, new_state);
  launch<float, false, Slots::kNone>(p, n, require.device);
}

// --- pools ------------------------------------------------------------------------------------------------------

// For debugging: with GDNSPEC_DEBUG=1 a call waits for the slots and checks what the definitions ask of them. Without,
// the kernel takes them on trust but for their range. `names`: of read, write.
template <class E>
void check_slots(const Arguments<E>& p, const Sizes& n, DLDevice device, const char* const (&names)[2]) {
  static const char* given = std::getenv("GDNSPEC_DEBUG");
  if (given == nullptr || given[0] != '1' || given[1] != '\0') return;
  const ffi::CUDADeviceGuard guard(device.device_id);
  const auto copy = [&](const int32_t* from, int64_t count) {
    std::vector<int32_t> to(count, 0);
    if (from == nullptr) return to;
    TVM_FFI_CHECK_CUDA_ERROR(
        cudaMemcpyAsync(to.data(), from, count * sizeof(int32_t), cudaMemcpyDeviceToHost, stream_of(device)));
    TVM_FFI_CHECK_CUDA_ERROR(cudaStreamSynchronize(stream_of(device)));
    return to;
  };
  const auto read = copy(p.read, n.rows), write = copy(p.write, n.rows * n.T), accepted = copy(p.accepted, n.rows);
  std::unordered_map<int32_t, int64_t> writer;  // slot -> row
  for (int64_t row = 0; row < n.rows; ++row) {
    TVM_FFI_CHECK(read[row] >= -1 && read[row] < p.num_slots, ValueError)
        << names[0] << " names slot " << read[row] << "; there are " << p.num_slots;
    TVM_FFI_CHECK(accepted[row] >= 0 && accepted[row] <= n.T, ValueError)
        << "accepted[" << row << "] is " << accepted[row] << "; a row has " << n.T << " tokens";
    for (int64_t t = 0; t < n.T; ++t) {
      const int32_t slot = write[row * n.T + t];
      TVM_FFI_CHECK(slot >= -1 && slot < p.num_slots, ValueError)
          << names[1] << " names slot " << slot << "; there are " << p.num_slots;
      TVM_FFI_CHECK((slot == -1) == (read[row] == -1), ValueError)
          << "row " << row << " is skipped by some of its slots and not by others";
      TVM_FFI_CHECK(slot == -1 || writer.emplace(slot, row).second, ValueError)
          << names[1] << " names slot " << slot << " twice";
    }
  }
  for (int64_t row = 0; row < n.rows; ++row) {
    const int32_t source = accepted[row] == 0 ? read[row] : write[row * n.T + accepted[row] - 1];
    const auto found = writer.find(source);
    TVM_FFI_CHECK(found == writer.end() || found->second == row, ValueError)
        << "row " << row << " reads slot " << source << ", which another row writes";
  }
}

template <class E, Slots slots>
void in_pool(const Sizes& n, ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, ffi::TensorView pool,
             ffi::TensorView read, ffi::TensorView write, const ffi::TensorView* accepted, ffi::TensorView A_log,
             ffi::TensorView a, ffi::TensorView dt_bias, ffi::TensorView b, ffi::Optional<double> scale,
             ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output, const char* const (&names)[2]) {
  const Requirements require{pool.device()};
  auto p = arguments<E>(require, n, A_log, dt_bias, scale, use_qk_l2norm);
  take_tokens(p, require, n, q, k, v, a, b, output);
  require.place("pool", pool, pool.dtype(), 16);
  const int64_t of_slot = n.H * n.D * n.D, stride = pool.stride(0);
  TVM_FFI_CHECK(pool.size(2) == n.D, ValueError) << "pool has size " << pool.size(2) << " in dimension 2, not " << n.D;
  TVM_FFI_CHECK(pool.stride(3) == 1 && pool.stride(2) == n.D && (pool.stride(1) == n.D * n.D || n.H == 1), ValueError)
      << "pool is not contiguous within a slot";
  TVM_FFI_CHECK(pool.size(0) <= 1 || (stride >= of_slot && stride * sizeof(E) % 16 == 0), ValueError)
      << "pool has " << stride << " elements from slot to slot: it must be " << of_slot << " or more, in steps of "
      << 16 / sizeof(E);
  TVM_FFI_CHECK(pool.size(0) <= INT32_MAX, ValueError) << "pool has " << pool.size(0) << " slots, past 32 bits";
  require(names[0], read, kInt32, 4, {n.rows});
  if (accepted == nullptr) {
    require(names[1], write, kInt32, 4, {n.rows});
  } else {
    require(names[1], write, kInt32, 4, {n.rows, n.T});
    require("accepted", *accepted, kInt32, 4, {n.rows});
    p.accepted = static_cast<const int32_t*>(accepted->data_ptr());
  }
  p.from = p.to = static_cast<E*>(pool.data_ptr());
  p.slot_stride = stride;
  p.num_slots = static_cast<int>(pool.size(0));
  p.read = static_cast<const int32_t*>(read.data_ptr());
  p.write = static_cast<const int32_t*>(write.data_ptr());
  check_slots(p, n, require.device, names);
  launch<E, false, slots>(p, n, require.device);
}

void decode_pool(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, ffi::TensorView pool,
                 ffi::TensorView read_slots, ffi::TensorView write_slots, ffi::TensorView A_log, ffi::TensorView a,
                 ffi::TensorView dt_bias, ffi::TensorView b, ffi::Optional<double> scale,
                 ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output) {
  require_dimensions("pool", pool, 4);
  require_dimensions("q", q, 4);
  const Sizes n(q.size(0), 1, q.size(2), pool.size(1), pool.size(3));
  by_element("pool", pool, [&](auto element) {
    in_pool<decltype(element), Slots::kPool>(n, q, k, v, pool, read_slots, write_slots, nullptr, A_log, a, dt_bias, b,
                                             scale, use_qk_l2norm, output, {"read_slots", "write_slots"});
  });
}

void verify(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, ffi::TensorView pool,
            ffi::TensorView initial_slots, ffi::TensorView state_slots, ffi::TensorView accepted,
            ffi::TensorView A_log, ffi::TensorView a, ffi::TensorView dt_bias, ffi::TensorView b,
            ffi::Optional<double> scale, ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output) {
  require_dimensions("pool", pool, 4);
  require_dimensions("q", q, 4);
  const Sizes n(q.size(0), q.size(1), q.size(2), pool.size(1), pool.size(3));
  const Requirements require{pool.device()};
  require.place("pool", pool, kFloat32, 16);
  in_pool<float, Slots::kVerify>(n, q, k, v, pool, initial_slots, state_slots, &accepted, A_log, a, dt_bias, b, scale,
                                 use_qk_l2norm, output, {"initial_slots", "state_slots"});
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_decode_k_last, decode<false>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_decode_k_first, decode<true>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_decode_pool_k_last, decode_pool);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_verify_k_last, verify);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_decode_packed_k_last, decode_packed);
