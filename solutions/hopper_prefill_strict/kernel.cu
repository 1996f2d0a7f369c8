// hopper_prefill with T as a sum of two 16-bit terms: all else is that solution's, by links.
#define GDN_TERMS 2
#include "prefill.cuh"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_k_last, gdn_prefill<false>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_k_first, gdn_prefill<true>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_checkpoints, gdn_prefill_checkpoints);
