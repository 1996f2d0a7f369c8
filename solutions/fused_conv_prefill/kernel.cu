// All between the projections and the prefill in one pass: convolution, SiLU, L2 norm of q and k, gates.
//
// Memory is all there is to it: x is read once, q, k and v are written once. A few lanes hold a head, 8 channels each, and
// walk down a strip of tokens; what tokens share, the sums that are begun, stays in registers. Rows are on their way to
// shared memory many tokens ahead (cp.async), each lane's to a place of its own: nobody waits for anybody but in the norm.
//
// A sequence's state is read and written by one block, that of its first token: see `Walk`.
//
// float32 throughout; what is written is rounded once.
//
// What waits for what; blocks wait for no other:
//
//   kernel ahead ──> rows asked for ──> kernel behind may start
//   a row has landed ──> the sums it belongs to ──> SiLU ──> sum over the lanes of a head (q, k) ──> q, k, v
//        └──> the row kStages further is asked for, to its place
//
//   call.cuh         the tensors of a call become a Problem; host_checks.cuh and values.cuh are what they are held to
//   launch.cuh       how many tokens a block has, and the launch
//   pass.cuh         the kernel; its parts: walk.cuh (which tokens), ahead.cuh (rows on their way), convolution.cuh, gates.cuh

#include <tvm/ffi/function.h>

#include "call.cuh"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_conv_gates_prefill, conv_gates_prefill);
