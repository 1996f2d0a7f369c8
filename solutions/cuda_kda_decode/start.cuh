// How a kernel is launched.
#pragma once
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/cuda/base.h>

#include "problem.cuh"

namespace {

template <class E>
void start(void (*kernel)(Arguments<E>), const Arguments<E>& p, dim3 grid, int threads, cudaStream_t stream) {
  // Of the first device: the module is built for one architecture.
  static const bool has_early_launch = [] {
    int major = 0;
    TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major >= 9;
  }();
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(threads), config.stream = stream;
  config.attrs = &early, config.numAttrs = has_early_launch ? 1 : 0;
  TVM_FFI_CHECK_CUDA_ERROR(cudaLaunchKernelEx(&config, kernel, p));
}

template <class Tile>
dim3 grid_of(dim3 heads) {
  return dim3(heads.x * Tile::kTiles, heads.y, heads.z);
}

}  // namespace
