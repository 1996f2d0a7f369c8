// How many tokens a block has, and the launch.
#pragma once
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/cuda/base.h>

#include <algorithm>

#include "pass.cuh"

namespace {

// Tokens of a block: as many as make whole waves of blocks, and no more than kLongest; what a strip reads of the one
// before it, and the beginning and end of a block, count for little from kShortest on.
int strip_of(int64_t T, int64_t groups, int multiprocessors) {
  constexpr int64_t kShortest = 16, kLongest = 64;
  const auto over = [](int64_t x, int64_t y) { return (x + y - 1) / y; };
  const int64_t places = int64_t{kBlocks} * multiprocessors;
  const int64_t waves = over(over(T, kLongest) * groups, places), strips = std::max<int64_t>(waves * places / groups, 1);
  return static_cast<int>(std::clamp(over(T, strips), kShortest, kLongest));
}

template <int D, int W, bool Bias>
void launch(Problem p, DLDevice device, cudaStream_t stream) {
  struct Gpu {
    int multiprocessors = 0, major = 0;
    explicit Gpu(int id) {
      TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, id));
      TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id));
    }
  };
  static const Gpu gpu(device.device_id);  // of the first device: the module is built for one architecture
  constexpr int kHeads = kThreads * kPer / D;
  p.groups = (2 * p.HK + p.H + kHeads - 1) / kHeads;
  p.strip = strip_of(p.T, p.groups, gpu.multiprocessors);
  const int64_t blocks = (int64_t{p.T} + p.strip - 1) / p.strip * p.groups;
  TVM_FFI_CHECK(blocks <= INT32_MAX, ValueError) << p.T << " tokens of " << p.H << " value heads are not served";
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks)), config.blockDim = dim3(kThreads), config.stream = stream;
  config.attrs = &early, config.numAttrs = gpu.major >= 9 ? 1 : 0;
  TVM_FFI_CHECK_CUDA_ERROR(cudaLaunchKernelEx(&config, gdn_conv_gates_kernel<D, W, Bias>, p));
}

template <int D, int W>
void launch(const Problem& p, DLDevice device, cudaStream_t stream) {
  p.bias == nullptr ? launch<D, W, false>(p, device, stream) : launch<D, W, true>(p, device, stream);
}

template <int D>
void launch(const Problem& p, int64_t W, DLDevice device, cudaStream_t stream) {
  switch (W) {
    case 2: return launch<D, 2>(p, device, stream);
    case 3: return launch<D, 3>(p, device, stream);
    default: return launch<D, 4>(p, device, stream);
  }
}

}  // namespace
