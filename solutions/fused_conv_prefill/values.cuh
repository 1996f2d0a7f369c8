// What slots and bounds are held to.
#pragma once
#include <tvm/ffi/extra/cuda/base.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_set>
#include <vector>

#include "host_checks.cuh"
#include "problem.cuh"

namespace {

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

}  // namespace
