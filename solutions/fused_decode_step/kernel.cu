// What a layer does between its projections for one token of every sequence, in one launch: convolution, SiLU, L2 norm,
// gates, the gated delta rule, gated norm, on both states where they lie in their pools.
//
// The state of the rule [V, K] is 97% of the traffic: read once, written once, held in registers. It is asked for
// before anything is computed: what comes ahead of the rule (convolution, norms, gates) happens while it is on its way,
// in float32.
//
// A (row, key head) is a cluster of blocks: `Split` of them for each value head of the group, each with some of its
// rows. Two things cross blocks, neither by way of memory:
//
//   squares       The norm needs the sum over a whole head: each warp sends its part to the `Split` blocks of the head,
//                 into their shared memory, before it writes its part of the state.
//   q and k       All blocks convolve the q and k of their key head themselves. The state of that convolution is
//                 updated in place, by one of them, once all have read it: behind a barrier that all reach early.
//
// Where there are no clusters, or more value heads a key head than a cluster has blocks, one block does a whole group,
// a head at a time (`Split` 0).
//
//   call.cuh      the tensors of a call become Arguments; host_checks.cuh and values.cuh are what they are held to
//   launch.cuh    the place to tune
//   step.cuh      the kernel, with who waits for whom; its parts: tile.cuh, convolution.cuh, gates.cuh, words.cuh,
//                 instructions.cuh

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/function.h>

#include "call.cuh"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_core_decode, core_decode);
