// The tensors of a call become Arguments, which are launched.
#pragma once
#include <tvm/ffi/optional.h>

#include <cmath>
#include <type_traits>

#include "launch.cuh"
#include "values.cuh"

namespace {

constexpr int64_t kEarlyBytes = int64_t{16} << 20;  // of states that are asked for early: what blocks begin with

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
