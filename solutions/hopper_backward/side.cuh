// Streams beside those of calls, for kernels of one call that run side by side.
#pragma once
#include <tvm/ffi/extra/cuda/base.h>

#include <mutex>
#include <vector>

namespace {

// A stream that one call has at a time, and gives back once all is launched. It is behind what the call's stream has before, and the call's
// stream is behind it once `join` has been called. In a CUDA graph it becomes a branch.
class Side {
 public:
  Side(int device, cudaStream_t of_call) : device_(device), call_(of_call) {
    const std::lock_guard<std::mutex> lock(mutex());
    auto& free = all(device);
    for (size_t i = 0; i < free.size(); ++i) {
      if (!usable(free[i].stream)) continue;
      own_ = free[i];
      free.erase(free.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
    TVM_FFI_CHECK_CUDA_ERROR(cudaEventCreateWithFlags(&own_.event, cudaEventDisableTiming));
    TVM_FFI_CHECK_CUDA_ERROR(cudaStreamCreateWithFlags(&own_.stream, cudaStreamNonBlocking));
  }
  ~Side() {
    const std::lock_guard<std::mutex> lock(mutex());
    all(device_).push_back(own_);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  cudaStream_t stream() const { return own_.stream; }
  void follow() const { order(call_, own_.stream); }  // what the call's stream has until now
  void join() const { order(own_.stream, call_); }

 private:
  struct Own {
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
  };
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::vector<Own>& all(int device) {
    static std::vector<std::vector<Own>> free;
    if (free.size() <= static_cast<size_t>(device)) free.resize(device + 1);
    return free[device];
  }
  // Which graph is being recorded; 0: none.
  static unsigned long long graph_of(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    if (stream == nullptr || stream == cudaStreamLegacy) return 0;
    TVM_FFI_CHECK_CUDA_ERROR(cudaStreamGetCaptureInfo(stream, &status, &id));
    return status == cudaStreamCaptureStatusNone ? 0 : id;
  }
  // A graph that is still being recorded may have it.
  bool usable(cudaStream_t stream) const {
    const unsigned long long of = graph_of(stream);
    return of == 0 || of == graph_of(call_);
  }
  void order(cudaStream_t first, cudaStream_t second) const {
    TVM_FFI_CHECK_CUDA_ERROR(cudaEventRecord(own_.event, first));
    TVM_FFI_CHECK_CUDA_ERROR(cudaStreamWaitEvent(second, own_.event, 0));
  }

  int device_;
  cudaStream_t call_;
  Own own_;
};

}  // namespace
