// The inputs of a call become the arguments of a kernel, which is launched.
#pragma once
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/optional.h>

#include <cmath>

#include "host_checks.cuh"
#include "launch_rows.cuh"

namespace {

// The sizes that all definitions share.
struct Sizes {
  int64_t rows, key_heads, H, D;

  Sizes(int64_t rows, int64_t key_heads, int64_t H, int64_t D) : rows(rows), key_heads(key_heads), H(H), D(D) {
    TVM_FFI_CHECK(D == 64 || D == 128 || D == 256, ValueError)
        << "head_size " << D << " is not served: 64, 128 and 256 are";
    TVM_FFI_CHECK(key_heads > 0 && H % key_heads == 0, ValueError)
        << "num_q_heads " << key_heads << " does not divide num_v_heads " << H;
    TVM_FFI_CHECK(rows <= 65535 && key_heads <= 65535 && H <= 32767, ValueError)
        << "a batch of " << rows << " rows and " << H << " heads is not served: 65535 and 32767 are the most";
  }
};

// What every definition has.
template <class E>
Arguments<E> arguments(const Requirements& require, const Sizes& n, ffi::TensorView A_log, ffi::TensorView dt_bias,
                       ffi::Optional<double> lower_bound, ffi::Optional<double> scale,
                       ffi::Optional<bool> use_qk_l2norm) {
  require("A_log", A_log, kFloat32, 4, {n.H});
  require("dt_bias", dt_bias, kFloat32, 4, {n.H, n.D});
  Arguments<E> p{};
  p.A_log = static_cast<const float*>(A_log.data_ptr());
  p.dt_bias = static_cast<const float*>(dt_bias.data_ptr());
  p.H = static_cast<int>(n.H);
  p.scale = static_cast<float>(scale.has_value() ? scale.value() : 1.0 / std::sqrt(static_cast<double>(n.D)));
  p.normalise = use_qk_l2norm.has_value() ? use_qk_l2norm.value() : true;
  p.lower_bound = static_cast<float>(lower_bound.has_value() ? lower_bound.value() : 0.0);
  p.bounded = p.lower_bound != 0.f;  // 0 stands for no bound
  return p;
}

// Tokens in tensors of their own, [B, 1, heads, D].
template <class E>
void take_tokens(Arguments<E>& p, const Requirements& require, const Sizes& n, ffi::TensorView q, ffi::TensorView k,
                 ffi::TensorView v, ffi::TensorView a, ffi::TensorView b, ffi::TensorView output) {
  require("q", q, kBFloat16, 16, {n.rows, 1, n.key_heads, n.D});
  require("k", k, kBFloat16, 16, {n.rows, 1, n.key_heads, n.D});
  require("v", v, kBFloat16, 16, {n.rows, 1, n.H, n.D});
  require("a", a, kBFloat16, 16, {n.rows, 1, n.H, n.D});
  require("b", b, kBFloat16, 2, {n.rows, 1, n.H});
  require("output", output, kBFloat16, 8, {n.rows, 1, n.H, n.D});
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

template <class E, Slots slots>
void launch(const Arguments<E>& p, const Sizes& n, DLDevice device) {
  if (n.rows == 0 || n.H == 0) return;  // an empty grid is an error
  const ffi::CUDADeviceGuard guard(device.device_id);
  const cudaStream_t stream = stream_of(device);
  const dim3 heads(static_cast<unsigned>(n.H / n.key_heads), static_cast<unsigned>(n.key_heads),
                   static_cast<unsigned>(n.rows));
  switch (n.D) {
    case 64: return launch_k_last<E, 64, slots>(p, heads, stream);
    case 128: return launch_k_last<E, 128, slots>(p, heads, stream);
    default: return launch_k_last<E, 256, slots>(p, heads, stream);
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

}  // namespace
