// What slots are held to.
#pragma once
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/base.h>
#include <tvm/ffi/extra/cuda/device_guard.h>

#include <cstdlib>
#include <unordered_set>
#include <vector>

#include "host_checks.cuh"
#include "problem.cuh"

namespace {

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

}  // namespace
