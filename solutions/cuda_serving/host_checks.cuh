// What a call is held to before anything is launched. As in cuda_decode.
#pragma once
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include <cstdint>
#include <initializer_list>

namespace {

namespace ffi = tvm::ffi;

constexpr DLDataType kBFloat16{kDLBfloat, 16, 1};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};
constexpr DLDataType kInt32{kDLInt, 32, 1}, kInt64{kDLInt, 64, 1}, kBool{kDLBool, 8, 1};

const char* name_of(DLDataType x) {
  if (x.lanes != 1) return "a vector type";
  if (x.code == kDLBfloat && x.bits == 16) return "bfloat16";
  if (x.code == kDLFloat && x.bits == 32) return "float32";
  if (x.code == kDLInt && x.bits == 32) return "int32";
  if (x.code == kDLInt && x.bits == 64) return "int64";
  if (x.code == kDLBool) return "bool";
  return "of another type";
}

bool same(DLDataType x, DLDataType y) { return x.code == y.code && x.bits == y.bits && x.lanes == y.lanes; }

// `alignment`, in bytes: what the widest access of the kernels to this tensor needs.
struct Requirements {
  DLDevice device;

  void operator()(const char* name, const ffi::TensorView& x, DLDataType dtype, unsigned alignment,
                  std::initializer_list<int64_t> shape) const {
    place(name, x, dtype, alignment);
    TVM_FFI_CHECK(x.ndim() == static_cast<int32_t>(shape.size()), ValueError)
        << name << " has " << x.ndim() << " dimensions, not " << shape.size();
    int64_t dense = 1;
    bool contiguous = true;
    for (int32_t i = x.ndim() - 1; i >= 0; --i) {
      const int64_t size = x.size(i);
      TVM_FFI_CHECK(size == shape.begin()[i], ValueError)
          << name << " has size " << size << " in dimension " << i << ", not " << shape.begin()[i];
      contiguous &= size == 1 || x.stride(i) == dense;
      dense *= size;
    }
    TVM_FFI_CHECK(contiguous || dense == 0, ValueError) << name << " is not contiguous";
  }

  void place(const char* name, const ffi::TensorView& x, DLDataType dtype, unsigned alignment) const {
    TVM_FFI_CHECK(same(x.dtype(), dtype), ValueError)
        << name << " is " << name_of(x.dtype()) << ", not " << name_of(dtype);
    TVM_FFI_CHECK(x.device().device_type == kDLCUDA && x.device().device_id == device.device_id, ValueError)
        << name << " is not on the GPU that holds the state";
    TVM_FFI_CHECK(x.numel() == 0 || reinterpret_cast<uintptr_t>(x.data_ptr()) % alignment == 0, ValueError)
        << name << " does not start at a multiple of " << alignment << " bytes";
  }
};

void require_dimensions(const char* name, const ffi::TensorView& x, int32_t count) {
  TVM_FFI_CHECK(x.ndim() == count, ValueError) << name << " has " << x.ndim() << " dimensions, not " << count;
}

}  // namespace
