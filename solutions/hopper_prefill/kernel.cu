// What the manifest names.
#include <tvm/ffi/function.h>

#include "call.cuh"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_k_last, gdn_prefill<false>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_k_first, gdn_prefill<true>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_checkpoints, gdn_prefill_checkpoints);
#ifdef GDN_CLOCKS
TVM_FFI_DLL_EXPORT_TYPED_FUNC(set_clocks, set_clocks);
#endif
