// All between the projections and the prefill in one pass: convolution, SiLU, L2 norm of q and k, gates.
//
// Memory is all there is to it: x is read once, q, k and v are written once. A few lanes hold a head, 8 channels each, and
// walk down a strip of tokens; what tokens share, the sums that are begun, stays in registers. Rows are on their way to
// shared memory many tokens ahead (cp.async), each lane's to a place of its own: nobody waits for anybody but in the norm.
//
// A sequence's state is read and written by one block, that of its first token: see `Walk`.
//
// float32 throughout; what is written is rounded once.

#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/base.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "instructions.cuh"

// --- device -----------------------------------------------------------------------------------------------------

namespace {

using bf16 = __nv_bfloat16;

// The place to tune, with `strip_of` below.
constexpr int kThreads = 128;
constexpr int kBlocks = 4;  // of a multiprocessor
constexpr int kStages = 8;  // rows on their way, a lane; a power of two, and more than the widest kernel
constexpr int kPer = 8;     // channels of a lane: 16 bytes of a row
static_assert((kStages & (kStages - 1)) == 0 && kStages >= 4);

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kNormEpsilon = 1e-6f;

// Channels are those of HK query heads, HK key heads and H value heads, in this order.
struct Problem {
  const bf16* x;                 // [T, C]
  const bf16 *weight, *bias;     // [C, W], [C] or null
  const bf16 *a, *b, *dt_bias;   // [T, H], [T, H], [H]
  const float* A_log;            // [H]
  const int64_t* cu_seqlens;     // [N + 1]
  bf16* pool;                    // slots of [C, W - 1]
  const int32_t* slots;          // [N]
  const uint8_t* carried;        // [N]: whether a sequence has a state before it
  bf16 *q, *k, *v;               // [T, HK, D], [T, HK, D], [T, H, D]
  float *g, *beta;               // [T, H]
  int64_t slot_stride;
  int T, N, num_slots, HK, H;
  int groups, strip;  // of heads, a block each; tokens of a block
};

__device__ __forceinline__ uint4 load16(const bf16* from) { return *reinterpret_cast<const uint4*>(from); }

// A bfloat16 is the upper half of a float32. Element i of what lies in words.
template <int N>
__device__ __forceinline__ float element(const uint32_t (&words)[N], int i) {
  const uint32_t word = words[i / 2];
  return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
}

template <int N>
__device__ __forceinline__ uint32_t bits(const uint32_t (&words)[N], int i) {
  return i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16;
}

__device__ __forceinline__ float silu(float x) { return x * reciprocal(1.f + power_of_two(x * -1.442695041f)); }

// --- the convolution of a lane's channels ---------------------------------------------------------------------------

// One row, or one place of a state, of a lane's channels.
struct Row {
  uint32_t words[kPer / 2];

  __device__ __forceinline__ Row() : words{} {}
  __device__ __forceinline__ explicit Row(const uint4& x) : words{x.x, x.y, x.z, x.w} {}
};

// The weights, and the sums that rows so far have begun: `begun[i]` is of the token i on, but for its own row and those
// between. Each row goes to W sums at once, so that none of them is kept, and nothing moves from register to register.
template <int W, bool Bias>
struct Convolution {
  float weight[W][kPer], begun[W - 1][kPer];
  Row bias;  // packed: there are registers for the weights alone

  __device__ __forceinline__ Convolution(const Problem& p, int64_t channel, bool live) {
    uint32_t words[W * kPer / 2] = {};
    if (live) {
#pragma unroll
      for (int i = 0; i < W; ++i) {
        const uint4 x = load16(p.weight + channel * W + i * kPer);
        words[4 * i] = x.x, words[4 * i + 1] = x.y, words[4 * i + 2] = x.z, words[4 * i + 3] = x.w;
      }
    }
#pragma unroll
    for (int c = 0; c < kPer; ++c) {
#pragma unroll
      for (int j = 0; j < W; ++j) weight[j][c] = kept(element(words, c * W + j));
    }
    if (Bias && live) bias = Row(load16(p.bias + channel));
  }

  // Whatever was begun is not needed again: W - 1 rows follow, of which no sum is.
  __device__ __forceinline__ void forget() {
#pragma unroll
    for (int i = 0; i < W - 1; ++i) {
#pragma unroll
      for (int c = 0; c < kPer; ++c) begun[i][c] = 0.f;
    }
  }

  // Takes a row in; `y`: the token's sum, now whole.
  __device__ __forceinline__ void take(const float (&x)[kPer], float (&y)[kPer]) {
#pragma unroll
    for (int c = 0; c < kPer; ++c) {
      y[c] = fmaf(weight[W - 1][c], x[c], begun[0][c]);
#pragma unroll
      for (int i = 0; i < W - 2; ++i) begun[i][c] = fmaf(weight[W - 2 - i][c], x[c], begun[i + 1][c]);
      begun[W - 2][c] = Bias ? fmaf(weight[0][c], x[c], element(bias.words, c)) : weight[0][c] * x[c];
    }
  }

  __device__ __forceinline__ void take(const Row& row, float (&y)[kPer]) {
    float x[kPer];
#pragma unroll
    for (int c = 0; c < kPer; ++c) x[c] = element(row.words, c);
    take(x, y);
  }
};

// The state of a lane's channels, as it lies in its slot: [channel, W - 1].
template <int W>
struct State {
  static constexpr int kPlaces = W - 1, kWords = kPlaces * kPer / 2;
  uint32_t words[kWords];

  __device__ __forceinline__ State(const bf16* from, bool carried) : words{} {
    if (!carried) return;
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      const uint4 x = load16(from + i * kPer);
      words[4 * i] = x.x, words[4 * i + 1] = x.y, words[4 * i + 2] = x.z, words[4 * i + 3] = x.w;
    }
  }

  __device__ __forceinline__ void place(int i, float (&to)[kPer]) const {
#pragma unroll
    for (int c = 0; c < kPer; ++c) to[c] = element(words, c * kPlaces + i);
  }

  // One token on: its row comes last, the oldest goes.
  __device__ __forceinline__ void push(const Row& row) {
    uint32_t moved[kWords];
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      uint32_t half[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 2 * word + i;
        half[i] = at % kPlaces == kPlaces - 1 ? bits(row.words, at / kPlaces) : bits(words, at + 1);
      }
      moved[word] = half[0] | half[1] << 16;
    }
#pragma unroll
    for (int word = 0; word < kWords; ++word) words[word] = moved[word];
  }

  __device__ __forceinline__ void store(bf16* to) const {
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      reinterpret_cast<uint4*>(to)[i] =
          make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    }
  }
};

// --- which tokens ---------------------------------------------------------------------------------------------------

// Bounds that lie are taken as the ends of the tensors.
__device__ __forceinline__ int bound(const Problem& p, int n) {
  const int64_t x = p.cu_seqlens[n];
  return static_cast<int>(x < 0 ? 0 : x > p.T ? p.T : x);
}

// The last sequence that starts at the token or before it; the first, where there is none. 32 of them are looked at
// together, by the lanes of each warp.
__device__ __forceinline__ int sequence_at(const Problem& p, int token) {
  const int lane = threadIdx.x % 32;
  int low = 0, count = p.N;
  while (count > 1) {
    const int step = (count + 31) / 32, n = low + lane * step;
    const bool before = lane * step < count && bound(p, n) <= token;
    const int reached = max(__popc(__ballot_sync(kAllLanes, before)) - 1, 0);
    low += reached * step;
    count = min(step, count - reached * step);
  }
  return low;
}

// The pieces of sequences that a block has to do: tokens `from` to `to` of sequence n.
//
// Strips are cut without regard to sequences, but for one thing: the first W - 1 tokens of a sequence are one block's,
// that of its very first. A block whose strip would begin among them leaves them out, and one whose strip would end
// among them goes on. So that block alone reads the state, and writes it, with the last rows that it finds in x: nobody
// ever reads what another has written.
template <int W>
struct Walk {
  int n, start, stop, from, to, last;

  __device__ __forceinline__ Walk(const Problem& p, int first, int last) : to(first), last(last) {
    n = sequence_at(p, first);
    start = bound(p, n), stop = bound(p, n + 1);
    if (start < first && first - start < W - 1) to = min(start + W - 1, stop);
    --n;
  }

  // The next piece, or false. Every thread of the block does the same.
  __device__ __forceinline__ bool next(const Problem& p) {
    while (++n < p.N && to < last) {
      start = bound(p, n), stop = bound(p, n + 1);
      if (stop <= to) continue;  // it is empty
      from = max(to, start);
      if (from >= last) return false;
      to = min(stop, max(last, start + W - 1));
      return true;
    }
    return false;
  }
};

// --- the gates ------------------------------------------------------------------------------------------------------

// Of all value heads of a block, from head `first` on, for tokens from .. to. Tokens that are skipped do nothing to a state.
__device__ __forceinline__ void write_gates(const Problem& p, int first, int count, int from, int to, bool live) {
#pragma unroll 1
  for (int i = threadIdx.x; i < (to - from) * count; i += kThreads) {
    const int h = first + i % count;
    const int64_t at = static_cast<int64_t>(from + i / count) * p.H + h;
    float alpha = 1.f, beta = 0.f;
    if (live) {
      const float x = __bfloat162float(p.a[at]) + __bfloat162float(p.dt_bias[h]);
      const float softplus = fmaxf(x, 0.f) + log1pf(expf(-fabsf(x)));  // no threshold
      alpha = expf(-expf(p.A_log[h]) * softplus);
      beta = reciprocal(1.f + expf(-__bfloat162float(p.b[at])));
    }
    p.g[at] = alpha, p.beta[at] = beta;
  }
}

// --- the kernel -----------------------------------------------------------------------------------------------------

template <int D, int W, bool Bias>
__global__ void __launch_bounds__(kThreads, kBlocks) gdn_conv_gates_kernel(const __grid_constant__ Problem p) {
  constexpr int kLanes = D / kPer, kHeads = kThreads / kLanes;  // of a head; of a block
  const int heads = 2 * p.HK + p.H;
  const int64_t C = static_cast<int64_t>(heads) * D;
  const int first_head = static_cast<int>(blockIdx.x % p.groups) * kHeads, head = first_head + threadIdx.x / kLanes;
  const int first = static_cast<int>(blockIdx.x / p.groups) * p.strip, last = min(first + p.strip, p.T);
  const bool valid = head < heads;  // the last block may have lanes without a head
  const int lane = kPer * (threadIdx.x % kLanes);
  const int64_t channel = static_cast<int64_t>(head) * D + lane;
  const bf16* x_at = p.x + channel;

  // Rows from W - 1 tokens before the strip on, a group of copies each, whether there is such a row or not. The place of
  // the row that is taken is that of the next to be asked for.
  __shared__ uint4 ring[kStages][kThreads];
  int asked = first - (W - 1);
  unsigned limit = valid ? last : 0;
  const bf16* ahead = x_at + asked * C;
  const auto place = [&](int row) { return &ring[row & (kStages - 1)][threadIdx.x]; };
  const auto ask = [&] {
    if (static_cast<unsigned>(asked) < limit) copy_ahead(place(asked), ahead);  // not before the first, either
    end_group();
    ++asked, ahead += C;
  };
  const auto take = [&] {
    wait_for_groups<kStages - 1>();
    return Row(*place(asked));
  };
  const auto skip_to = [&](int row) {
#pragma unroll 1
    while (asked - kStages < row) {
      wait_for_groups<kStages - 1>();
      ask();
    }
  };

  wait_for_previous();
#pragma unroll
  for (int i = 0; i < kStages; ++i) ask();
  let_next_start();
  Convolution<W, Bias> sums(p, channel, valid);
  Walk<W> piece(p, first, last);

  // Where this lane's head goes, and which gates are the block's.
  const bool of_warp = first_head + static_cast<int>(threadIdx.x / 32) * (32 / kLanes) < 2 * p.HK, normed = head < 2 * p.HK;
  const int owners = normed ? p.HK : p.H;
  const int to_head = head < p.HK ? head : normed ? head - p.HK : head - 2 * p.HK;
  bf16* const to = (head < p.HK ? p.q : normed ? p.k : p.v) + static_cast<int64_t>(to_head) * D + lane;
  const int64_t row_of_output = static_cast<int64_t>(owners) * D;
  const int first_gate = max(first_head - 2 * p.HK, 0);
  const int gates = max(min(first_head + kHeads, heads) - 2 * p.HK - first_gate, 0);

  while (piece.next(p)) {
    const int slot = p.slots[piece.n];
    const bool live = static_cast<unsigned>(slot) < static_cast<unsigned>(p.num_slots);  // -1, or a slot that is none
    write_gates(p, first_gate, gates, piece.from, piece.to, live);
    bf16* out = to + piece.from * row_of_output;
    if (!live) {
#pragma unroll 1
      for (int token = piece.from; valid && token < piece.to; ++token, out += row_of_output) {
        *reinterpret_cast<uint4*>(out) = make_uint4(0, 0, 0, 0);
      }
      continue;
    }
    sums.forget();
    if (piece.from == piece.start) {
      // The state before, and the last rows of the sequence, which make the state after: all asked for at once.
      bf16* const at = p.pool + slot * p.slot_stride + channel * (W - 1);
      State<W> state(at, valid && p.carried[piece.n] != 0);
      Row recent[W - 1];
#pragma unroll
      for (int i = 0; i < W - 1; ++i) {
        const int token = piece.stop - (W - 1) + i;
        if (valid && token >= piece.start) recent[i] = Row(load16(x_at + token * C));
      }
      float x[kPer], y[kPer];
#pragma unroll
      for (int i = 0; i < W - 1; ++i) {
        state.place(i, x);
        sums.take(x, y);
      }
#pragma unroll
      for (int i = 0; i < W - 1; ++i) {
        if (piece.stop - (W - 1) + i >= piece.start) state.push(recent[i]);
      }
      if (valid) state.store(at);
    } else {
      skip_to(piece.from - (W - 1));
#pragma unroll 1
      for (float y[kPer]; asked - kStages < piece.from; ask()) sums.take(take(), y);
    }
    skip_to(piece.from);
    if (valid && piece.to > last) {  // past the strip, with a sequence that began in it
#pragma unroll 1
      for (int row = last; row < min(piece.to, asked); ++row) *place(row) = load16(x_at + row * C);
      limit = piece.to;
    }

#pragma unroll 1
    for (int token = piece.from; token < piece.to; ++token, out += row_of_output) {
      float y[kPer];
      sums.take(take(), y);
      ask();
#pragma unroll
      for (int c = 0; c < kPer; ++c) y[c] = silu(y[c]);
      if (of_warp) {
        float square = 0.f;
#pragma unroll
        for (int c = 0; c < kPer; ++c) square = fmaf(y[c], y[c], square);
#pragma unroll
        for (int offset = 1; offset < kLanes; offset *= 2) square += __shfl_xor_sync(kAllLanes, square, offset);
        const float factor = normed ? reciprocal_root(square + kNormEpsilon) : 1.f;
#pragma unroll
        for (int c = 0; c < kPer; ++c) y[c] *= factor;
      }
      if (valid) {
        *reinterpret_cast<uint4*>(out) =
            make_uint4(narrow(y[0], y[1]), narrow(y[2], y[3]), narrow(y[4], y[5]), narrow(y[6], y[7]));
      }
    }
  }
  wait_for_groups<0>();
}

}  // namespace

// --- host -------------------------------------------------------------------------------------------------------

namespace {

namespace ffi = tvm::ffi;

constexpr DLDataType kBFloat16{kDLBfloat, 16, 1}, kFloat32{kDLFloat, 32, 1};
constexpr DLDataType kInt32{kDLInt, 32, 1}, kInt64{kDLInt, 64, 1}, kBool{kDLBool, 8, 1};

const char* name_of(DLDataType x) {
  if (x.lanes != 1) return "a vector type";
  if (x.code == kDLBfloat && x.bits == 16) return "bfloat16";
  if (x.code == kDLFloat && x.bits == 16) return "float16";
  if (x.code == kDLFloat && x.bits == 32) return "float32";
  if (x.code == kDLInt && x.bits == 32) return "int32";
  if (x.code == kDLInt && x.bits == 64) return "int64";
  if (x.code == kDLBool) return "bool";
  return "of another type";
}

bool same(DLDataType x, DLDataType y) { return x.code == y.code && x.bits == y.bits && x.lanes == y.lanes; }

// `alignment`, in bytes: what the widest access of the kernel to this tensor needs.
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
        << name << " is not on the GPU that holds the states";
    TVM_FFI_CHECK(x.numel() == 0 || reinterpret_cast<uintptr_t>(x.data_ptr()) % alignment == 0, ValueError)
        << name << " does not start at a multiple of " << alignment << " bytes";
  }
};

// The distance between slots may be larger than a slot.
int64_t slot_stride_of(const Requirements& require, const ffi::TensorView& pool, int64_t C, int64_t W) {
  require.place("conv_states", pool, kBFloat16, 16);
  TVM_FFI_CHECK(pool.ndim() == 3 && pool.size(1) == C && pool.size(2) == W - 1, ValueError)
      << "conv_states is not [slots, " << C << ", " << W - 1 << "]";
  TVM_FFI_CHECK((pool.stride(2) == 1 || W == 2) && pool.stride(1) == W - 1, ValueError)
      << "conv_states is not contiguous within a slot";
  const int64_t stride = pool.stride(0), of_slot = C * (W - 1);
  TVM_FFI_CHECK(pool.size(0) <= 1 || (stride >= of_slot && stride % kPer == 0), ValueError)
      << "conv_states has " << stride << " elements from slot to slot: it must be " << of_slot << " or more, in steps of "
      << kPer;
  TVM_FFI_CHECK(pool.size(0) <= INT32_MAX, ValueError) << "conv_states has " << pool.size(0) << " slots, past 32 bits";
  return stride;
}

// For debugging: with GDNSPEC_DEBUG=1 a call waits for slots and bounds and checks what the definition asks of them.
// Without, the kernel takes them on trust but for their range.
void check_values(const Problem& p, cudaStream_t stream) {
  static const char* given = std::getenv("GDNSPEC_DEBUG");
  if (given == nullptr || given[0] != '1' || given[1] != '\0') return;
  std::vector<int64_t> bounds(p.N + 1);
  std::vector<int32_t> slots(p.N);
  const auto copy = [&](auto& to, const auto* from) {
    TVM_FFI_CHECK_CUDA_ERROR(
        cudaMemcpyAsync(to.data(), from, to.size() * sizeof(to[0]), cudaMemcpyDeviceToHost, stream));
  };
  copy(bounds, p.cu_seqlens), copy(slots, p.slots);
  TVM_FFI_CHECK_CUDA_ERROR(cudaStreamSynchronize(stream));
  TVM_FFI_CHECK(bounds.front() == 0 && bounds.back() == p.T && std::is_sorted(bounds.begin(), bounds.end()), ValueError)
      << "cu_seqlens must rise from 0 to total_seq_len " << p.T;
  std::unordered_set<int32_t> named;
  for (const int32_t slot : slots) {
    TVM_FFI_CHECK(slot >= -1 && slot < p.num_slots, ValueError)
        << "slots names slot " << slot << "; there are " << p.num_slots;
    TVM_FFI_CHECK(slot == -1 || named.insert(slot).second, ValueError) << "slots names slot " << slot << " twice";
  }
}

// Tokens of a block: as many as make whole waves of blocks, and no more than kLongest; what a strip reads of the one
// before it, and the beginning and end of a block, count for little from kShortest on.
int strip_of(int64_t T, int64_t groups, int multiprocessors) {
  constexpr int64_t kShortest = 16, kLongest = 64;
  const auto over = [](int64_t x, int64_t y) { return (x + y - 1) / y; };
  const int64_t places = int64_t{kBlocks} * multiprocessors;
  const int64_t waves = over(over(T, kLongest) * groups, places), strips = std::max<int64_t>(waves * places / groups, 1);
  return static_cast<int>(std::clamp(over(T, strips), kShortest, kLongest));
}

template <int D, int W, bool Bias>
void launch(Problem p, DLDevice device, cudaStream_t stream) {
  struct Gpu {
    int multiprocessors = 0, major = 0;
    explicit Gpu(int id) {
      TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, id));
      TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id));
    }
  };
  static const Gpu gpu(device.device_id);  // of the first device: the module is built for one architecture
  constexpr int kHeads = kThreads * kPer / D;
  p.groups = (2 * p.HK + p.H + kHeads - 1) / kHeads;
  p.strip = strip_of(p.T, p.groups, gpu.multiprocessors);
  const int64_t blocks = (int64_t{p.T} + p.strip - 1) / p.strip * p.groups;
  TVM_FFI_CHECK(blocks <= INT32_MAX, ValueError) << p.T << " tokens of " << p.H << " value heads are not served";
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks)), config.blockDim = dim3(kThreads), config.stream = stream;
  config.attrs = &early, config.numAttrs = gpu.major >= 9 ? 1 : 0;
  TVM_FFI_CHECK_CUDA_ERROR(cudaLaunchKernelEx(&config, gdn_conv_gates_kernel<D, W, Bias>, p));
}

template <int D, int W>
void launch(const Problem& p, DLDevice device, cudaStream_t stream) {
  p.bias == nullptr ? launch<D, W, false>(p, device, stream) : launch<D, W, true>(p, device, stream);
}

template <int D>
void launch(const Problem& p, int64_t W, DLDevice device, cudaStream_t stream) {
  switch (W) {
    case 2: return launch<D, 2>(p, device, stream);
    case 3: return launch<D, 3>(p, device, stream);
    default: return launch<D, 4>(p, device, stream);
  }
}

void conv_gates_prefill(ffi::TensorView x, ffi::TensorView conv_weight, ffi::Optional<ffi::TensorView> conv_bias,
                        ffi::TensorView a, ffi::TensorView b, ffi::TensorView A_log, ffi::TensorView dt_bias,
                        ffi::TensorView cu_seqlens, ffi::TensorView conv_states, ffi::TensorView slots,
                        ffi::TensorView has_initial_state, int64_t D, ffi::TensorView q, ffi::TensorView k,
                        ffi::TensorView v, ffi::TensorView g, ffi::TensorView beta) {
  TVM_FFI_CHECK(D == 64 || D == 128 || D == 256, ValueError)
      << "head_dim " << D << " is not served: 64, 128 and 256 are";
  TVM_FFI_CHECK(x.ndim() == 2 && a.ndim() == 2, ValueError) << "x and a have two dimensions";
  TVM_FFI_CHECK(conv_weight.ndim() == 2, ValueError) << "conv_weight has two dimensions";
  TVM_FFI_CHECK(cu_seqlens.ndim() == 1 && cu_seqlens.size(0) >= 2, ValueError) << "cu_seqlens has num_seqs + 1 entries";
  const int64_t T = x.size(0), C = x.size(1), H = a.size(1), W = conv_weight.size(1), N = cu_seqlens.size(0) - 1;
  const int64_t of_keys = C - H * D, HK = of_keys / (2 * D);
  TVM_FFI_CHECK(W >= 2 && W <= 4, ValueError) << "kernel width " << W << " is not served: 2 to 4 are";
  TVM_FFI_CHECK(H > 0 && of_keys > 0 && of_keys % (2 * D) == 0 && H % HK == 0, ValueError)
      << "rows of " << C << " channels are not q, k and v of " << H << " value heads of " << D;
  TVM_FFI_CHECK(T < INT32_MAX - 1024 && N < INT32_MAX && C <= INT32_MAX, ValueError)
      << T << " tokens, " << N << " sequences and " << C << " channels are not served";
  const Requirements require{conv_states.device()};
  const int64_t slot_stride = slot_stride_of(require, conv_states, C, W);
  require("x", x, kBFloat16, 16, {T, C});
  require("conv_weight", conv_weight, kBFloat16, 16, {C, W});
  if (conv_bias.has_value()) require("conv_bias", conv_bias.value(), kBFloat16, 16, {C});
  require("a", a, kBFloat16, 2, {T, H});
  require("b", b, kBFloat16, 2, {T, H});
  require("A_log", A_log, kFloat32, 4, {H});
  require("dt_bias", dt_bias, kBFloat16, 2, {H});
  require("cu_seqlens", cu_seqlens, kInt64, 8, {N + 1});
  require("slots", slots, kInt32, 4, {N});
  require("has_initial_state", has_initial_state, kBool, 1, {N});
  require("q", q, kBFloat16, 16, {T, HK, D});
  require("k", k, kBFloat16, 16, {T, HK, D});
  require("v", v, kBFloat16, 16, {T, H, D});
  require("g", g, kFloat32, 4, {T, H});
  require("beta", beta, kFloat32, 4, {T, H});

  const auto as_bf16 = [](const ffi::TensorView& t) { return static_cast<bf16*>(t.data_ptr()); };
  Problem p{};
  p.x = as_bf16(x), p.weight = as_bf16(conv_weight), p.bias = conv_bias.has_value() ? as_bf16(conv_bias.value()) : nullptr;
  p.a = as_bf16(a), p.b = as_bf16(b), p.dt_bias = as_bf16(dt_bias);
  p.A_log = static_cast<const float*>(A_log.data_ptr());
  p.cu_seqlens = static_cast<const int64_t*>(cu_seqlens.data_ptr());
  p.pool = as_bf16(conv_states), p.slot_stride = slot_stride;
  p.slots = static_cast<const int32_t*>(slots.data_ptr());
  p.carried = static_cast<const uint8_t*>(has_initial_state.data_ptr());
  p.q = as_bf16(q), p.k = as_bf16(k), p.v = as_bf16(v);
  p.g = static_cast<float*>(g.data_ptr()), p.beta = static_cast<float*>(beta.data_ptr());
  p.T = static_cast<int>(T), p.N = static_cast<int>(N), p.num_slots = static_cast<int>(conv_states.size(0));
  p.HK = static_cast<int>(HK), p.H = static_cast<int>(H);

  const ffi::CUDADeviceGuard guard(require.device.device_id);
  const auto stream =
      static_cast<cudaStream_t>(TVMFFIEnvGetStream(require.device.device_type, require.device.device_id));
  check_values(p, stream);
  if (T == 0) return;  // an empty grid is an error; states stay
  switch (D) {
    case 64: return launch<64>(p, W, require.device, stream);
    case 128: return launch<128>(p, W, require.device, stream);
    default: return launch<256>(p, W, require.device, stream);
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_conv_gates_prefill, conv_gates_prefill);
