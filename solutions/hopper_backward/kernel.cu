// What the manifest names.
#include <tvm/ffi/function.h>

#include "call.cuh"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_backward_k_last, gdn_backward<false>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_backward_k_first, gdn_backward<true>);
