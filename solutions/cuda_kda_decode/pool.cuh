// States in the slots of a pool.
#pragma once
#include <cstdlib>
#include <unordered_map>
#include <vector>

#include "call.cuh"

namespace {

// For debugging: with GDNSPEC_DEBUG=1 a call waits for the slots and checks what the definitions ask of them. Without,
// the kernel takes them on trust but for their range. `names`: of read, write.
template <class E>
void check_slots(const Arguments<E>& p, const Sizes& n, DLDevice device, const char* const (&names)[2]) {
  static const char* given = std::getenv("GDNSPEC_DEBUG");
  if (given == nullptr || given[0] != '1' || given[1] != '\0') return;
  const ffi::CUDADeviceGuard guard(device.device_id);
  const auto copy = [&](const int32_t* from, int64_t count) {
    std::vector<int32_t> to(count, 0);
    TVM_FFI_CHECK_CUDA_ERROR(
        cudaMemcpyAsync(to.data(), from, count * sizeof(int32_t), cudaMemcpyDeviceToHost, stream_of(device)));
    TVM_FFI_CHECK_CUDA_ERROR(cudaStreamSynchronize(stream_of(device)));
    return to;
  };
  const auto read = copy(p.read, n.rows), write = copy(p.write, n.rows);
  std::unordered_map<int32_t, int64_t> writer;  // slot -> row
  for (int64_t row = 0; row < n.rows; ++row) {
    TVM_FFI_CHECK(read[row] >= -1 && read[row] < p.num_slots, ValueError)
        << names[0] << " names slot " << read[row] << "; there are " << p.num_slots;
    const int32_t slot = write[row];
    TVM_FFI_CHECK(slot >= -1 && slot < p.num_slots, ValueError)
        << names[1] << " names slot " << slot << "; there are " << p.num_slots;
    TVM_FFI_CHECK((slot == -1) == (read[row] == -1), ValueError)
        << "row " << row << " is skipped by one of its slots and not by the other";
    TVM_FFI_CHECK(slot == -1 || writer.emplace(slot, row).second, ValueError)
        << names[1] << " names slot " << slot << " twice";
  }
  for (int64_t row = 0; row < n.rows; ++row) {
    const auto found = writer.find(read[row]);
    TVM_FFI_CHECK(found == writer.end() || found->second == row, ValueError)
        << "row " << row << " reads slot " << read[row] << ", which another row writes";
  }
}

void decode_pool(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, ffi::TensorView pool,
                 ffi::TensorView read_slots, ffi::TensorView write_slots, ffi::TensorView A_log, ffi::TensorView a,
                 ffi::TensorView dt_bias, ffi::TensorView b, ffi::Optional<double> lower_bound,
                 ffi::Optional<double> scale, ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output) {
  require_dimensions("pool", pool, 4);
  require_dimensions("q", q, 4);
  const Sizes n(q.size(0), q.size(2), pool.size(1), pool.size(3));
  by_element("pool", pool, [&](auto element) {
    using E = decltype(element);
    const Requirements require{pool.device()};
    auto p = arguments<E>(require, n, A_log, dt_bias, lower_bound, scale, use_qk_l2norm);
    take_tokens(p, require, n, q, k, v, a, b, output);
    require.place("pool", pool, pool.dtype(), 16);
    const int64_t of_slot = n.H * n.D * n.D, stride = pool.stride(0);
    TVM_FFI_CHECK(pool.size(2) == n.D, ValueError)
        << "pool has size " << pool.size(2) << " in dimension 2, not " << n.D;
    TVM_FFI_CHECK(pool.stride(3) == 1 && pool.stride(2) == n.D && (pool.stride(1) == n.D * n.D || n.H == 1), ValueError)
        << "pool is not contiguous within a slot";
    TVM_FFI_CHECK(pool.size(0) <= 1 || (stride >= of_slot && stride * sizeof(E) % 16 == 0), ValueError)
        << "pool has " << stride << " elements from slot to slot: it must be " << of_slot << " or more, in steps of "
        << 16 / sizeof(E);
    TVM_FFI_CHECK(pool.size(0) <= INT32_MAX, ValueError) << "pool has " << pool.size(0) << " slots, past 32 bits";
    require("read_slots", read_slots, kInt32, 4, {n.rows});
    require("write_slots", write_slots, kInt32, 4, {n.rows});
    p.from = p.to = static_cast<E*>(pool.data_ptr());
    p.slot_stride = stride;
    p.num_slots = static_cast<int>(pool.size(0));
    p.read = static_cast<const int32_t*>(read_slots.data_ptr());
    p.write = static_cast<const int32_t*>(write_slots.data_ptr());
    check_slots(p, n, require.device, {"read_slots", "write_slots"});
    launch<E, Slots::kPool>(p, n, require.device);
  });
}

}  // namespace
