// Tensors as TMA is told of them, by the host.
#pragma once
#include <tvm/ffi/extra/cuda/base.h>

#include "host_checks.cuh"
#include "maps.cuh"

namespace {

decltype(&cuTensorMapEncodeTiled) encoder() {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    TVM_FFI_CHECK_CUDA_ERROR(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    TVM_FFI_CHECK(result == cudaDriverEntryPointSuccess && found != nullptr, RuntimeError)
        << "the driver has no cuTensorMapEncodeTiled";
    return reinterpret_cast<Encode>(found);
  }();
  return encode;
}

// Boxes of 64 tokens and 64 channels of one head, `halves` of them, of x [T, heads, D]; zeros behind the last token.
CUtensorMap boxes(void* x, DLDataType type, int64_t tokens, int64_t heads, int halves) {
  CUtensorMap map{};
  if (tokens == 0) return map;
  constexpr cuuint32_t kChannels = 64;
  constexpr cuuint64_t D = kHeadSize;
  const cuuint64_t sizes[] = {kChannels, static_cast<cuuint64_t>(tokens), D / kChannels, static_cast<cuuint64_t>(heads)};
  const cuuint64_t strides[] = {2 * D * sizes[3], 2 * kChannels, 2 * D};
  const cuuint32_t box[] = {kChannels, kChunk, static_cast<cuuint32_t>(halves), 1}, steps[] = {1, 1, 1, 1};
  const auto element = same(type, kFloat16) ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult error =
      encoder()(&map, element, 4, x, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TVM_FFI_CHECK(error == CUDA_SUCCESS, RuntimeError) << "cuTensorMapEncodeTiled failed with " << error;
  return map;
}

}  // namespace
