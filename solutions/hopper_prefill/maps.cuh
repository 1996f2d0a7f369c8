// What TMA is told of a tensor.
#pragma once
#include <tvm/ffi/extra/cuda/base.h>

#include "feed.cuh"
#include "host_checks.cuh"
#include "long_advance.cuh"
#include "short_feed.cuh"

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

// Boxes of 64 tokens, or `rows`, and 64 channels of one head, `halves` of them, of x [T, heads, D]; zeros behind the last token.
CUtensorMap boxes(const ffi::TensorView& x, int halves, int rows = kChunk) {
  CUtensorMap map{};
  if (x.size(0) == 0) return map;
  constexpr cuuint32_t kChannels = 64;
  const auto size = [&](int i) { return static_cast<cuuint64_t>(x.size(i)); };
  const cuuint64_t tokens = size(0), heads = size(1), D = size(2);
  const cuuint64_t sizes[] = {kChannels, tokens, D / kChannels, heads}, strides[] = {2 * D * heads, 2 * kChannels, 2 * D};
  const cuuint32_t box[] = {kChannels, static_cast<cuuint32_t>(rows), static_cast<cuuint32_t>(halves), 1}, steps[] = {1, 1, 1, 1};
  const auto type = same(x.dtype(), kFloat16) ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult error =
      encoder()(&map, type, 4, x.data_ptr(), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TVM_FFI_CHECK(error == CUDA_SUCCESS, RuntimeError) << "cuTensorMapEncodeTiled failed with " << error;
  return map;
}

// Of states, as rows of D numbers: so many boxes of 32 columns and rows of one, or all.
CUtensorMap state_boxes(const float* states, int64_t rows, int of_rows = kStaySize, int boxes = 4) {
  constexpr cuuint32_t D = kStaySize;
  CUtensorMap map{};
  if (states == nullptr || rows == 0) return map;
  const cuuint64_t sizes[] = {D / 4, static_cast<cuuint64_t>(rows), 4}, strides[] = {4 * D, D};
  const cuuint32_t box[] = {D / 4, static_cast<cuuint32_t>(of_rows), static_cast<cuuint32_t>(boxes)}, steps[] = {1, 1, 1};
  const CUresult error = encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, const_cast<float*>(states), sizes, strides, box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TVM_FFI_CHECK(error == CUDA_SUCCESS, RuntimeError) << "cuTensorMapEncodeTiled failed with " << error;
  return map;
}

// Of a warp that advances long sequences, half of the columns of its rows.
CUtensorMap long_states(const Problem& p) { return state_boxes(p.final_state, int64_t{p.N} * p.H * kStaySize, kRowsOfWarp, 2); }

ShortMaps short_boxes(const ffi::TensorView& q, const ffi::TensorView& k, const ffi::TensorView& v, const Problem& p) {
  ShortMaps maps{};
  // Of a slice: half of the rows, or half of the columns.
  const int64_t rows = int64_t{p.N} * p.H * kStaySize;
  maps.states = p.k_first ? state_boxes(p.initial_state, rows, kStaySize, 2) : state_boxes(p.initial_state, rows, kSlice, 4);
  for (int i = 0; i < 3; ++i) {
    const int rows = kShortRows * (i + 1);
    maps.q[i] = boxes(q, 1, rows), maps.k[i] = boxes(k, 1, rows), maps.v[i] = boxes(v, 1, rows);
  }
  return maps;
}

}  // namespace
