// Bounds that lie on the device, for debugging.
#pragma once
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/cuda/base.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "problem.cuh"

namespace {

// For debugging: with GDNSPEC_DEBUG=1 a call waits for bounds that lie on the device and checks what the definitions ask of
// them. Without, bounds outside of the tensors are taken as their ends.
std::vector<int64_t> copied(const int64_t* from, int64_t count, cudaStream_t stream) {
  std::vector<int64_t> to(count, 0);
  TVM_FFI_CHECK_CUDA_ERROR(cudaMemcpyAsync(to.data(), from, count * sizeof(int64_t), cudaMemcpyDeviceToHost, stream));
  TVM_FFI_CHECK_CUDA_ERROR(cudaStreamSynchronize(stream));
  return to;
}

void check_bounds(const Problem& p, cudaStream_t stream) {
  static const char* given = std::getenv("GDNSPEC_DEBUG");
  if (given == nullptr || given[0] != '1' || given[1] != '\0') return;
  const auto starts = copied(p.cu_seqlens, p.N + 1, stream);
  TVM_FFI_CHECK(starts.front() == 0 && starts.back() <= p.tokens && std::is_sorted(starts.begin(), starts.end()), ValueError)
      << "cu_seqlens must rise from 0 and end within total_seq_len " << p.tokens;
}

}  // namespace
