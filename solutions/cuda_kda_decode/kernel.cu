// Kimi Delta Attention for one token of every sequence of a batch: the gated delta rule with a decay of each key channel.
//
// The state is nearly all of the traffic: D x D elements of every head, read once, written once. Each thread asks for
// all of its part of it at once, in 16-byte loads, and holds it in registers. Value channels never mix: every block owns
// some of them, for all key channels, and blocks share nothing.
//
// S [V, K]: a row of S is contiguous in key channels. A few lanes hold a row, and sum over themselves.
//
// While the state is on its way each thread makes the decay of one key channel, and the block shares them. With
// k' = alpha * k and q' = alpha * q both sums over key channels, S k' and S q', are taken of the state as it was read, in
// one reduction, together with |q|^2, |k|^2 and q . k. Norms and the read-out after the write are factors and terms of
// those five.
//
// float32 throughout; what is written is rounded once.
//
//   dense.cuh, pool.cuh   what the manifest names, by where states lie
//   call.cuh              inputs become Arguments; host_checks.cuh is what they are held to
//   launch_rows.cuh       the place to tune; start.cuh launches
//   rows.cuh              the kernel
//   slots.cuh, rule.cuh, instructions.cuh, words.cuh, problem.cuh   their parts

#include <cuda_bf16.h>
#include <tvm/ffi/function.h>

#include "dense.cuh"
#include "pool.cuh"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kda_decode_k_last, decode);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kda_decode_packed_k_last, decode_packed);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kda_decode_pool_k_last, decode_pool);
