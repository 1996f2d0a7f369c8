// What a tensor of a call is held to.
#pragma once
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include <cstdint>
#include <initializer_list>

namespace {

namespace ffi = tvm::ffi;

constexpr DLDataType kBFloat16{kDLBfloat, 16, 1};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};
constexpr DLDataType kInt32{kDLInt, 32, 1};

const char* name_of(DLDataType x) {
  if (x.lanes != 1) return "a vector type";
  if (x.code == kDLBfloat && x.bits == 16) return "bfloat16";
  if (x.code == kDLFloat && x.bits == 32) return "float32";
  if (x.code == kDLInt && x.bits == 32) return "int32";
  return "of another type";
}

bool same(DLDataType x, DLDataType y) { return x.code == y.code && x.bits == y.bits && x.lanes == y.lanes; }

// `alignment`, in bytes: what the widest access of the kernel to this tensor needs.
struct Requirements {
  DLDevice device;

  void operator()(const char* name, const ffi::TensorView& x, DLDataType dtype, unsigned alignment,
                  std::initializer_list<int64_t> shape) const {
    place(name, x, dtype, alignment);
    TVM_FFI_CHECK(contiguous(name, x, shape, 0), ValueError) << name << " is not contiguous";
  }

  // [slots, ..shape], contiguous but for the distance from slot to slot, which is returned.
  int64_t pool(const char* name, const ffi::TensorView& x, DLDataType dtype,
               std::initializer_list<int64_t> shape) const {
    place(name, x, dtype, 16);
    TVM_FFI_CHECK(contiguous(name, x, shape, 1), ValueError) << name << " is not contiguous within a slot";
    int64_t of_slot = 1;
    for (const int64_t size : shape) of_slot *= size;
    const int64_t stride = x.stride(0), step = 16 / (dtype.bits / 8);
    TVM_FFI_CHECK(x.size(0) <= 1 || (stride >= of_slot && stride % step == 0), ValueError)
        << name << " has " << stride << " elements from slot to slot: it must be " << of_slot
        << " or more, in steps of " << step;
    TVM_FFI_CHECK(x.size(0) <= INT32_MAX, ValueError) << name << " has " << x.size(0) << " slots, past 32 bits";
    return stride;
  }

  void place(const char* name, const ffi::TensorView& x, DLDataType dtype, unsigned alignment) const {
    TVM_FFI_CHECK(same(x.dtype(), dtype), ValueError)
        << name << " is " << name_of(x.dtype()) << ", not " << name_of(dtype);
    TVM_FFI_CHECK(x.device().device_type == kDLCUDA && x.device().device_id == device.device_id, ValueError)
        << name << " is not on the GPU that holds recurrent_states";
    TVM_FFI_CHECK(x.numel() == 0 || reinterpret_cast<uintptr_t>(x.data_ptr()) % alignment == 0, ValueError)
        << name << " does not start at a multiple of " << alignment << " bytes";
  }

 private:
  // Whether the dimensions from `first` on, of this shape, lie densely.
  static bool contiguous(const char* name, const ffi::TensorView& x, std::initializer_list<int64_t> shape,
                         int32_t first) {
    const int32_t dimensions = first + static_cast<int32_t>(shape.size());
    TVM_FFI_CHECK(x.ndim() == dimensions, ValueError)
        << name << " has " << x.ndim() << " dimensions, not " << dimensions;
    int64_t dense = 1;
    bool found = true;
    for (int32_t i = dimensions - 1; i >= first; --i) {
      const int64_t size = x.size(i);
      TVM_FFI_CHECK(size == shape.begin()[i - first], ValueError)
          << name << " has size " << size << " in dimension " << i << ", not " << shape.begin()[i - first];
      found &= size == 1 || x.stride(i) == dense;
      dense *= size;
    }
    return found || dense == 0;
  }
};

}  // namespace
