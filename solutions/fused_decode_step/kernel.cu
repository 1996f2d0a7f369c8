// What a layer does between its projections for one token of every sequence, in one launch: convolution, SiLU, L2 norm,
// gates, the gated delta rule, gated norm, on both states where they lie in their pools.
//
// The state of the rule [V, K] is 97% of the traffic: read once, written once, held in registers. It is asked for
// before anything is computed: what comes ahead of the rule (convolution, norms, gates) happens while it is on its way,
// in float32.
//
// A (row, key head) is a cluster of blocks: `Split` of them for each value head of the group, each with some of its
// rows. Two things cross blocks, neither by way of memory:
//
//   squares       The norm needs the sum over a whole head: each warp sends its part to the `Split` blocks of the head,
//                 into their shared memory, before it writes its part of the state.
//   q and k       All blocks convolve the q and k of their key head themselves. The state of that convolution is
//                 updated in place, by one of them, once all have read it: behind a barrier that all reach early.
//
// Where there are no clusters, or more value heads a key head than a cluster has blocks, one block does a whole group,
// a head at a time (`Split` 0).

#include <cuda_bf16.h>
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
#include <unordered_set>
#include <vector>

#include "words.cuh"
#include "instructions.cuh"

namespace {

namespace ffi = tvm::ffi;

// --- device -----------------------------------------------------------------------------------------------------

constexpr float kNormEpsilon = 1e-6f;
// Whether the first blocks ask for their states, into the L2 cache, while the kernel ahead still runs.
constexpr bool kEarlyPrefetch = true;

// H value heads; a key head serves H / key_heads of them: its group. conv_dim = (2 key_heads + H) D.
// The grid is (blocks of a group, key_heads, rows).
struct Arguments {
  const bf16 *qkv, *z, *a, *b;                    // [B, conv_dim], [B, H D], [B, H], [B, H]
  const bf16 *conv_weight, *conv_bias;            // [conv_dim, W], [conv_dim] or null
  const float* A_log;                             // [H]
  const bf16 *dt_bias, *norm_weight;              // [H], [D]
  bf16* conv_states;                              // [slots, conv_dim, W - 1]
  float* states;                                  // [slots, H, D, D]
  int64_t conv_stride, state_stride;              // from slot to slot
  const int32_t *conv_slots, *state_slots;        // [B]
  bf16* output;                                   // [B, H D]
  int H, group, conv_dim, num_conv_slots, num_state_slots;
  int early_rows;  // those whose states are asked for early
  float scale;
};

// Channels 2 i and 2 i + 1 of the convolution: their inputs, as they are in memory, in 32-bit words of two.
template <int W>
struct ChannelPair {
  uint32_t x, bias, weight[W], state[W - 1];

  __device__ __forceinline__ void load_inputs(const Arguments& p, int64_t row, int channel) {
    x = load_words<1>(p.qkv + row * p.conv_dim + channel).word[0];
    bias = p.conv_bias == nullptr ? 0u : load_words<1>(p.conv_bias + channel).word[0];
    copy(load_words<W>(p.conv_weight + static_cast<int64_t>(channel) * W), weight);
  }

  __device__ __forceinline__ void load_state(const bf16* slot, int channel) {
    copy(load_words<W - 1>(slot + static_cast<int64_t>(channel) * (W - 1)), state);
  }

  // The inputs but the oldest, and the token's.
  __device__ __forceinline__ void store_state(bf16* slot, int channel) const {
    Words<W - 1> next;
#pragma unroll
    for (int n = 0; n < W - 1; ++n) next.word[n] = input(2 * n) | input(2 * n + 1) << 16;
    store_words(slot + static_cast<int64_t>(channel) * (W - 1), next);
  }

  __device__ __forceinline__ float2 convolved() const { return make_float2(one(0), one(1)); }

 private:
  template <int N>
  static __device__ __forceinline__ void copy(const Words<N>& from, uint32_t (&to)[N]) {
#pragma unroll
    for (int n = 0; n < N; ++n) to[n] = from.word[n];
  }

  // Element n of the next state: W - 1 inputs of the first channel, then of the second.
  __device__ __forceinline__ uint32_t input(int n) const {
    const int channel = n / (W - 1), j = n % (W - 1) + 1;
    return j < W - 1 ? bits_of(state, channel * (W - 1) + j) : x >> 16 * channel & 0xffffu;
  }

  __device__ __forceinline__ float one(int channel) const {
    float y = widened(bias, channel);
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      const int at = channel * W + j, from = channel * (W - 1) + j;
      y = fmaf(widened(weight[at / 2], at % 2), widened(state[from / 2], from % 2), y);
    }
    constexpr int kLast = W - 1;
    const int at = channel * W + kLast;
    return silu(fmaf(widened(weight[at / 2], at % 2), widened(x, channel), y));
  }
};

// As they are in memory: asked for with the rest of a token, so that nothing is waited for twice.
struct RawGates {
  float A_log;
  bf16 a, dt_bias, b;

  __device__ __forceinline__ RawGates(const Arguments& p, int64_t row, int h)
      : A_log(p.A_log[h]), a(p.a[row * p.H + h]), dt_bias(p.dt_bias[h]), b(p.b[row * p.H + h]) {}
};

struct Gates {
  float alpha, beta;

  __device__ __forceinline__ explicit Gates(const RawGates& raw) {
    const float x = __bfloat162float(raw.a) + __bfloat162float(raw.dt_bias);
    const float softplus = fmaxf(x, 0.f) + log1pf(expf(-fabsf(x)));  // no threshold
    alpha = expf(-expf(raw.A_log) * softplus);
    beta = __fdividef(1.f, 1.f + expf(-__bfloat162float(raw.b)));
  }
};

// `Lanes`: side by side in a row of the state, 16 bytes each. `Loads`: 16-byte loads of a state a thread, at a time.
template <int D, int Split, int Lanes, int Loads, int Warps>
struct Tile {
  static constexpr bool kCluster = Split > 0;
  static constexpr int kThreads = 32 * Warps;
  static constexpr int kChunks = D / (4 * Lanes);         // of a row, a thread
  static constexpr int kRows = Loads / kChunks;           // a thread, at a time
  static constexpr int kGroups = kThreads / Lanes;        // rows side by side
  static constexpr int kTileRows = kRows * kGroups;       // a block, at a time
  static constexpr int kPartRows = kCluster ? D / Split : D;  // of a head, a block
  static constexpr int kPasses = kPartRows / kTileRows;
  static constexpr int kParts = kCluster ? Split : 1;     // blocks that a norm is taken over
  static constexpr int kPairs = D + kPartRows / 2;        // of channels that a block convolves: q, k, its part of v
  static constexpr int kRounds = (kPairs + kThreads - 1) / kThreads;
  static constexpr int kOutputs = kPartRows / 2;          // pairs of outputs, one a thread
  static_assert(kChunks * 4 * Lanes == D && kRows * kChunks == Loads && kPasses * kTileRows == kPartRows);
  static_assert(kRows >= 1 && kPasses >= 1 && kOutputs <= kThreads && D / 2 <= kThreads);
};

// Of a block.
template <class Tile, int D, int Warps>
struct Shared {
  alignas(16) float vectors[2 * D + Tile::kPartRows];  // q, k, v, convolved
  alignas(16) float read[Tile::kPartRows];             // what the head reads, not normalised
  alignas(16) float squares[Tile::kParts * Warps];     // its sums of squares
  uint64_t all_squares;                                // the barrier of their arrival
};

template <int D, int W, int Split, int Lanes, int Loads, int Warps>
__global__ void __launch_bounds__(Tile<D, Split, Lanes, Loads, Warps>::kThreads)
    gdn_core_decode_kernel(const __grid_constant__ Arguments p) {
  using T = Tile<D, Split, Lanes, Loads, Warps>;
  constexpr int R = T::kRows, C = T::kChunks, kNextKey = 4 * Lanes;
  const int64_t row = blockIdx.z;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int part = T::kCluster ? blockIdx.x % T::kParts : 0, first_channel = part * T::kPartRows;
  const int first_head = blockIdx.y * p.group + (T::kCluster ? blockIdx.x / T::kParts : 0);
  const int end_head = T::kCluster ? first_head + 1 : first_head + p.group;
  const int row_of_tile = thread / Lanes;    // a thread's first row of a tile; the next is kGroups on
  const int key = 4 * (thread % Lanes);      // and its first key channel; the next chunk is kNextKey on

  // Pair n of a block's channels, of value head h: where it stands among all.
  const auto channel_of = [&](int n, int h) {
    const int q = static_cast<int>(blockIdx.y) * D, k = (gridDim.y + blockIdx.y) * D;
    const int v = (2 * gridDim.y + h) * D + first_channel;
    return n < D / 2 ? q + 2 * n : n < D ? k + 2 * n - D : v + 2 * (n - D);
  };

  __shared__ Shared<T, D, Warps> shared;
  float* const vectors = shared.vectors;

  if (kEarlyPrefetch && row < p.early_rows) {
    // Values of slots may change yet, so they are hints; and they are read past the L1 cache, which would keep them.
    if (thread == 0) {
      const int slot = load_volatile(p.state_slots + row);
      if (is_slot(slot, p.num_state_slots)) {
        prefetch(p.states + slot * p.state_stride + (first_head * D + first_channel) * D,
                 (end_head - first_head) * T::kPartRows * D * sizeof(float));
      }
    } else if (thread == 32 && blockIdx.x == 0) {  // the group's q and k, and its values
      const int slot = load_volatile(p.conv_slots + row), values = p.group * D;
      const int q = channel_of(0, 0), k = channel_of(D / 2, 0), v = (2 * gridDim.y + blockIdx.y * p.group) * D;
      const bf16* from = p.conv_states + slot * p.conv_stride;
      prefetch(p.conv_weight + q * W, D * W * sizeof(bf16));
      prefetch(p.conv_weight + k * W, D * W * sizeof(bf16));
      prefetch(p.conv_weight + v * W, values * W * sizeof(bf16));
      if (is_slot(slot, p.num_conv_slots)) {
        prefetch(from + q * (W - 1), D * (W - 1) * sizeof(bf16));
        prefetch(from + k * (W - 1), D * (W - 1) * sizeof(bf16));
        prefetch(from + v * (W - 1), values * (W - 1) * sizeof(bf16));
      }
    }
  }
  wait_for_previous();
  const int conv_slot = p.conv_slots[row], state_slot = p.state_slots[row];
  float q[C][4], k[C][4], dot = 0.f;

#pragma unroll 1
  for (int h = first_head; h < end_head; ++h) {
    // Everything is asked for before anything is waited for; only slots stand in the way of the states.
    const int first_pair = h == first_head ? thread : D + thread;  // q and k but once
    ChannelPair<W> pair[T::kRounds];
#pragma unroll
    for (int r = 0; r < T::kRounds; ++r) {
      const int n = first_pair + r * T::kThreads;
      if (n < T::kPairs) pair[r].load_inputs(p, row, channel_of(n, h));
    }
    const int64_t output_at = (row * p.H + h) * D + first_channel + 2 * thread;
    uint32_t z = 0, norm_weight = 0;
    if (thread < T::kOutputs) {
      z = load_words<1>(p.z + output_at).word[0];
      norm_weight = load_words<1>(p.norm_weight + first_channel + 2 * thread).word[0];
    }
    const RawGates raw(p, row, h);
    keep_order();

    // -1 skips a row, and so does a slot that is none. All blocks of a cluster agree.
    if (!is_slot(conv_slot, p.num_conv_slots) || !is_slot(state_slot, p.num_state_slots)) {
      if (thread < T::kOutputs) store_pair(p.output + output_at, 0.f, 0.f);
      continue;
    }
    bf16* const conv_state = p.conv_states + conv_slot * p.conv_stride;
    float* const state = p.states + state_slot * p.state_stride + (h * D + first_channel + row_of_tile) * D + key;
#pragma unroll
    for (int r = 0; r < T::kRounds; ++r) {
      const int n = first_pair + r * T::kThreads;
      if (n < T::kPairs) pair[r].load_state(conv_state, channel_of(n, h));
    }
    keep_order();
    float4 S[R][C];
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < C; ++c) S[r][c] = load4(state + r * T::kGroups * D + c * kNextKey);
    }
    keep_order();
    let_next_start();

    if constexpr (T::kParts > 1) {
      if (thread == 0) expect_bytes(&shared.all_squares, T::kParts * Warps * sizeof(float));
    }
#pragma unroll
    for (int r = 0; r < T::kRounds; ++r) {
      const int n = first_pair + r * T::kThreads;
      if (n < T::kPairs) *reinterpret_cast<float2*>(&vectors[2 * n]) = pair[r].convolved();
    }
    const Gates gate(raw);
    const float weight_0 = widened(norm_weight, 0) * silu(widened(z, 0));
    const float weight_1 = widened(norm_weight, 1) * silu(widened(z, 1));
    __syncthreads();
    if constexpr (T::kCluster) cluster_arrive();  // this block has read the convolution's state of q and k

    if (h == first_head) {
      float sums[3] = {};  // |q|^2, |k|^2, q . k
#pragma unroll
      for (int c = 0; c < C; ++c) {
        load_shared(&vectors[key + c * kNextKey], q[c]);
        load_shared(&vectors[D + key + c * kNextKey], k[c]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[0] = fmaf(q[c][e], q[c][e], sums[0]);
          sums[1] = fmaf(k[c][e], k[c][e], sums[1]);
          sums[2] = fmaf(q[c][e], k[c][e], sums[2]);
        }
      }
      sum_lanes<1, Lanes>(sums);
      const float of_q = rsqrtf(sums[0] + kNormEpsilon) * p.scale, of_k = rsqrtf(sums[1] + kNormEpsilon);
      dot = sums[2] * of_q * of_k;
#pragma unroll
      for (int c = 0; c < C; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) q[c][e] *= of_q, k[c][e] *= of_k;
      }
      if constexpr (T::kPasses == 1) finish(dot);  // where there are more, their loop sees to it
    }

    float square[1] = {};
#pragma unroll 1
    for (int pass = 0; pass < T::kPasses; ++pass) {
      // Both sums are taken of the state as it was read: the read-out after the write follows from q . k.
      const int tile = pass * T::kTileRows;
      float sums[2 * R] = {};
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
          const float x[4] = {S[r][c].x, S[r][c].y, S[r][c].z, S[r][c].w};
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            sums[2 * r] = fmaf(x[e], k[c][e], sums[2 * r]);
            sums[2 * r + 1] = fmaf(x[e], q[c][e], sums[2 * r + 1]);
          }
        }
      }
      sum_lanes<1, Lanes>(sums);
      float u[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int i = tile + row_of_tile + r * T::kGroups;
        u[r] = gate.beta * fmaf(-gate.alpha, sums[2 * r], vectors[2 * D + i]);  // the error, of the decayed state
        const float o = fmaf(u[r], dot, gate.alpha * sums[2 * r + 1]);
        square[0] = fmaf(o, o, square[0]);
        if (key == 0) shared.read[i] = o;
      }
      if (pass == T::kPasses - 1) {
        sum_lanes<Lanes, 32>(square);
        if constexpr (T::kParts > 1) {
          cluster_wait();  // for the others to have begun
          if (lane < T::kParts) {
            const int rank = blockIdx.x - part + lane;
            send(&shared.squares[part * Warps + warp], square[0], &shared.all_squares, rank);
          }
        } else if (lane == 0) {
          shared.squares[warp] = square[0];
        }
        keep_order();
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
          S[r][c].x = fmaf(u[r], k[c][0], gate.alpha * S[r][c].x);
          S[r][c].y = fmaf(u[r], k[c][1], gate.alpha * S[r][c].y);
          S[r][c].z = fmaf(u[r], k[c][2], gate.alpha * S[r][c].z);
          S[r][c].w = fmaf(u[r], k[c][3], gate.alpha * S[r][c].w);
          store4(state + (tile + r * T::kGroups) * D + c * kNextKey, S[r][c]);
        }
      }
      if (pass < T::kPasses - 1) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
          for (int c = 0; c < C; ++c) {
            S[r][c] = load4(state + (tile + T::kTileRows + r * T::kGroups) * D + c * kNextKey);
          }
        }
      }
    }

    if constexpr (T::kCluster && T::kParts == 1) cluster_wait();
#pragma unroll
    for (int r = 0; r < T::kRounds; ++r) {
      const int n = first_pair + r * T::kThreads;
      const bool mine = n >= D || !T::kCluster || blockIdx.x == 0;  // values; q and k of the cluster's first block
      if (n < T::kPairs && mine) pair[r].store_state(conv_state, channel_of(n, h));
    }
    __syncthreads();
    if constexpr (T::kParts > 1) wait_for_bytes(&shared.all_squares);
    if (thread < T::kOutputs) {
      float sum = 0.f;
#pragma unroll
      for (int n = 0; n < T::kParts * Warps; ++n) sum += shared.squares[n];  // in one order, so that all blocks agree
      const float factor = rsqrtf(fmaf(sum, 1.f / D, kNormEpsilon));
      const float2 o = *reinterpret_cast<const float2*>(&shared.read[2 * thread]);
      store_pair(p.output + output_at, o.x * factor * weight_0, o.y * factor * weight_1);
    }
  }
}

// --- launches ---------------------------------------------------------------------------------------------------

constexpr int kClusterBlocks = 8;  // that every GPU with clusters has room for

bool has_clusters() {
  // Of the first device: the module is built for one architecture.
  static const bool has = [] {
    int major = 0;
    TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major >= 9;
  }();
  return has;
}

template <int D, int W, int Split, int Lanes, int Loads, int Warps>
void start(const Arguments& p, int key_heads, int rows, cudaStream_t stream) {
  const unsigned blocks = Split > 0 ? p.group * Split : 1;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = blocks, attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks, key_heads, rows);
  config.blockDim = dim3(Tile<D, Split, Lanes, Loads, Warps>::kThreads);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !has_clusters() ? 0 : blocks > 1 ? 2 : 1;
  TVM_FFI_CHECK_CUDA_ERROR(cudaLaunchKernelEx(&config, gdn_core_decode_kernel<D, W, Split, Lanes, Loads, Warps>, p));
}

// The place to tune, for an H200: blocks a head, lanes in a row, loads a thread, warps a block. A cluster has at most
// eight blocks. With few states there should be a block for nearly every multiprocessor; with more, a whole head in one
// is faster, whose norm crosses no blocks. `bytes`: of all states.
template <int D, int W>
void launch(int64_t bytes, const Arguments& p, int key_heads, int rows, cudaStream_t stream) {
  const int most = has_clusters() ? kClusterBlocks / p.group : 0;  // blocks a head
  if constexpr (D == 64) {
    if (most >= 2) return start<D, W, 2, 16, 4, 4>(p, key_heads, rows, stream);
    if (most == 1) return start<D, W, 1, 16, 4, 8>(p, key_heads, rows, stream);
    start<D, W, 0, 16, 4, 8>(p, key_heads, rows, stream);
  } else if constexpr (D == 128) {
    const bool few = bytes < int64_t{4} << 20;
    if (most >= 4 && few) return start<D, W, 4, 16, 4, 8>(p, key_heads, rows, stream);
    if (most >= 2 && few) return start<D, W, 2, 16, 8, 8>(p, key_heads, rows, stream);
    if (most >= 1) return start<D, W, 1, 16, 16, 8>(p, key_heads, rows, stream);
    start<D, W, 0, 16, 8, 8>(p, key_heads, rows, stream);
  } else {
    if (most >= 4) return start<D, W, 4, 32, 8, 8>(p, key_heads, rows, stream);
    if (most >= 2) return start<D, W, 2, 32, 8, 8>(p, key_heads, rows, stream);
    if (most == 1) return start<D, W, 1, 32, 8, 8>(p, key_heads, rows, stream);
    start<D, W, 0, 32, 8, 8>(p, key_heads, rows, stream);
  }
}

// --- host -------------------------------------------------------------------------------------------------------

constexpr DLDataType kBFloat16{kDLBfloat, 16, 1};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};
constexpr DLDataType kInt32{kDLInt, 32, 1};
constexpr int64_t kEarlyBytes = int64_t{16} << 20;  // of states that are asked for early: what blocks begin with

const char* name_of(DLDataType x) {
  if (x.lanes != 1) return "a vector type";
  if (x.code == kDLBfloat && x.bits == 16) return "bfloat16";
  if (x.code == kDLFloat && x.bits == 32) return "float32";
  if (x.code == kDLInt && x.bits == 32) return "int32";
  return "of another type";
}

bool same(DLDataType x, DLDataType y) { return x.code == y.code && x.bits == y.bits && x.lanes == y.lanes; }

// `alignment`, in bytes: what the widest access of the kernel to this tensor needs.
struct Requirements {
  DLDevice device;

  void operator()(const char* name, const ffi::TensorView& x, DLDataType dtype, unsigned alignment,
                  std::initializer_list<int64_t> shape) const {
    place(name, x, dtype, alignment);
    TVM_FFI_CHECK(contiguous(name, x, shape, 0), ValueError) << name << " is not contiguous";
  }

  // [slots, ..shape], contiguous but for the distance from slot to slot, which is returned.
  int64_t pool(const char* name, const ffi::TensorView& x, DLDataType dtype,
               std::initializer_list<int64_t> shape) const {
    place(name, x, dtype, 16);
    TVM_FFI_CHECK(contiguous(name, x, shape, 1), ValueError) << name << " is not contiguous within a slot";
    int64_t of_slot = 1;
    for (const int64_t size : shape) of_slot *= size;
    const int64_t stride = x.stride(0), step = 16 / (dtype.bits / 8);
    TVM_FFI_CHECK(x.size(0) <= 1 || (stride >= of_slot && stride % step == 0), ValueError)
        << name << " has " << stride << " elements from slot to slot: it must be " << of_slot
        << " or more, in steps of " << step;
    TVM_FFI_CHECK(x.size(0) <= INT32_MAX, ValueError) << name << " has " << x.size(0) << " slots, past 32 bits";
    return stride;
  }

  void place(const char* name, const ffi::TensorView& x, DLDataType dtype, unsigned alignment) const {
    TVM_FFI_CHECK(same(x.dtype(), dtype), ValueError)
        << name << " is " << name_of(x.dtype()) << ", not " << name_of(dtype);
    TVM_FFI_CHECK(x.device().device_type == kDLCUDA && x.device().device_id == device.device_id, ValueError)
        << name << " is not on the GPU that holds recurrent_states";
    TVM_FFI_CHECK(x.numel() == 0 || reinterpret_cast<uintptr_t>(x.data_ptr()) % alignment == 0, ValueError)
        << name << " does not start at a multiple of " << alignment << " bytes";
  }

 private:
  // Whether the dimensions from `first` on, of this shape, lie densely.
  static bool contiguous(const char* name, const ffi::TensorView& x, std::initializer_list<int64_t> shape,
                         int32_t first) {
    const int32_t dimensions = first + static_cast<int32_t>(shape.size());
    TVM_FFI_CHECK(x.ndim() == dimensions, ValueError)
        << name << " has " << x.ndim() << " dimensions, not " << dimensions;
    int64_t dense = 1;
    bool found = true;
    for (int32_t i = dimensions - 1; i >= first; --i) {
      const int64_t size = x.size(i);
      TVM_FFI_CHECK(size == shape.begin()[i - first], ValueError)
          << name << " has size " << size << " in dimension " << i << ", not " << shape.begin()[i - first];
      found &= size == 1 || x.stride(i) == dense;
      dense *= size;
    }
    return found || dense == 0;
  }
};

cudaStream_t stream_of(DLDevice device) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

// For debugging: with GDNSPEC_DEBUG=1 a call waits for the slots and checks what the definition asks of them. Without,
// the kernel takes them on trust but for their range.
void check_slots(const Arguments& p, int64_t rows, DLDevice device) {
  static const char* given = std::getenv("GDNSPEC_DEBUG");
  if (given == nullptr || given[0] != '1' || given[1] != '\0') return;
  const ffi::CUDADeviceGuard guard(device.device_id);
  const auto copy = [&](const int32_t* from) {
    std::vector<int32_t> to(rows);
    TVM_FFI_CHECK_CUDA_ERROR(
        cudaMemcpyAsync(to.data(), from, rows * sizeof(int32_t), cudaMemcpyDeviceToHost, stream_of(device)));
    TVM_FFI_CHECK_CUDA_ERROR(cudaStreamSynchronize(stream_of(device)));
    return to;
  };
  const auto conv = copy(p.conv_slots), state = copy(p.state_slots);
  std::unordered_set<int32_t> seen[2];
  for (int64_t row = 0; row < rows; ++row) {
    const auto check = [&](const char* name, int32_t slot, int slots, std::unordered_set<int32_t>& before) {
      TVM_FFI_CHECK(slot >= -1 && slot < slots, ValueError)
          << name << " names slot " << slot << "; there are " << slots;
      TVM_FFI_CHECK(slot == -1 || before.insert(slot).second, ValueError)
          << name << " names slot " << slot << " twice";
    };
    check("conv_slots", conv[row], p.num_conv_slots, seen[0]);
    check("state_slots", state[row], p.num_state_slots, seen[1]);
    TVM_FFI_CHECK((conv[row] == -1) == (state[row] == -1), ValueError)
        << "row " << row << " is skipped by one of its slots and not by the other";
  }
}

void core_decode(ffi::TensorView qkv, ffi::TensorView z, ffi::TensorView a, ffi::TensorView b,
                 ffi::TensorView conv_weight, ffi::Optional<ffi::TensorView> conv_bias, ffi::TensorView A_log,
                 ffi::TensorView dt_bias, ffi::TensorView norm_weight, ffi::TensorView conv_states,
                 ffi::TensorView conv_slots, ffi::TensorView recurrent_states, ffi::TensorView state_slots,
                 ffi::TensorView output) {
  const auto dimensions = [](const char* name, const ffi::TensorView& x, int32_t count) {
    TVM_FFI_CHECK(x.ndim() == count, ValueError) << name << " has " << x.ndim() << " dimensions, not " << count;
  };
  dimensions("qkv", qkv, 2), dimensions("conv_weight", conv_weight, 2);
  dimensions("recurrent_states", recurrent_states, 4);
  const int64_t rows = qkv.size(0), conv_dim = qkv.size(1), W = conv_weight.size(1);
  const int64_t H = recurrent_states.size(1), D = recurrent_states.size(3), keys = conv_dim - H * D;
  TVM_FFI_CHECK(D == 64 || D == 128 || D == 256, ValueError)
      << "key_head_dim " << D << " is not served: 64, 128 and 256 are, with as many values";
  TVM_FFI_CHECK(W >= 2 && W <= 4, ValueError) << "kernel_width " << W << " is not served: 2 to 4 are";
  TVM_FFI_CHECK(keys > 0 && keys % (2 * D) == 0, ValueError)
      << "a row of qkv has " << conv_dim << " channels: " << H << " value heads of " << D << " leave no whole q and k";
  const int64_t key_heads = keys / (2 * D);
  TVM_FFI_CHECK(H % key_heads == 0, ValueError) << "num_k_heads " << key_heads << " does not divide num_v_heads " << H;
  TVM_FFI_CHECK(rows <= 65535 && key_heads <= 65535 && H <= 32767, ValueError)
      << "a batch of " << rows << " rows and " << H << " heads is not served: 65535 and 32767 are the most";

  const Requirements require{recurrent_states.device()};
  require("qkv", qkv, kBFloat16, 4, {rows, conv_dim});
  require("z", z, kBFloat16, 4, {rows, H * D});
  require("a", a, kBFloat16, 2, {rows, H});
  require("b", b, kBFloat16, 2, {rows, H});
  require("conv_weight", conv_weight, kBFloat16, 16, {conv_dim, W});
  if (conv_bias.has_value()) require("conv_bias", conv_bias.value(), kBFloat16, 4, {conv_dim});
  require("A_log", A_log, kFloat32, 4, {H});
  require("dt_bias", dt_bias, kBFloat16, 2, {H});
  require("norm_weight", norm_weight, kBFloat16, 4, {D});
  require("conv_slots", conv_slots, kInt32, 4, {rows});
  require("state_slots", state_slots, kInt32, 4, {rows});
  require("output", output, kBFloat16, 4, {rows, H * D});
  Arguments p{};
  p.conv_stride = require.pool("conv_states", conv_states, kBFloat16, {conv_dim, W - 1});
  p.state_stride = require.pool("recurrent_states", recurrent_states, kFloat32, {H, D, D});
  if (rows == 0) return;  // an empty grid is an error

  p.qkv = static_cast<const bf16*>(qkv.data_ptr());
  p.z = static_cast<const bf16*>(z.data_ptr());
  p.a = static_cast<const bf16*>(a.data_ptr());
  p.b = static_cast<const bf16*>(b.data_ptr());
  p.conv_weight = static_cast<const bf16*>(conv_weight.data_ptr());
  p.conv_bias = conv_bias.has_value() ? static_cast<const bf16*>(conv_bias.value().data_ptr()) : nullptr;
  p.A_log = static_cast<const float*>(A_log.data_ptr());
  p.dt_bias = static_cast<const bf16*>(dt_bias.data_ptr());
  p.norm_weight = static_cast<const bf16*>(norm_weight.data_ptr());
  p.conv_states = static_cast<bf16*>(conv_states.data_ptr());
  p.states = static_cast<float*>(recurrent_states.data_ptr());
  p.conv_slots = static_cast<const int32_t*>(conv_slots.data_ptr());
  p.state_slots = static_cast<const int32_t*>(state_slots.data_ptr());
  p.output = static_cast<bf16*>(output.data_ptr());
  p.H = static_cast<int>(H);
  p.group = static_cast<int>(H / key_heads);
  p.conv_dim = static_cast<int>(conv_dim);
  p.num_conv_slots = static_cast<int>(conv_states.size(0));
  p.num_state_slots = static_cast<int>(recurrent_states.size(0));
  const int64_t of_row = H * D * D * static_cast<int64_t>(sizeof(float));
  p.early_rows = static_cast<int>((kEarlyBytes + of_row - 1) / of_row);
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(D)));
  check_slots(p, rows, require.device);

  const ffi::CUDADeviceGuard guard(require.device.device_id);
  const cudaStream_t stream = stream_of(require.device);
  const auto launch_for = [&](auto size, auto width) {
    launch<size.value, width.value>(rows * of_row, p, static_cast<int>(key_heads), static_cast<int>(rows), stream);
  };
  const auto launch_wide = [&](auto size) {
    switch (W) {
      case 2: launch_for(size, std::integral_constant<int, 2>{}); break;
      case 3: launch_for(size, std::integral_constant<int, 3>{}); break;
      default: launch_for(size, std::integral_constant<int, 4>{});
    }
  };
  switch (D) {
    case 64: launch_wide(std::integral_constant<int, 64>{}); break;
    case 128: launch_wide(std::integral_constant<int, 128>{}); break;
    default: launch_wide(std::integral_constant<int, 256>{});
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_core_decode, core_decode);
