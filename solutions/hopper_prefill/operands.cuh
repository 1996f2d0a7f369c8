// What a thread makes of its parts of products, left operands among them. By tokens: a lane has four of every 16, whose decays
// lie side by side (shared.cuh).
#pragma once
#include "state.cuh"

namespace {

// V^T becomes X^T = V^T - (S K^T) diag(gamma), x = S K^T: of 16 tokens, and of a chunk.
template <class E>
__device__ __forceinline__ void subtract_read_of(uint32_t (&bits)[4], const float* x, const float4& gamma) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float2 value = unpack<E>(bits[e]);
    const float first = e < 2 ? gamma.x : gamma.z, second = e < 2 ? gamma.y : gamma.w;
    bits[e] = pack<E>(fmaf(-first, x[2 * e], value.x), fmaf(-second, x[2 * e + 1], value.y));
  }
}
template <class E>
__device__ __forceinline__ void subtract_read(uint32_t (&bits)[4][4], const float (&x)[32], const float4 (&gammas)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) subtract_read_of<E>(bits[k], &x[8 * k], gammas[k]);
}

// A left operand of 16 tokens, from sums.
template <class E>
__device__ __forceinline__ void pack_tokens(uint32_t (&bits)[4], const float* x) {
#pragma unroll
  for (int e = 0; e < 4; ++e) bits[e] = pack<E>(x[2 * e], x[2 * e + 1]);
}
// Of half a state, 64 key channels.
template <class E>
__device__ __forceinline__ void pack_channels(uint32_t (*bits)[4], const float (&half)[32]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) pack_tokens<E>(bits[k], &half[8 * k]);
}
// That of tokens decayed.
template <class E>
__device__ __forceinline__ void decay_tokens(uint32_t (&bits)[4], const float* x, const float4& by) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    bits[e] = pack<E>(x[2 * e] * (e < 2 ? by.x : by.z), x[2 * e + 1] * (e < 2 ? by.y : by.w));
  }
}
__device__ __forceinline__ void scale_tokens(float* x, const float4& by) {
#pragma unroll
  for (int e = 0; e < 4; ++e) x[2 * e] *= e < 2 ? by.x : by.z, x[2 * e + 1] *= e < 2 ? by.y : by.w;
}

// As subtract_read_of, to float32.
template <class E>
__device__ __forceinline__ void subtract_read_to(float* to, const float* x, const uint32_t (&bits)[4], const float4& gamma) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float2 value = unpack<E>(bits[e]);
    const float first = e < 2 ? gamma.x : gamma.z, second = e < 2 ? gamma.y : gamma.w;
    to[2 * e] = fmaf(-first, x[2 * e], value.x), to[2 * e + 1] = fmaf(-second, x[2 * e + 1], value.y);
  }
}

// V'^T diag(gamma_C / gamma), of V'^T for tokens 0 to 31 and 32 to 63.
template <class E>
__device__ __forceinline__ void decay_v(uint32_t (&decayed)[4][4], const float (&y)[2][16], const float4 (&rests)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = k * 8 + 2 * e;
      const float first = e < 2 ? rests[k].x : rests[k].z, second = e < 2 ? rests[k].y : rests[k].w;
      decayed[k][e] = pack<E>(y[i / 16][i % 16] * first, y[i / 16][i % 16 + 1] * second);
    }
  }
}

// S += V'^T diag(gamma_C / gamma) K: a product for each half of the key channels, one after the other.
template <class E, int D>
__device__ __forceinline__ void update_state(Slice<D>& S, const uint32_t (&decayed)[4][4], uint32_t box) {
#pragma unroll
  for (int half = 0; half < kHalves<D>; ++half) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // tokens are rows of the box: 16 of them are 2048 bytes
      wgmma<E, 1>(S[half], decayed[k], descriptor(box, half * kBoxBytes + 2048 * k), 1);
    }
    wgmma_commit();
  }
}

// The same of tokens from 16 From to 16 End - 1.
template <class E, int From, int End>
__device__ __forceinline__ void update_state_half(float (&S)[32], const uint32_t (&decayed)[4][4], uint32_t box) {
#pragma unroll
  for (int k = From; k < End; ++k) wgmma<E, 1>(S, decayed[k], descriptor(box, 2048 * k), 1);
}

// scale (S Q^T) diag(gamma), `reads` = scale gamma; and V'^T as a left operand.
template <class E>
__device__ __forceinline__ void scale_read(float (&o)[32], uint32_t (&bits)[4][4], const float (&y)[2][16],
                                           const float4 (&reads)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = k * 8 + 2 * e;
      bits[k][e] = pack<E>(y[i / 16][i % 16], y[i / 16][i % 16 + 1]);
      o[i] *= e < 2 ? reads[k].x : reads[k].z, o[i + 1] *= e < 2 ? reads[k].y : reads[k].w;
    }
  }
}

// The same in two steps, where P's product has sums of its own: V'^T as a left operand; O^T, of S Q^T and V'^T P^T.
template <class E>
__device__ __forceinline__ void pack_v(uint32_t (&bits)[4][4], const float (&y)[2][16]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = k * 8 + 2 * e;
      bits[k][e] = pack<E>(y[i / 16][i % 16], y[i / 16][i % 16 + 1]);
    }
  }
}
__device__ __forceinline__ void add_read(float (&o)[32], const float (&y)[2][16], const float4 (&reads)[4]) {
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const float4& four = reads[i / 8];
    o[i] = fmaf(o[i], i % 8 < 4 ? four.x : four.z, y[i / 16][i % 16]);
    o[i + 1] = fmaf(o[i + 1], i % 8 < 4 ? four.y : four.w, y[i / 16][i % 16 + 1]);
  }
}

// O^T to a box whose rows are tokens: to this lane's place there.
template <class E>
__device__ __forceinline__ void store_output(const float (&o)[32], uint32_t place) {
  uint32_t o_bits[4][4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) o_bits[k][e] = pack<E>(o[8 * k + 2 * e], o[8 * k + 2 * e + 1]);
    stmatrix_transposed(place + 2048 * k, o_bits[k]);
  }
}

}  // namespace
