// One of the definitions, which is enough for long_rows.py.
#include <tvm/ffi/function.h>

#include "../call.cuh"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_k_last, gdn_prefill<false>);
#ifdef GDN_CLOCKS
TVM_FFI_DLL_EXPORT_TYPED_FUNC(set_clocks, set_clocks);
#endif
