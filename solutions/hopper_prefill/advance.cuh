// A state over its chunks in order, 64 value channels a warpgroup, in registers.
//
// One chunk of 64 tokens, S [V, K] the state before it:
//   X^T  = V^T - (S K^T) diag(gamma)
//   V'^T = X^T T^T
//   O^T  = scale (S Q^T) diag(gamma) + V'^T P^T
//   S   <- gamma_C S + V'^T diag(gamma_C / gamma) K
// and O only where it is asked for. Transposed throughout, so that S and what depends on it stay in registers, as left
// operands; all right operands come from shared memory as they lie there.
//
// Who waits for whom, of the barriers of a chunk's place; a product waits for those on its left in the same row:
//
//   the warp that feeds    asks for q, k, v, tile ──┐                                  ┌── waits for `empty`: takes the
//                                                   │ full, v_full                     │   output, asks for chunk c + kStages
//   a warpgroup that        S K^T ─> X ─> V' ─────────> S += ─> half of S K^T of c + 1 ┤
//   advances                S Q^T ──────────> O += V' P ─> O to the place of v ────────┘ empty, as chunk c + 1 is under way
//                                             │ ready
//   the warpgroup that finds P (two slices) ──┘ waits for `full`
#pragma once
#include "cursor.cuh"
#include "join.cuh"
#include "operands.cuh"
#include "products.cuh"

namespace {

// A warpgroup's 64 value channels, from the first chunk to the last.
template <class E, int D, int Groups, bool Output, bool Checkpoints>
__device__ __forceinline__ void advance(const Problem& p, Block<D, Groups, Output, Checkpoints>& s, int wg) {
  constexpr bool kHandsOut = Checkpoints && kStaged<D, Groups>, kTwoHalves = kHalves<D> == 2;
  constexpr int kStages = kStagesOf<D, Groups, Output, Checkpoints>;
  const Work& work = s.work;
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0), lane = threadIdx.x % 32;
  // A thread holds, of every 8 columns, two neighbours of two rows: rows 16 warp + lane / 4 and eight further.
  const int column = 2 * (lane % 4);
  Slice<D> S;
  const int row = work.slice + wg * kSlice + 16 * warp + lane / 4;
  float* owed = nullptr;  // where S is to go, before it becomes the next
  if (Output && p.length != 0 && !p.firsts) wait_for_last();  // which has the state
  load_state<D>(S, work, work.from, work.from_k_first, row, column);
  if constexpr (Output) {
    if (work.joins > 0) join<D>(p, s, row, column, S);
  }
  constexpr uint32_t kStageBytes = sizeof(s.boxes[0]);
  constexpr uint32_t kTileBytes = sizeof(s.tile[0]), kDecays = kTerms * kTriangle, kP = kDecays + sizeof(Decays);
  constexpr uint32_t kFromStart = kDecays + offsetof(Decays, from_start), kToEnd = kDecays + offsetof(Decays, to_end);
  constexpr uint32_t kReadOut = kDecays + offsetof(Decays, read_out), kQ = kHalves<D> * kBoxBytes, kV = (Output ? 2 : 1) * kQ;
  // In a box of v, or of the output, whose rows are tokens, for ldmatrix and stmatrix; and of the lane's four tokens of 16.
  // Read anew, so that they are kept and not found from the thread's index in every chunk.
  const uint32_t of_lane = anew(wg * kBoxBytes + swizzled(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
  const uint32_t of_column = anew(8 * column);
  // Of gamma_C. Lanes are not known to agree about it: else it would come to a uniform register, and be waited for at once.
  const uint32_t of_all = anew(kFromStart + 4 * (kChunk - 1) + (lane * (lane + 1) & 1));
  const int leaves = anew(lane < kLeavers);  // says for its warp that it has left a place
  // Where the chunk is: carried over the loop, so that a chunk's first product waits for no addresses.
  uint32_t box = shared_address(s.boxes), tile = shared_address(s.tile), full = shared_address(s.full);
  const uint32_t to_v_full = shared_address(s.v_full) - full, to_ready = shared_address(s.ready) - full;
  const uint32_t to_empty = shared_address(s.empty) - full;
  uint32_t parity = 0, stage = 0, left = 0;  // left: the barrier of the place that is left next
  uint32_t state_bits[D / 16][4];
  const auto pack_state = [&](int half) {
    pack_channels<E>(&state_bits[4 * half], S[half]);
    keep(state_bits);  // packed here, and not where they are needed
  };
  const uint32_t v_mask = work.identity ? 0 : ~0u;
  // At a sequence's end threads read what others wrote, without TMA or wgmma: there all of them meet, with one warp that feeds.
  const int meeting = 32 + 128 * (Groups == 1 ? 1 : work.groups), chunks = work.chunks;
  const int64_t tokens = work.end - work.start;
  const int cut_short = tokens < static_cast<int64_t>(chunks) * kChunk ? chunks - 1 : -1;
  const int one = min(work.groups, 1);  // which the compiler does not know
  float x[32], o[32], y[2][16];         // S K^T; S Q^T, then O^T; V'^T: tokens 0 to 31, 32 to 63
  float all;                            // gamma_C
  float4 gammas[4], rests[4];           // gamma, gamma_C / gamma
  uint32_t bits[4][4];                  // V^T, the fragments of a left operand; then X^T; then V'^T
  int v_here = 0, p_here = 0;           // v of the chunk has been seen to have landed, its P to have been found
  const auto load_decays = [&](float4(&to)[4], uint32_t decays, int from, int end) {
#pragma unroll
    for (int k = from; k < end; ++k) to[k] = load_four(tile + decays + of_column + 64 * k);
  };
  // Of the next chunk, before the output is written: behind that they come late. Where two slices are advanced registers are
  // short: later, and half of the gammas once x is there.
  constexpr bool kShort = Groups == 2 && Output;
  constexpr int kAtOnce = kShort ? 2 : 4;
  const auto load_gammas = [&] {
    all = load_one(tile + of_all);
    load_decays(gammas, kFromStart, 0, kAtOnce);
  };
  // S K^T, of one half of the key channels after the other.
  const auto begin = [&](auto half) {
    wgmma_fence();
    multiply<E, 4 * half, 4 * half + 4>(x, state_bits, box);
    wgmma_commit();
  };
  constexpr std::integral_constant<int, 0> kFirst;
  constexpr std::integral_constant<int, 1> kSecond;
  // Two parts of a chunk, so that no product is under way where the loop begins anew: the compiler would wait for it.
  //
  // Chunk c up to V', while its S K^T is under way.
  const auto find_v = [&](int c) {
    GDN_STAMP(wg, c, 0);
    if (Checkpoints && owed != nullptr) hand_out<D, kHandsOut>(S, work, s, owed, 0);
    if constexpr (kShort) load_gammas();
    barrier_wait_unless(v_here, full + to_v_full, parity);
    if (c == cut_short) named_barrier(kCleared, meeting);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ldmatrix_transposed(bits[k], box + kV + of_lane + 2048 * k);
      if constexpr (!Output) {
#pragma unroll
        for (int e = 0; e < 4; ++e) bits[k][e] &= v_mask;
      }
    }
    GDN_STAMP(wg, c, 1);
    if constexpr (Output) {
      wgmma_fence();
      multiply<E, 0, D / 16>(o, state_bits, box + kQ);  // S Q^T
      wgmma_commit();
    }
    GDN_STAMP(wg, c, 2);
    if (Checkpoints && owed != nullptr) hand_out<D, kHandsOut>(S, work, s, owed, 1);
    settle_all(S);  // lest they are scaled before products are on their way
#pragma unroll
    for (int e = 0; e < 32; ++e) {
#pragma unroll
      for (int half = 0; half < kHalves<D>; ++half) S[half][e] *= all;
    }
    if constexpr (Output) {
      __syncwarp();
      barrier_arrive_if(leaves && c > 0, left);
    }
    wgmma_wait<Output ? 1 : 0>();
    settle(x);
    if constexpr (!Output) keep(state_bits);
    load_decays(gammas, kFromStart, kAtOnce, 4);
    GDN_STAMP(wg, c, 3);
    subtract_read<E>(bits, x, gammas);
    wgmma_fence();
#pragma unroll
    for (int term = 0; term < kTerms; ++term) multiply_lower<E>(y[0], y[1], bits, tile + term * kTriangle, term > 0);
    wgmma_commit();
    load_decays(rests, kToEnd, 0, 4);
    if (Output && finds_p(Groups)) p_here = barrier_test(full + to_ready, parity);
    GDN_STAMP(wg, c, 4);
    wgmma_wait<0>();
    if constexpr (Output) {
      settle(o);
      keep(state_bits);
    }
    settle(y[0]);
    settle(y[1]);
    keep(bits);
    GDN_STAMP(wg, c, 5);
  };
  // State and output; in the end S K^T of the next chunk is under way, if there is one.
  const auto use_v = [&](int c, auto is_last) {
    [[maybe_unused]] float4 reads[4];  // scale gamma
    if constexpr (Output) load_decays(reads, kReadOut, 0, 4);
    uint32_t decayed[4][4];
    decay_v<E>(decayed, y, rests);
    wgmma_fence();
    update_state<E, D>(S, decayed, box);
    if constexpr (Output) {  // while the update is under way
      if (finds_p(Groups)) barrier_wait_unless(p_here, full + to_ready, parity);
      // In a loop, which turns but once: else the compiler has the update wait for all of this.
      int turns = one;
      do {
        turns = anew(turns - 1);
        settle(y[0]), settle(y[1]);
        if constexpr (kTriangularP<D>) {
          pack_v<E>(bits, y);
        } else {
          settle(o);
          scale_read<E>(o, bits, y, reads);
        }
      } while (turns > 0);
      wgmma_fence();
      if constexpr (kTriangularP<D>) {  // V'^T P^T, or O^T
        multiply_lower<E>(y[0], y[1], bits, tile + kP, false);
      } else {
        multiply_square<E>(o, bits, tile + kP);
      }
      wgmma_commit();
    }
    [[maybe_unused]] const uint32_t v_of_this = box + kV;
    left = full + to_empty;
    next_stage<kStages, kStageBytes, kTileBytes>(box, tile, full, stage, parity);
    int here = 0;
    if constexpr (!is_last) here = barrier_test(full, parity), v_here = barrier_test(full + to_v_full, parity);
    // The next chunk waits for the state, for one half of it after the other, and not for the output.
    constexpr int kBehind = Output ? 1 : 0;  // P's product
    wgmma_wait<kHalves<D> - 1 + kBehind>();
    settle(S[0]);
    if constexpr (!is_last) {
      pack_state(0);
      barrier_wait_unless(here, full, parity);
      begin(kFirst);
    }
    if constexpr (kTwoHalves) {
      wgmma_wait<(is_last ? 0 : 1) + kBehind>();
      settle(S[1]);
    }
    keep(decayed);
    GDN_STAMP(wg, c, 6);
    if constexpr (!Output) {
      __syncwarp();
      barrier_arrive_if(leaves, left);
    }
    if constexpr (!is_last) {
      if constexpr (kTwoHalves) {
        pack_state(1);
        begin(kSecond);
      }
      if constexpr (!kShort) load_gammas();
    }
    if constexpr (Output) {
      wgmma_wait<is_last ? 0 : kHalves<D>>();
      if constexpr (kTriangularP<D>) {
        settle(y[0]), settle(y[1]);
        add_read(o, y, reads);
      } else {
        settle(o);
      }
      keep(bits);
      // O^T to the box of v, of which this warp has read the same channels; from there it goes to memory (feed.cuh).
      store_output<E>(o, v_of_this + of_lane);
      if constexpr (Checkpoints) owed = checkpoint_behind<D>(p, work, c + 1);
    }
  };
  if (chunks > 0) {
    pack_state(0);
    if constexpr (kTwoHalves) pack_state(1);
    barrier_wait(full, parity);
    begin(kFirst);
    if constexpr (kTwoHalves) begin(kSecond);
    if constexpr (!kShort) load_gammas();
    if constexpr (!Output) wgmma_wait<0>();  // else the compiler has it wait, as it scales S
    find_v(0);
#pragma unroll 1
    for (int c = 1; c < chunks; ++c) {
      use_v(c - 1, std::false_type{});
      find_v(c);
    }
    use_v(chunks - 1, std::true_type{});
    if constexpr (Output) {
      __syncwarp();
      barrier_arrive_if(leaves, left);
      if (cut_short >= 0) named_arrive(kWritten, meeting);
    }
  }
  if (!Output && work.identity) {
    save_transfer<D>(work.to, work.slice, warp, lane, S);
  } else if (work.to != nullptr) {
    save_state<D>(S, work, work.to, work.to_k_first);
  }
  if (Checkpoints && owed != nullptr) hand_out<D, kHandsOut>(S, work, s, owed, 0), hand_out<D, kHandsOut>(S, work, s, owed, 1);
  if constexpr (kHandsOut) stored_all();
}

}  // namespace
