// What a tensor of a call is held to.
#pragma once
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include <cstdint>
#include <initializer_list>

namespace {

namespace ffi = tvm::ffi;

constexpr DLDataType kBFloat16{kDLBfloat, 16, 1};
constexpr DLDataType kFloat16{kDLFloat, 16, 1};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};
constexpr DLDataType kInt64{kDLInt, 64, 1};

bool same(DLDataType x, DLDataType y) { return x.code == y.code && x.bits == y.bits && x.lanes == y.lanes; }

const char* name_of(DLDataType x) {
  if (same(x, kBFloat16)) return "bfloat16";
  if (same(x, kFloat16)) return "float16";
  if (same(x, kFloat32)) return "float32";
  if (same(x, kInt64)) return "int64";
  if (same(x, {kDLFloat, 64, 1})) return "float64";
  if (same(x, {kDLInt, 32, 1})) return "int32";
  return "of another type";
}

void require(const char* name, const ffi::TensorView& x, DLDataType dtype, DLDevice device,
             std::initializer_list<int64_t> shape) {
  TVM_FFI_CHECK(same(x.dtype(), dtype), ValueError) << name << " is " << name_of(x.dtype()) << ", not " << name_of(dtype);
  TVM_FFI_CHECK(x.device().device_type == kDLCUDA && x.device().device_id == device.device_id, ValueError)
      << name << " is not on the GPU that holds q";
  TVM_FFI_CHECK(x.ndim() == static_cast<int32_t>(shape.size()), ValueError)
      << name << " has " << x.ndim() << " dimensions, not " << shape.size();
  for (int32_t i = 0; i < x.ndim(); ++i) {
    TVM_FFI_CHECK(x.size(i) == shape.begin()[i], ValueError)
        << name << " has size " << x.size(i) << " in dimension " << i << ", not " << shape.begin()[i];
  }
  TVM_FFI_CHECK(x.IsContiguous(), ValueError) << name << " is not contiguous";
  TVM_FFI_CHECK(reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0, ValueError)
      << name << " does not start at a multiple of 16 bytes";
}

}  // namespace
