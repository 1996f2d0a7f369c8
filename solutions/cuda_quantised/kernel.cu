// The gated delta rule on quantised states: decode and verify on pools of codes, with one scale for each value row.
//
// The way of cuda_decode's k_last kernel: everything is asked for before anything is waited for, and one reduction stands
// between the state's arrival and its return. Here the state is a byte an element.
//
//   scales, codes asked for ──> numbers in registers ──> sums over eight lanes ──> outputs, new state in registers
//                                                            largest magnitude of each row, over eight lanes
//                                                                 └──> scale, codes to memory
//
//   code_rows.cuh   the kernel; codes.cuh makes numbers of codes and codes of numbers, units.cuh the scales
//   in_turn.cuh     the kernel for decode of many heads, whose rows a block takes in turn
//   whole_heads.cuh the kernel for decode of very many; head_rows.cuh its rows, halves.cuh and copies.cuh its instructions
//   tiles.cuh       which call takes which kernel, and its tile: the place to tune
//   kernel.cu       what the manifest names, and what a call is held to
//   place.cuh, slots.cuh, rule.cuh, instructions.cuh, words.cuh, problem.cuh, call.cuh, host_checks.cuh
//                   as in cuda_decode

#include <cuda_bf16.h>
#include <tvm/ffi/extra/cuda/base.h>
#include <tvm/ffi/function.h>

#include "call.cuh"
#include "tiles.cuh"

namespace {

constexpr DLDataType kE4M3{kDLFloat8_e4m3fn, 8, 1};
constexpr DLDataType kInt8{kDLInt, 8, 1};

// Has early launch, and copies to shared memory. Of the first device: the module is built for one architecture.
bool is_hopper() {
  static const bool found = [] {
    int major = 0;
    TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major >= 9;
  }();
  return found;
}

template <class Tile, class E>
void launch(void (*kernel)(CodeArguments<E>), const CodeArguments<E>& p, dim3 heads, cudaStream_t stream,
            size_t shared_bytes = 0) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(heads.x * Tile::kTiles, heads.y, heads.z), config.blockDim = dim3(Tile::kThreads), config.stream = stream;
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &early, config.numAttrs = is_hopper() ? 1 : 0;
  TVM_FFI_CHECK_CUDA_ERROR(cudaLaunchKernelEx(&config, kernel, p));
}

template <class E, int D>
void launch_whole_heads(const CodeArguments<E>& p, dim3 heads, cudaStream_t stream) {
  using Tile = WholeTile<D, 4, 4>;
  const auto kernel = gdn_quantised_whole_heads_kernel<E, D, Tile>;
  static const bool set = [&] {  // room for all blocks that registers leave room for
    TVM_FFI_CHECK_CUDA_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    return true;
  }();
  static_cast<void>(set);
  launch<Tile>(kernel, p, heads, stream, Tile::kShared);
}

template <class E, int D, Slots slots>
void launch_codes(const CodeArguments<E>& p, dim3 heads, cudaStream_t stream) {
  if constexpr (slots == Slots::kPool && D == 128) {
    const int64_t count = int64_t{heads.x} * heads.y * heads.z;
    if (count >= kVeryManyHeads && is_hopper()) return launch_whole_heads<E, D>(p, heads, stream);
    if (count >= kManyHeads) {
      return launch<HeadTile<E, D>>(gdn_quantised_in_turn_kernel<E, D, HeadTile<E, D>>, p, heads, stream);
    }
  }
  using Tile = typename CodeTile<E, D, slots>::Type;
  launch<Tile>(gdn_quantised_k_last_kernel<E, D, slots, Tile>, p, heads, stream);
}

// A pool is contiguous within a slot; slots may stand apart.
void require_pool(const char* name, const ffi::TensorView& x, int64_t of_slot, bool contiguous, int64_t step) {
  const int64_t stride = x.stride(0);
  TVM_FFI_CHECK(contiguous, ValueError) << name << " is not contiguous within a slot";
  TVM_FFI_CHECK(x.size(0) <= 1 || (stride >= of_slot && stride % step == 0), ValueError)
      << name << " has " << stride << " elements from slot to slot: it must be " << of_slot << " or more, in steps of "
      << step;
}

template <class E, Slots slots>
void in_pool(const Sizes& n, ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, ffi::TensorView pool,
             ffi::TensorView scales, ffi::TensorView read, ffi::TensorView write, const ffi::TensorView* accepted,
             ffi::TensorView A_log, ffi::TensorView a, ffi::TensorView dt_bias, ffi::TensorView b,
             ffi::Optional<double> scale, ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output,
             const char* const (&names)[2]) {
  const Requirements require{pool.device()};
  CodeArguments<E> p{arguments<E>(require, n, A_log, dt_bias, scale, use_qk_l2norm)};
  take_tokens(p, require, n, q, k, v, a, b, output);
  require.place("pool", pool, pool.dtype(), 16);
  require.place("pool_scales", scales, kFloat32, 16);
  require_dimensions("pool_scales", scales, 3);
  TVM_FFI_CHECK(pool.size(2) == n.D, ValueError) << "pool has size " << pool.size(2) << " in dimension 2, not " << n.D;
  TVM_FFI_CHECK(scales.size(0) == pool.size(0) && scales.size(1) == n.H && scales.size(2) == n.D, ValueError)
      << "pool_scales does not have one scale for each row of pool";
  require_pool("pool", pool, n.H * n.D * n.D,
               pool.stride(3) == 1 && pool.stride(2) == n.D && (pool.stride(1) == n.D * n.D || n.H == 1), 16);
  require_pool("pool_scales", scales, n.H * n.D, scales.stride(2) == 1 && (scales.stride(1) == n.D || n.H == 1), 4);
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
  p.slot_stride = pool.stride(0);
  p.scales = static_cast<float*>(scales.data_ptr());
  p.scales_stride = scales.stride(0);
  p.num_slots = static_cast<int>(pool.size(0));
  p.read = static_cast<const int32_t*>(read.data_ptr());
  p.write = static_cast<const int32_t*>(write.data_ptr());
  if (n.rows == 0 || n.H == 0) return;  // an empty grid is an error
  const ffi::CUDADeviceGuard guard(require.device.device_id);
  const dim3 heads(static_cast<unsigned>(n.H / n.key_heads), static_cast<unsigned>(n.key_heads),
                   static_cast<unsigned>(n.rows));
  const cudaStream_t stream = stream_of(require.device);
  switch (n.D) {
    case 64: return launch_codes<E, 64, slots>(p, heads, stream);
    case 128: return launch_codes<E, 128, slots>(p, heads, stream);
    default: return launch_codes<E, 256, slots>(p, heads, stream);
  }
}

// Calls `f` with a value of the type of the pool's codes.
template <class F>
void by_code(const ffi::TensorView& pool, F f) {
  if (same(pool.dtype(), kE4M3)) return f(e4m3{});
  TVM_FFI_CHECK(same(pool.dtype(), kInt8), ValueError) << "pool is neither float8_e4m3fn nor int8";
  f(int8_t{});
}

void decode_pool(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, ffi::TensorView pool,
                 ffi::TensorView pool_scales, ffi::TensorView read_slots, ffi::TensorView write_slots,
                 ffi::TensorView A_log, ffi::TensorView a, ffi::TensorView dt_bias, ffi::TensorView b,
                 ffi::Optional<double> scale, ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output) {
  require_dimensions("pool", pool, 4);
  require_dimensions("q", q, 4);
  const Sizes n(q.size(0), 1, q.size(2), pool.size(1), pool.size(3));
  by_code(pool, [&](auto code) {
    in_pool<decltype(code), Slots::kPool>(n, q, k, v, pool, pool_scales, read_slots, write_slots, nullptr, A_log, a,
                                          dt_bias, b, scale, use_qk_l2norm, output, {"read_slots", "write_slots"});
  });
}

void verify(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, ffi::TensorView pool, ffi::TensorView pool_scales,
            ffi::TensorView initial_slots, ffi::TensorView state_slots, ffi::TensorView accepted,
            ffi::TensorView A_log, ffi::TensorView a, ffi::TensorView dt_bias, ffi::TensorView b,
            ffi::Optional<double> scale, ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output) {
  require_dimensions("pool", pool, 4);
  require_dimensions("q", q, 4);
  const Sizes n(q.size(0), q.size(1), q.size(2), pool.size(1), pool.size(3));
  by_code(pool, [&](auto code) {
    in_pool<decltype(code), Slots::kVerify>(n, q, k, v, pool, pool_scales, initial_slots, state_slots, &accepted, A_log,
                                            a, dt_bias, b, scale, use_qk_l2norm, output,
                                            {"initial_slots", "state_slots"});
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_decode_pool_k_last, decode_pool);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_verify_k_last, verify);
