// Gated delta rule, one token for every sequence of a batch, in CUDA C++.
//
// The state is nearly all of the traffic: D x D floats of every head, read once, written once. So each thread asks for
// all of its part of the state before anything else, in 16-byte loads, and computes gates and norms while those are
// under way. Value channels never mix: every block owns some of them, for all key channels, and blocks share nothing.
//
//   k_last   [V, K]: a row of S is contiguous in key channels. A group of lanes holds a row, and sums over its lanes.
//   k_first  [K, V]: contiguous in value channels. A block holds 32 of them, and sums over its threads.
//
// float32 throughout; the output is rounded once.

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
#include <limits>

namespace {

namespace ffi = tvm::ffi;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kNormEpsilon = 1e-6f;

// H: heads of state, gates and output. A query and key head serves H / key_heads value heads.
struct Arguments {
  const __nv_bfloat16 *q, *k, *v;      // [B, key_heads, D], [B, key_heads, D], [B, H, D]
  const float* state;                  // [B, H, D, D]
  const float* A_log;                  // [H]
  const __nv_bfloat16 *a, *dt_bias, *b;  // [B, H], [H], [B, H]
  __nv_bfloat16* output;               // [B, H, D]
  float* new_state;                    // [B, H, D, D]
  int H, key_heads;
  float scale;
  bool normalise;
};

// --- pieces of both kernels -------------------------------------------------------------------------------------

__device__ __forceinline__ float4 load4(const __nv_bfloat16* from) {
  // A bfloat16 is the upper half of a float32.
  const uint2 x = __ldg(reinterpret_cast<const uint2*>(from));
  return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                     __uint_as_float(x.y & 0xffff0000u));
}

__device__ __forceinline__ float dot(float4 x, float4 y) { return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w; }

__device__ __forceinline__ float4 operator*(float s, float4 x) {
  return make_float4(s * x.x, s * x.y, s * x.z, s * x.w);
}

// acc + s * x
__device__ __forceinline__ float4 add(float4 acc, float s, float4 x) {
  return make_float4(fmaf(s, x.x, acc.x), fmaf(s, x.y, acc.y), fmaf(s, x.z, acc.z), fmaf(s, x.w, acc.w));
}

// The sum over aligned groups of `Lanes` lanes; every lane of a group gets it.
template <int Lanes>
__device__ __forceinline__ float sum_lanes(float x) {
#pragma unroll
  for (int offset = Lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// 1 / sqrt(|x|^2 + eps) of a vector of D <= 128 elements. Every warp computes it for itself: no barrier.
template <int D>
__device__ __forceinline__ float inverse_norm(const __nv_bfloat16* x) {
  const int at = 4 * (threadIdx.x % 32);
  float4 part = make_float4(0.f, 0.f, 0.f, 0.f);
  if (at < D) part = load4(x + at);
  return rsqrtf(sum_lanes<32>(dot(part, part)) + kNormEpsilon);
}

struct Gates {
  float alpha, beta;
};

__device__ __forceinline__ Gates gates(const Arguments& p, int64_t row, int h) {
  const float x = __bfloat162float(p.a[row]) + __bfloat162float(p.dt_bias[h]);
  const float softplus = fmaxf(x, 0.f) + log1pf(expf(-fabsf(x)));  // no threshold
  return {expf(-expf(p.A_log[h]) * softplus), 1.f / (1.f + expf(-__bfloat162float(p.b[row])))};
}

// What a block works on: a tile of the value channels of one head of one sequence.
struct Place {
  int tile, h;
  int64_t row;       // b * H + h
  int64_t key_head;  // its row in q and k
};

__device__ __forceinline__ Place place(const Arguments& p, int tiles) {
  const int tile = blockIdx.x % tiles;
  const int row = blockIdx.x / tiles;
  const int h = row % p.H;
  const int64_t b = row / p.H;
  return {tile, h, row, b * p.key_heads + h / (p.H / p.key_heads)};
}

// --- k_last: S [V, K] -------------------------------------------------------------------------------------------

template <int D>
struct RowTile {
  static constexpr int kLanes = D <= 64 ? 16 : 32;  // four key channels each
  static constexpr int kGroups = kThreads / kLanes;
  static constexpr int kInFlight = 8;  // rows of a group: that many 16-byte loads a thread
  static constexpr int kRows = kGroups * kInFlight;
  static constexpr int kTiles = (D + kRows - 1) / kRows;
  static_assert(D % 4 == 0 && D <= 4 * kLanes);
};

template <int D>
__global__ void __launch_bounds__(kThreads) gdn_decode_k_last_bf16_kernel(const Arguments p) {
  using Tile = RowTile<D>;
  const Place at = place(p, Tile::kTiles);
  const int lane = threadIdx.x % Tile::kLanes;
  const int group = threadIdx.x / Tile::kLanes;
  const int key = 4 * lane;  // this lane's first key channel
  const bool has_keys = key < D;
  const int64_t head = at.row * (D * D);

  float4 S[Tile::kInFlight];
  float v[Tile::kInFlight];
#pragma unroll
  for (int r = 0; r < Tile::kInFlight; ++r) {
    const int i = at.tile * Tile::kRows + r * Tile::kGroups + group;  // value channel
    S[r] = make_float4(0.f, 0.f, 0.f, 0.f);
    v[r] = 0.f;
    if (i < D) {
      if (has_keys) S[r] = __ldcs(reinterpret_cast<const float4*>(p.state + head + i * D + key));
      v[r] = __bfloat162float(p.v[at.row * D + i]);
    }
  }

  const __nv_bfloat16* q_at = p.q + at.key_head * D;
  const __nv_bfloat16* k_at = p.k + at.key_head * D;
  float4 q = make_float4(0.f, 0.f, 0.f, 0.f);
  float4 k = q;
  if (has_keys) {
    q = load4(q_at + key);
    k = load4(k_at + key);
  }
  if (p.normalise) {
    q = inverse_norm<D>(q_at) * q;
    k = inverse_norm<D>(k_at) * k;
  }
  const Gates gate = gates(p, at.row, at.h);

#pragma unroll
  for (int r = 0; r < Tile::kInFlight; ++r) {
    const int i = at.tile * Tile::kRows + r * Tile::kGroups + group;
    // No lane leaves early: the shuffles need all of them. Channels past D hold zeros and store nothing.
    S[r] = gate.alpha * S[r];
    const float u = gate.beta * (v[r] - sum_lanes<Tile::kLanes>(dot(S[r], k)));
    S[r] = add(S[r], u, k);
    const float o = p.scale * sum_lanes<Tile::kLanes>(dot(S[r], q));
    if (i < D) {
      if (has_keys) __stcs(reinterpret_cast<float4*>(p.new_state + head + i * D + key), S[r]);
      if (lane == 0) p.output[at.row * D + i] = __float2bfloat16_rn(o);
    }
  }
}

// --- k_first: S [K, V] ------------------------------------------------------------------------------------------

template <int D>
struct ColumnTile {
  static constexpr int kColumns = 8;                         // threads side by side, four value channels each
  static constexpr int kChannels = 4 * kColumns;             // 128 bytes of a row of the state
  static constexpr int kKeys = kThreads / kColumns;          // key channels at a time
  static constexpr int kInFlight = (D + kKeys - 1) / kKeys;  // 16-byte loads a thread
  static constexpr int kTiles = (D + kChannels - 1) / kChannels;
  static_assert(D % 4 == 0 && D <= 128);
};

// The sum over all key channels: over the lanes of a warp that share a column, then over the warps. All threads call it.
template <int Columns>
__device__ __forceinline__ float4 sum_keys(float4 x, float4 (&partial)[kWarps][Columns]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int offset = Columns; offset < 32; offset *= 2) {
    x.x += __shfl_xor_sync(kAllLanes, x.x, offset);
    x.y += __shfl_xor_sync(kAllLanes, x.y, offset);
    x.z += __shfl_xor_sync(kAllLanes, x.z, offset);
    x.w += __shfl_xor_sync(kAllLanes, x.w, offset);
  }
  if (lane < Columns) partial[threadIdx.x / 32][lane] = x;
  __syncthreads();
  float4 sum = partial[0][lane % Columns];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) sum = add(sum, 1.f, partial[warp][lane % Columns]);
  return sum;
}

template <int D>
__global__ void __launch_bounds__(kThreads) gdn_decode_k_first_bf16_kernel(const Arguments p) {
  using Tile = ColumnTile<D>;
  // A buffer for each of the two sums: neither waits for the other to be read.
  __shared__ float4 partial[2][kWarps][Tile::kColumns];
  const Place at = place(p, Tile::kTiles);
  const int first_key = threadIdx.x / Tile::kColumns;
  const int i = at.tile * Tile::kChannels + 4 * (threadIdx.x % Tile::kColumns);  // first of four value channels
  const bool has_channels = i < D;
  const int64_t head = at.row * (D * D);

  float4 S[Tile::kInFlight];  // S[r]: value channels i .. i + 3 under key channel r * kKeys + first_key
#pragma unroll
  for (int r = 0; r < Tile::kInFlight; ++r) {
    const int j = r * Tile::kKeys + first_key;
    S[r] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (j < D && has_channels) S[r] = __ldcs(reinterpret_cast<const float4*>(p.state + head + j * D + i));
  }

  const __nv_bfloat16* q_at = p.q + at.key_head * D;
  const __nv_bfloat16* k_at = p.k + at.key_head * D;
  float q[Tile::kInFlight], k[Tile::kInFlight];
#pragma unroll
  for (int r = 0; r < Tile::kInFlight; ++r) {
    const int j = r * Tile::kKeys + first_key;
    q[r] = j < D ? __bfloat162float(q_at[j]) : 0.f;
    k[r] = j < D ? __bfloat162float(k_at[j]) : 0.f;
  }
  float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
  if (has_channels) v = load4(p.v + at.row * D + i);
  const float q_factor = p.normalise ? inverse_norm<D>(q_at) : 1.f;
  const float k_factor = p.normalise ? inverse_norm<D>(k_at) : 1.f;
  const Gates gate = gates(p, at.row, at.h);

  float4 held = make_float4(0.f, 0.f, 0.f, 0.f);  // S k, of the decayed state
#pragma unroll
  for (int r = 0; r < Tile::kInFlight; ++r) {
    k[r] *= k_factor;
    S[r] = gate.alpha * S[r];
    held = add(held, k[r], S[r]);
  }
  held = sum_keys<Tile::kColumns>(held, partial[0]);
  const float4 u = gate.beta * add(v, -1.f, held);

  float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (int r = 0; r < Tile::kInFlight; ++r) {
    const int j = r * Tile::kKeys + first_key;
    S[r] = add(S[r], k[r], u);
    o = add(o, q_factor * q[r], S[r]);
    if (j < D && has_channels) __stcs(reinterpret_cast<float4*>(p.new_state + head + j * D + i), S[r]);
  }
  o = p.scale * sum_keys<Tile::kColumns>(o, partial[1]);
  if (has_channels && threadIdx.x < Tile::kColumns) {
    // D is a multiple of 4, so four bfloat16 of a row start at a multiple of 8 bytes.
    __nv_bfloat162* out = reinterpret_cast<__nv_bfloat162*>(p.output + at.row * D + i);
    out[0] = __floats2bfloat162_rn(o.x, o.y);
    out[1] = __floats2bfloat162_rn(o.z, o.w);
  }
}

// --- host -------------------------------------------------------------------------------------------------------

constexpr DLDataType kBFloat16{kDLBfloat, 16, 1};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};

// `alignment`, in bytes: what the widest access of the kernels to this tensor needs.
void require(const char* name, const ffi::TensorView& x, DLDataType dtype, ffi::Shape shape, DLDevice device,
             unsigned alignment) {
  const DLDataType is = x.dtype();
  TVM_FFI_CHECK(is.code == dtype.code && is.bits == dtype.bits && is.lanes == 1, TypeError)
      << name << " has another dtype than " << (dtype.bits == 16 ? "bfloat16" : "float32");
  TVM_FFI_CHECK(x.device().device_type == kDLCUDA && x.device().device_id == device.device_id, ValueError)
      << name << " is not on the GPU that holds state";
  TVM_FFI_CHECK(x.ndim() == static_cast<int32_t>(shape.size()), ValueError)
      << name << " has " << x.ndim() << " dimensions, not " << shape.size();
  for (int32_t i = 0; i < x.ndim(); ++i) {
    TVM_FFI_CHECK(x.size(i) == shape[i], ValueError)
        << name << " has size " << x.size(i) << " in dimension " << i << ", not " << shape[i];
  }
  TVM_FFI_CHECK(x.IsContiguous(), ValueError) << name << " is not contiguous";
  TVM_FFI_CHECK(reinterpret_cast<uintptr_t>(x.data_ptr()) % alignment == 0, ValueError)
      << name << " does not start at a multiple of " << alignment << " bytes";
}

template <bool KFirst, int D>
void launch(const Arguments& p, int64_t rows, cudaStream_t stream) {
  constexpr int tiles = KFirst ? ColumnTile<D>::kTiles : RowTile<D>::kTiles;
  TVM_FFI_CHECK(rows * tiles <= std::numeric_limits<int32_t>::max(), ValueError) << "the batch is too large";
  const unsigned blocks = static_cast<unsigned>(rows * tiles);
  if constexpr (KFirst) {
    gdn_decode_k_first_bf16_kernel<D><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    gdn_decode_k_last_bf16_kernel<D><<<blocks, kThreads, 0, stream>>>(p);
  }
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

template <bool KFirst>
void decode(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, ffi::TensorView state, ffi::TensorView A_log,
            ffi::TensorView a, ffi::TensorView dt_bias, ffi::TensorView b, ffi::Optional<double> scale,
            ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output, ffi::TensorView new_state) {
  TVM_FFI_CHECK(state.ndim() == 4 && q.ndim() == 4, ValueError)
      << "state is [batch_size, num_sab_heads, head_size, head_size], q [batch_size, 1, num_q_heads, head_size]";
  const int64_t B = state.size(0), H = state.size(1), D = state.size(2), key_heads = q.size(2);
  const DLDevice device = state.device();
  TVM_FFI_CHECK(key_heads > 0 && H % key_heads == 0, ValueError)
      << "num_q_heads " << key_heads << " does not divide num_v_heads " << H;
  require("q", q, kBFloat16, {B, 1, key_heads, D}, device, 8);
  require("k", k, kBFloat16, {B, 1, key_heads, D}, device, 8);
  require("v", v, kBFloat16, {B, 1, H, D}, device, 8);
  require("state", state, kFloat32, {B, H, D, D}, device, 16);
  require("A_log", A_log, kFloat32, {H}, device, 4);
  require("a", a, kBFloat16, {B, 1, H}, device, 2);
  require("dt_bias", dt_bias, kBFloat16, {H}, device, 2);
  require("b", b, kBFloat16, {B, 1, H}, device, 2);
  require("output", output, kBFloat16, {B, 1, H, D}, device, 4);
  require("new_state", new_state, kFloat32, {B, H, D, D}, device, 16);
  if (B == 0 || H == 0) return;  // an empty grid is an error

  auto bf16 = [](const ffi::TensorView& x) { return static_cast<__nv_bfloat16*>(x.data_ptr()); };
  auto f32 = [](const ffi::TensorView& x) { return static_cast<float*>(x.data_ptr()); };
  Arguments p;
  p.q = bf16(q), p.k = bf16(k), p.v = bf16(v);
  p.state = f32(state), p.A_log = f32(A_log);
  p.a = bf16(a), p.dt_bias = bf16(dt_bias), p.b = bf16(b);
  p.output = bf16(output), p.new_state = f32(new_state);
  p.H = static_cast<int>(H), p.key_heads = static_cast<int>(key_heads);
  p.scale = static_cast<float>(scale.has_value() ? scale.value() : 1.0 / std::sqrt(static_cast<double>(D)));
  p.normalise = use_qk_l2norm.has_value() ? use_qk_l2norm.value() : true;

  const ffi::CUDADeviceGuard guard(device.device_id);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  switch (D) {
    case 64: return launch<KFirst, 64>(p, B * H, stream);
    case 120: return launch<KFirst, 120>(p, B * H, stream);
    case 128: return launch<KFirst, 128>(p, B * H, stream);
    default: TVM_FFI_THROW(ValueError) << "head_size " << D << " is not served: 64, 120 and 128 are";
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_decode_k_last, decode<false>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_decode_k_first, decode<true>);
