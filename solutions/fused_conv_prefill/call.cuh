// The tensors of a call become a Problem, which is launched.
#pragma once
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/optional.h>

#include "launch.cuh"
#include "values.cuh"

namespace {

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
