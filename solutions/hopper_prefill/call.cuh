// From the tensors of a call to its launches.
#pragma once
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/optional.h>

#include <array>
#include <cmath>
#include <mutex>

#include "bounds.cuh"
#include "cut_64.cuh"
#include "launch.cuh"
#include "maps.cuh"

namespace {

using MaybeTensor = ffi::Optional<ffi::TensorView>;

template <class T>
T* pointer(const MaybeTensor& x) {
  return x.has_value() ? static_cast<T*>(x.value().data_ptr()) : nullptr;
}

#ifdef GDN_CLOCKS
unsigned* clocks_to = nullptr;
void set_clocks(ffi::TensorView to) { clocks_to = static_cast<unsigned*>(to.data_ptr()); }
#endif

// What the driver says, asked once a device: clocks take it milliseconds.
Device device_at(int device) {
  constexpr int kKept = 64;
  static std::array<std::once_flag, kKept> asked;
  static std::array<Device, kKept> kept;
  const auto ask = [&] {
    const auto say = [&](cudaDeviceAttr what) {
      int value = 0;
      TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&value, what, device));
      return value;
    };
    return device_of(say(cudaDevAttrMultiProcessorCount), say(cudaDevAttrClockRate), say(cudaDevAttrMemoryClockRate),
                     say(cudaDevAttrGlobalMemoryBusWidth));
  };
  if (device < 0 || device >= kKept) return ask();
  std::call_once(asked[device], [&] { kept[device] = ask(); });
  return kept[device];
}

// Shapes as in the definitions; `interval` in tokens, 0 without checkpoints.
void prefill(bool k_first, const ffi::TensorView& q, const ffi::TensorView& k, const ffi::TensorView& v, const MaybeTensor& g,
             const MaybeTensor& beta, const ffi::TensorView& cu_seqlens, const MaybeTensor& initial_state,
             ffi::Optional<double> scale, const ffi::TensorView& output, const ffi::TensorView& final_state,
             const MaybeTensor& checkpoint_cu_starts, int64_t interval, const MaybeTensor& checkpoints) {
  TVM_FFI_CHECK(q.ndim() == 3 && k.ndim() == 3 && v.ndim() == 3, ValueError) << "q, k and v have three dimensions";
  TVM_FFI_CHECK(cu_seqlens.ndim() == 1 && cu_seqlens.size(0) >= 2, ValueError) << "cu_seqlens has num_seqs + 1 entries";
  const DLDevice device = q.device();
  TVM_FFI_CHECK(device.device_type == kDLCUDA, ValueError) << "q is not on a GPU";
  const int64_t T = q.size(0), HQ = q.size(1), HK = k.size(1), HV = v.size(1), H = std::max(HQ, HV);
  const int64_t N = cu_seqlens.size(0) - 1, D = q.size(2);
  TVM_FFI_CHECK(D == 64 || D == 128, ValueError) << "head_size " << D << " is not served: 64 and 128 are";
  TVM_FFI_CHECK(HQ > 0 && HK > 0 && HV > 0 && ((HK == HV && HQ % HK == 0) || (HQ == HK && HV % HQ == 0)), ValueError)
      << HQ << " query, " << HK << " key and " << HV << " value heads are neither GQA nor GVA";
  TVM_FFI_CHECK(T < (int64_t{1} << 31) - kChunk && N <= 65535 && H <= 65535, ValueError)
      << T << " tokens, " << N << " sequences and " << H << " heads are not served";
  const DLDataType type = q.dtype();
  TVM_FFI_CHECK(same(type, kBFloat16) || same(type, kFloat16), ValueError)
      << "q is " << name_of(type) << ", not bfloat16 or float16";
  require("q", q, type, device, {T, HQ, D});
  require("k", k, type, device, {T, HK, D});
  require("v", v, type, device, {T, HV, D});
  if (g.has_value()) require("g", g.value(), kFloat32, device, {T, H});
  if (beta.has_value()) require("beta", beta.value(), kFloat32, device, {T, H});
  require("cu_seqlens", cu_seqlens, kInt64, device, {N + 1});
  if (initial_state.has_value()) require("initial_state", initial_state.value(), kFloat32, device, {N, H, D, D});
  require("output", output, type, device, {T, H, D});
  require("final_state", final_state, kFloat32, device, {N, H, D, D});
  if (checkpoints.has_value()) {
    TVM_FFI_CHECK(interval > 0 && interval % kChunk == 0 && interval / kChunk < (int64_t{1} << 31), ValueError)
        << "checkpoint_interval " << interval << " is no positive multiple of " << kChunk;
    require("checkpoint_cu_starts", checkpoint_cu_starts.value(), kInt64, device, {N + 1});
    TVM_FFI_CHECK(checkpoints.value().ndim() == 4, ValueError)
        << "checkpoints has " << checkpoints.value().ndim() << " dimensions, not 4";
    require("checkpoints", checkpoints.value(), kFloat32, device, {checkpoints.value().size(0), H, D, D});
  }

  const ffi::CUDADeviceGuard guard(device.device_id);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  const Device here = device_at(device.device_id);
  const int multiprocessors = here.multiprocessors;
  Problem p{};
  p.device = device.device_id;
  p.cu_seqlens = static_cast<const int64_t*>(cu_seqlens.data_ptr());
  p.g = pointer<const float>(g), p.beta = pointer<const float>(beta);
  p.initial_state = pointer<const float>(initial_state);
  p.output = output.data_ptr();
  p.final_state = static_cast<float*>(final_state.data_ptr());
  p.tokens = T;
  p.N = static_cast<int>(N), p.H = static_cast<int>(H);
  p.q_group = static_cast<int>(H / HQ), p.k_group = static_cast<int>(H / HK), p.v_group = static_cast<int>(H / HV);
  p.scale = static_cast<float>(scale.has_value() ? scale.value() : 1.0 / std::sqrt(static_cast<double>(D)));
  p.k_first = p.log_gates = k_first;
  if (checkpoints.has_value()) {
    p.checkpoints = pointer<float>(checkpoints), p.checkpoint_starts = pointer<const int64_t>(checkpoint_cu_starts);
    p.num_checkpoints = checkpoints.value().size(0), p.every = static_cast<int>(interval / kChunk);
  }
  check_bounds(p, interval, stream);

  const int64_t places = T / kChunk + N;
  TVM_FFI_CHECK(places < (int64_t{1} << 31), ValueError) << places << " chunks are not served";
  const int64_t given = T * D * (HQ + HK + HV) / 2 + (g.has_value() + beta.has_value()) * T * H +
                        initial_state.has_value() * N * H * D * D;  // in units of 4 bytes
  const Batch batch{T, N, H, HQ, HK, HV, D, p.every != 0, k_first};
  const int64_t room = kInvariant ? 0 : given + given / 2;  // no segment finds room
  const Cut how = D == 64 ? cut_64(batch, room, here) : cut(batch, room, here);
  const Workspace size = workspace_of(how, batch);
  p.decides = how.decides(), p.multiprocessors = multiprocessors;
  p.whole = static_cast<int>(how.whole), p.most = static_cast<int>(how.most);
  const Costs costs{batch, here};
  p.one_takes = static_cast<float>(costs.one()), p.both_take = static_cast<float>(costs.both());
  if (how.length > 0) {
    p.first = static_cast<int>(how.first), p.length = static_cast<int>(how.length);
    p.segments = count_places(T, N, how.first, how.length);
    TVM_FFI_CHECK(p.segments <= 65535, ValueError) << p.segments << " segments are not served";
  }
  const auto workspace = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({size.all()}), kFloat32, device);
  p.tiles = static_cast<unsigned char*>(workspace.data_ptr()), p.tile_bytes = tile_bytes(!finds_p(how.groups));
  p.before = static_cast<float*>(workspace.data_ptr()) + size.tiles, p.transfer = p.before + size.states;
  p.few = how.few ? kFewTokens : 0;
  p.one_up_to = static_cast<int>(how.one_up_to);
  if (how.queues()) {
    p.queue = reinterpret_cast<int*>(p.transfer + size.states);
    p.stays = static_cast<int>(std::min<int64_t>(multiprocessors, N * H));
    if (how.ahead && N * H <= multiprocessors) p.queue = nullptr;  // nobody takes a second one
  }
#ifdef GDN_CLOCKS
  p.clocks = clocks_to;
#endif
  const int halves = static_cast<int>(D) / 64;
  const Maps maps{boxes(q, halves), boxes(k, halves), boxes(v, how.groups), boxes(output, how.groups), boxes(v, 1), boxes(output, 1),
                  how.ahead || how.one_up_to > 0 ? long_states(p) : how.stays ? state_boxes(p.initial_state, N * H * D) : CUtensorMap{}};
  const auto run = [&](auto launched) { launched(p, maps, places, how, multiprocessors, stream); };
  const auto run_typed = [&]<class E>() {
    if constexpr (kShortFits) {
      if (how.ahead) return launch_long<E>(p, maps, stream);
      if (how.prepares) return launch_short<E>(p, maps, short_boxes(q, k, v, p), {q.data_ptr(), k.data_ptr(), v.data_ptr()}, stream);
    }
    if (how.stays) return launch_staying<E>(p, maps, places, multiprocessors, stream);
    if (D == 64) return run(p.every != 0 ? launch_all<E, 64, 1, true> : launch_all<E, 64, 1, false>);
    if (p.every != 0) return run(how.groups == 1 ? launch_all<E, 128, 1, true> : launch_all<E, 128, 2, true>);
    run(how.groups == 1 ? launch_all<E, 128, 1, false> : launch_all<E, 128, 2, false>);
  };
  same(type, kFloat16) ? run_typed.template operator()<__half>() : run_typed.template operator()<__nv_bfloat16>();
}

template <bool KFirst>
void gdn_prefill(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, MaybeTensor g, MaybeTensor beta,
                 ffi::TensorView cu_seqlens, MaybeTensor initial_state, ffi::Optional<double> scale, ffi::TensorView output,
                 ffi::TensorView final_state) {
  prefill(KFirst, q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, {}, 0, {});
}

void gdn_prefill_checkpoints(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, MaybeTensor g, MaybeTensor beta,
                             ffi::TensorView cu_seqlens, MaybeTensor initial_state, ffi::Optional<double> scale,
                             ffi::TensorView checkpoint_cu_starts, int64_t checkpoint_interval, ffi::TensorView output,
                             ffi::TensorView final_state, ffi::TensorView checkpoints) {
  prefill(false, q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, checkpoint_cu_starts,
          checkpoint_interval, checkpoints);
}

}  // namespace
