// Which tiles a call is launched with.
#pragma once
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/cuda/base.h>

#include "step.cuh"

namespace {

constexpr int kClusterBlocks = 8;  // that every GPU with clusters has room for

bool has_clusters() {
  // Of the first device: the module is built for one architecture.
  static const bool has = [] {
    int major = 0;
    TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major >= 9;
  }();
  return has;
}

template <int D, int W, int Split, int Lanes, int Loads, int Warps>
void start(const Arguments& p, int key_heads, int rows, cudaStream_t stream) {
  const unsigned blocks = Split > 0 ? p.group * Split : 1;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = blocks, attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks, key_heads, rows);
  config.blockDim = dim3(Tile<D, Split, Lanes, Loads, Warps>::kThreads);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !has_clusters() ? 0 : blocks > 1 ? 2 : 1;
  TVM_FFI_CHECK_CUDA_ERROR(cudaLaunchKernelEx(&config, gdn_core_decode_kernel<D, W, Split, Lanes, Loads, Warps>, p));
}

// The place to tune, for an H200: blocks a head, lanes in a row, loads a thread, warps a block. A cluster has at most
// eight blocks. With few states there should be a block for nearly every multiprocessor; with more, a whole head in one
// is faster, whose norm crosses no blocks. `bytes`: of all states.
template <int D, int W>
void launch(int64_t bytes, const Arguments& p, int key_heads, int rows, cudaStream_t stream) {
  const int most = has_clusters() ? kClusterBlocks / p.group : 0;  // blocks a head
  if constexpr (D == 64) {
    if (most >= 2) return start<D, W, 2, 16, 4, 4>(p, key_heads, rows, stream);
    if (most == 1) return start<D, W, 1, 16, 4, 8>(p, key_heads, rows, stream);
    start<D, W, 0, 16, 4, 8>(p, key_heads, rows, stream);
  } else if constexpr (D == 128) {
    const bool few = bytes < int64_t{4} << 20;
    if (most >= 4 && few) return start<D, W, 4, 16, 4, 8>(p, key_heads, rows, stream);
    if (most >= 2 && few) return start<D, W, 2, 16, 8, 8>(p, key_heads, rows, stream);
    if (most >= 1) return start<D, W, 1, 16, 16, 8>(p, key_heads, rows, stream);
    start<D, W, 0, 16, 8, 8>(p, key_heads, rows, stream);
  } else {
    if (most >= 4) return start<D, W, 4, 32, 8, 8>(p, key_heads, rows, stream);
    if (most >= 2) return start<D, W, 2, 32, 8, 8>(p, key_heads, rows, stream);
    if (most == 1) return start<D, W, 1, 32, 8, 8>(p, key_heads, rows, stream);
    start<D, W, 0, 32, 8, 8>(p, key_heads, rows, stream);
  }
}

}  // namespace
