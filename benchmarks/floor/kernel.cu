// What decode costs at least on a GPU: the states' way from memory and back, and nothing else.
//
// A state is read once and written T times, each time to a place of its own; one bit changes, so that no write could be
// left out. Launched as cuda_decode launches, in the shapes that were fastest of those tried (1 to 16 loads a thread, 1 to
// 16 warps a block, cache hints, bulk copies through shared memory; what is read brought to L2 before the kernel ahead has
// ended, or not): the caller takes the fastest.

#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstdint>

namespace {

namespace ffi = tvm::ffi;

struct Arguments {
  const uint4* from;
  uint4* to;
  int64_t slot;                // 16-byte pieces of a state
  const int32_t *read, *write;  // [B], [B, T], or null: the row is the slot
  int T;
};

template <int Threads, int Loads, bool Ahead>
__global__ void __launch_bounds__(Threads) copy_states(const __grid_constant__ Arguments p) {
  const int row = blockIdx.y;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * Threads * Loads, part = block + threadIdx.x;
#if __CUDA_ARCH__ >= 900
  if (Ahead && threadIdx.x == 0) {
    const uint4* near = p.from + (p.read == nullptr ? row : p.read[row]) * p.slot + block;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(near)), "r"(Threads * Loads * 16));
  }
  cudaGridDependencySynchronize();
#endif
  const uint4* from = p.from + (p.read == nullptr ? row : p.read[row]) * p.slot + part;
  uint4 x[Loads];
#pragma unroll
  for (int n = 0; n < Loads; ++n) x[n] = from[n * Threads];
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
#pragma unroll 1
  for (int t = 0; t < p.T; ++t) {
    uint4* to = p.to + (p.write == nullptr ? row : p.write[row * p.T + t]) * p.slot + part;
#pragma unroll
    for (int n = 0; n < Loads; ++n) {
      x[n].x ^= 1;
      to[n * Threads] = x[n];
    }
  }
}

template <int Threads, int Loads, bool Ahead>
void start(ffi::TensorView from, ffi::TensorView to, Arguments p, int64_t rows) {
  p.from = static_cast<const uint4*>(from.data_ptr());
  p.to = static_cast<uint4*>(to.data_ptr());
  p.slot = from.stride(0) * from.dtype().bits / 128;
  TVM_FFI_CHECK(p.slot % (Threads * Loads) == 0, ValueError) << "a state is no multiple of " << Threads * Loads * 16 << " bytes";
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, from.device().device_id);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.slot / (Threads * Loads)), static_cast<unsigned>(rows));
  config.blockDim = dim3(Threads);
  config.stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(from.device().device_type, from.device().device_id));
  config.attrs = &early, config.numAttrs = major >= 9 ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, copy_states<Threads, Loads, Ahead>, p);
  TVM_FFI_CHECK(error == cudaSuccess, RuntimeError) << cudaGetErrorString(error);
}

// `shape`: 0 to 4.
void start(ffi::TensorView from, ffi::TensorView to, const Arguments& p, int64_t rows, int64_t shape) {
  switch (shape) {
    case 0: return start<128, 2, false>(from, to, p, rows);
    case 1: return start<128, 2, true>(from, to, p, rows);
    case 2: return start<128, 8, true>(from, to, p, rows);
    case 3: return start<256, 8, true>(from, to, p, rows);
    case 4: return start<256, 16, true>(from, to, p, rows);
    default: TVM_FFI_THROW(ValueError) << "there is no shape " << shape;
  }
}

// from, to [B, ..]
void dense(ffi::TensorView from, ffi::TensorView to, int64_t shape) { start(from, to, {.T = 1}, from.size(0), shape); }

// pool [slots, ..], read [B] int32, write [B, T] int32
void pool(ffi::TensorView pool, ffi::TensorView read, ffi::TensorView write, int64_t shape) {
  Arguments p{.T = static_cast<int>(write.size(1))};
  p.read = static_cast<const int32_t*>(read.data_ptr());
  p.write = static_cast<const int32_t*>(write.data_ptr());
  start(pool, pool, p, read.size(0), shape);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(dense, dense);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(pool, pool);
