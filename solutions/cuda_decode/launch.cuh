// Which tiles a call is launched with.
#pragma once
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/cuda/base.h>

#include "columns.cuh"
#include "rows.cuh"

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

template <class E, int D, Slots slots, int Lanes, int Loads, int Warps, bool Ahead>
void launch_rows(const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  using Tile = RowTile<E, D, Lanes, Loads, Warps, Ahead>;
  start<E>(gdn_decode_k_last_kernel<E, D, slots, Tile>, p, grid_of<Tile>(heads), Tile::kThreads, stream);
}

template <class E, int D, int Lanes, int Loads, bool Ahead>
void launch_columns(const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  using Tile = ColumnTile<E, D, Lanes, Loads, Ahead>;
  start<E>(gdn_decode_k_first_kernel<E, D, Tile>, p, grid_of<Tile>(heads), Tile::kThreads, stream);
}

constexpr int64_t kMiB = int64_t{1} << 20;

// The place to tune: lanes in a row, loads a thread, warps a block, whether the state is brought near; for an H200.
// `bytes`: of all states that are read.
template <class E, int D, Slots slots>
void launch_k_last(int64_t bytes, const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  if constexpr (slots == Slots::kVerify) {
    launch_rows<E, D, slots, 16, 4, 8, true>(p, heads, stream);  // the warps of a block share the tokens that it stages
  } else if constexpr (sizeof(E) == 2) {
    if (bytes <= 32 * kMiB) {
      launch_rows<E, D, slots, 8, 8, 4, true>(p, heads, stream);
    } else {
      launch_rows<E, D, slots, 8, 8, 1, false>(p, heads, stream);
    }
  } else if constexpr (slots == Slots::kPool) {
    if (bytes <= 2 * kMiB) {
      launch_rows<E, D, slots, 16, 4, 2, true>(p, heads, stream);
    } else {
      launch_rows<E, D, slots, 16, 4, 2, false>(p, heads, stream);
    }
  } else if (bytes <= 4 * kMiB) {
    launch_rows<E, D, slots, 8, 8, 4, true>(p, heads, stream);
  } else if (bytes <= 8 * kMiB) {
    launch_rows<E, D, slots, 32, 8, 8, true>(p, heads, stream);
  } else if (bytes <= 16 * kMiB) {
    launch_rows<E, D, slots, 8, 16, 8, false>(p, heads, stream);
  } else {
    launch_rows<E, D, slots, 16, 2, 4, false>(p, heads, stream);
  }
}

// The same: lanes in a row, loads a thread, whether the state is brought near.
template <class E, int D>
void launch_k_first(int64_t bytes, const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  if constexpr (sizeof(E) == 2) {
    if (bytes <= 8 * kMiB) {
      launch_columns<E, D, 8, 8, true>(p, heads, stream);
    } else {
      launch_columns<E, D, 8, 8, false>(p, heads, stream);
    }
  } else if (bytes <= 8 * kMiB) {
    launch_columns<E, D, 16, 16, true>(p, heads, stream);
  } else if (bytes <= 64 * kMiB) {
    launch_columns<E, D, 16, 16, false>(p, heads, stream);
  } else {
    launch_columns<E, D, 16, 8, true>(p, heads, stream);
  }
}

}  // namespace
