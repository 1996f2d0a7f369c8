// The gradients of states, over the chunks of a sequence from the last one, 64 value channels a warpgroup. dS [V, K] is that of
// the state behind a chunk, G = do:
//   Y^T  = G^T P + (dS K^T) diag(gamma_C / gamma)
//   x^T  = Y^T M                                        diag(beta) x is dv, to memory; and dS
//   dS  <- gamma_C dS + G^T diag(scale gamma) Q - x^T diag(beta gamma) K
// On the way, where the last kernel cannot find it, and x is at hand in float32: x . r of each token, over the channels of a warp,
// which is its part of dbeta.
#pragma once
#include "dots.cuh"
#include "maps.cuh"

namespace {

template <int Groups>
struct ReverseStage {
  alignas(1024) unsigned char k[kHalves * kBoxBytes], q[kHalves * kBoxBytes], g[Groups * kBoxBytes];
};
template <int Groups>
constexpr int kReverseStages = kTerms == 1 ? 3 : 2;
// r comes last in a turn: where there is no room for more, one place is enough for it.
template <int Groups>
constexpr int kErrorPlaces = Groups == 1 ? kReverseStages<Groups> : 1;
template <int Groups>
struct ReverseShared {
  static constexpr int kStages = kReverseStages<Groups>, kErrors = kErrorPlaces<Groups>;
  alignas(1024) ReverseStage<Groups> stage[kStages];
  unsigned char states[Groups][kHalves * kBoxBytes], r[kErrors][Groups * kBoxBytes];
  ReverseTile tile[kStages];
  alignas(8) uint64_t full[kStages], empty[kStages], tail, errors_there;
  uint64_t passed_on, taken;  // states that another warp stores: there are some, there is room
  int states_there, values_there;  // turns of the block of which these are in memory
  Work work;
  Carried carried;
};
static_assert(sizeof(ReverseShared<1>) <= kMostShared && sizeof(ReverseShared<2>) <= kMostShared);

template <class E, int Groups, bool Beside = false, bool Waits = Beside>
struct ReverseWay {
  const Maps& maps;
  ReverseShared<Groups>& s;
  const bool leaves = true;
  const Work& work = s.work;
  static constexpr bool kWaits = Waits, kTells = true;
  __device__ __forceinline__ void count(int turns) const { store_count(&s.values_there, turns); }
  __device__ __forceinline__ static int chunk_of(const Work& work, int turn) { return work.chunks - 1 - turn; }
  // A last chunk's box would reach into the next sequence: its rows go one by one.
  __device__ __forceinline__ void leave(const Problem& p, ReverseStage<Groups>& stage, int c, int lane) const {
    if (!leaves) return;
    const int64_t token = work.start + static_cast<int64_t>(c) * kChunk;
    const int rows = work.tokens - c * kChunk;
    if (rows >= kChunk) {
      const CUtensorMap* const map = Groups == kHalves ? &maps.dv : &maps.slice_of_dv;
      if (lane == 0) store_boxes(map, shared_address(stage.g), work.slice / kSlice, work.h, static_cast<int>(token));
      return;
    }
    uint16_t* const to = p.writes + (token * p.H + work.h) * kHeadSize + work.slice;
#pragma unroll 1
    for (int at = lane; at < Groups * rows * 8; at += 32) {
      const int box = at / (rows * 8), row = at / 8 % rows, piece = at % 8;
      const uint4 words = load_shared(shared_address(stage.g) + box * kBoxBytes + swizzled(row, piece));
      *reinterpret_cast<uint4*>(to + static_cast<int64_t>(row) * p.H * kHeadSize + box * kSlice + 8 * piece) = words;
    }
    __syncwarp();
  }
  __device__ __forceinline__ void ask(const Problem& p, ReverseStage<Groups>& stage, int place, int c, uint32_t landed) const {
    const int token = static_cast<int>(work.start) + c * kChunk;
    const int64_t at = at_place(p, work.place + c, work.h);
    const bool with_errors = kErrorPlaces<Groups> > 1 && needs_errors(c);
    barrier_expect(landed, (2 * kHalves + (with_errors ? 2 : 1) * Groups) * kBoxBytes + kReverseBytes);
    load_boxes(shared_address(stage.k), &maps.k, 0, work.k_head, token, landed);
    const unsigned char* const tile = tile_at(p.reverse_tiles, at, work.slice);
    if constexpr (Groups == kHalves) {
      load_bytes_once(shared_address(&s.tile[place]), tile, kReverseBytes, landed);
    } else {  // the other slice's block wants it, too
      load_bytes(shared_address(&s.tile[place]), tile, kReverseBytes, landed);
    }
    load_boxes(shared_address(stage.q), &maps.q, 0, work.q_head, token, landed);
    if (with_errors) ask_errors(p, place, c, landed, false);
    stored_read();  // what was left in the place of g
    load_boxes(shared_address(stage.g), Groups == kHalves ? &maps.g : &maps.slice_of_g, work.slice / kSlice, work.h, token, landed);
  }
  // r of a chunk: at both ends of a sequence, or wherever dbeta is. Beside the forward walk: at its end alone.
  __device__ __forceinline__ bool needs_errors(int c) const {
    if (Beside) return kErrorPlaces<Groups> > 1 && c == 0 && work.chunks > 1;  // else whoever walks reads it
    return leaves && (!kDivides<E> || c == 0 || c == work.chunks - 1);
  }
  __device__ __forceinline__ void ask_late(const Problem& p, int c) const {
    if (kErrorPlaces<Groups> == 1 && needs_errors(c)) ask_errors(p, 0, c, shared_address(&s.errors_there), true);
  }
  __device__ __forceinline__ void ask_errors(const Problem& p, int place, int c, uint32_t there, bool alone) const {
    const unsigned char* const errors = p.errors + at_place(p, work.place + c, work.h) * kValueBytes + work.slice / kSlice * kBoxBytes;
    if (alone) barrier_expect(there, Groups * kBoxBytes);
    if constexpr (Beside) wait_for_forward<Groups>(p, work), fence_async_memory();
    load_bytes(shared_address(s.r[place]), errors, Groups * kBoxBytes, there);
  }
  __device__ __forceinline__ void clear(ReverseStage<Groups>& stage, int rows, int lane) const {
    for (int i = 0; i < 2 * kHalves + Groups; ++i) clear_rows(shared_address(stage.k) + i * kBoxBytes, rows, lane, 32);
  }
};

template <int Groups>
__device__ __forceinline__ void prepare_walk_back(ReverseShared<Groups>& s) {
  prepare_places<ReverseShared<Groups>, Groups, kReverseStages<Groups>>(s, [](ReverseStage<Groups>&) {}, [&] {
    barrier_init(shared_address(&s.errors_there), 1);
    barrier_init(shared_address(&s.passed_on), 4 * Groups * kSpeakers);
    barrier_init(shared_address(&s.taken), 1);
    s.states_there = s.values_there = 0;
  });
}

// Once all who walk, feed and store are done: the walk's memory may be used again. By one thread.
template <int Groups>
__device__ __forceinline__ void end_walk_back(ReverseShared<Groups>& s) {
  for (int i = 0; i < kReverseStages<Groups>; ++i) barrier_end(shared_address(&s.full[i])), barrier_end(shared_address(&s.empty[i]));
  barrier_end(shared_address(&s.tail)), barrier_end(shared_address(&s.errors_there));
  barrier_end(shared_address(&s.passed_on)), barrier_end(shared_address(&s.taken));
  fence_async();
}

// `behind`: turns of the block. `place`, `parity`: of the first turn, and in the end of the turn behind the last one; the second bit is
// that of errors.
// Carries: nothing is left but the gradient of the state before the first chunk. Beside: the forward walk is not over yet maybe.
template <class E, int Groups, bool Carries, bool Beside = false>
__device__ __forceinline__ void walk_back(const Problem& p, ReverseShared<Groups>& s, int wg, int& behind, int& place, int& parity) {
  constexpr int kStages = kReverseStages<Groups>;
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0), lane = lane_here();
  const int chunks = s.work.chunks, slice = s.work.slice + wg * kSlice;
  const int row = slice + 16 * warp + lane / 4, column = 2 * (lane % 4);
  int64_t at = at_place(p, s.work.place + chunks - 1, s.work.h);
  const int walker = slice / kSlice * 4 + warp;
  Slice dS;
  if constexpr (Carries) {
    load_state(dS, s.carried.from, row, column);
  } else {
    load_state(dS, gradient_behind(p, s.work.n, s.work.h), row, column);
  }
  uint32_t state_bits[8][4];
  float y[32] = {}, o[32];
  if (!Carries && p.dht != nullptr && chunks > 0) {  // what a given gradient loses as an operand
    barrier_wait(shared_address(&s.full[place]), parity & 1);
    pack_rest<E>(state_bits, dS);
    wgmma_fence();
    multiply<E>(y, state_bits, shared_address(s.stage[place].k), false);
    wgmma_commit();
    wgmma_wait<0>();
    settle(y);
    keep(state_bits);
  }
  const bool with_rests = keeps_rests(p);
  const auto kept = [&] { return p.kept + (at_place(p, s.work.n, s.work.h) * kWalkers + anew(walker)) * (kChunk * kChunk / 2); };
  const auto wait_for_errors = [&] {
    if constexpr (kErrorPlaces<Groups> == 1) barrier_wait(shared_address(&s.errors_there), parity >> 1 & 1);
  };
#pragma unroll 1
  for (int turn = 0; turn < chunks; ++turn) {
    auto& stage = s.stage[place];
    const uint32_t k = shared_address(stage.k), q = shared_address(stage.q), g = shared_address(stage.g) + wg * kBoxBytes;
    const uint32_t r = shared_address(s.r[kErrorPlaces<Groups> > 1 ? place : 0]) + wg * kBoxBytes, tile = shared_address(&s.tile[place]);
    const uint32_t M = tile, P = tile + offsetof(ReverseTile, P), decays = tile + offsetof(ReverseTile, decays);
    const int64_t of_slice = at * kStateBytes + slice / kSlice * (kHalves * kBoxBytes);
    if (!Carries && (turn == chunks - 1 || turn == 0) && !(Beside && turn == 0)) {
      if constexpr (Beside) wait_for_forward<Groups>(p, s.work);
      const float* const given = turn == chunks - 1 ? given_state(p, s.work) : nullptr;
      const float found = dot_states_exactly<E>(dS, given, p.segments.k_first, p.starts + of_slice, anew(row), anew(column), warp, lane_here());
      if (lane == 0) ends_at(p, s.work.n, s.work.h, turn == 0).of_states[walker] = found;
    }
    barrier_wait(shared_address(&s.full[place]), parity & 1);
    const float end = load_one(decays + offsetof(ReverseDecays, end));  // ahead of products, behind which it would wait
    if constexpr (!Carries) barrier_wait(shared_address(&s.taken), ((behind + turn) & 1) ^ 1);
    pack_state<E>(state_bits, dS);
    Tokens g_bits, q_bits, bits;
    load_tokens(g_bits, g, warp, lane);
    wgmma_fence();
    multiply_and_keep<E, !Carries>(y, state_bits, k, turn == 0, shared_address(s.states[wg]), warp, lane);
    multiply_upper<E>(o, g_bits, P, false);
    wgmma_commit();
    scale_state(dS, end);
    decay_tokens<E>(q_bits, g_bits, decays + offsetof(ReverseDecays, read), lane);
    // The state's update by queries waits for nothing: its halves fill gaps, the first one that before x, the second one that behind it.
    wgmma_fence();
    multiply_by<E>(dS[0], q_bits, q, true);
    wgmma_commit();
    if constexpr (!Carries) pass_on(shared_address(&s.passed_on), lane);
    float4 decay[4];
    load_decays(decay, decays + offsetof(ReverseDecays, to_end), lane);
    wgmma_wait<1>();
    settle(y), settle(o);
    keep(state_bits), keep(g_bits);
    if (Beside && turn == 0) keep_tokens(y, kept(), lane);
    if (!Beside && !Carries && turn == 0 && p.dht != nullptr) {  // y is dS k: that may be large beside what is left of the sum
      wait_for_errors();
      float* const of_end = p.of_end + (at_place(p, s.work.n, s.work.h) * kWalkers + walker) * kChunk;
      Tokens errors;
      load_tokens(errors, r, warp, lane);
      dot_tokens<E, true>(y, errors, rests_of(p, s.work, true, walker), of_end, warp, lane);
    }
    pack_sum<E>(bits, o, y, decay);
    load_decays(decay, decays + offsetof(ReverseDecays, erased), lane);  // as end
    float4 betas_of[4];
    float small = 0.f;
    if constexpr (!Carries) {
      load_decays(betas_of, decays + offsetof(ReverseDecays, beta), lane);
      small = load_one(decays + offsetof(ReverseDecays, small_beta));
    }
    wgmma_fence();
#pragma unroll
    for (int term = 0; term < kTerms; ++term) multiply_upper<E>(y, bits, M + term * kTriangle, term > 0);
    wgmma_commit();
    wgmma_fence();
    multiply_by<E>(dS[1], q_bits, q + kBoxBytes, true);
    wgmma_commit();
    wgmma_wait<1>();
    settle(y);
    keep(bits);
    pack_decayed<E>(bits, y, decay);
    keep(bits);
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wgmma<E, 1>(dS[half], bits[i], descriptor(k + half * kBoxBytes, along_column(i)), true);
        const int part = 2 * half + i / 2;  // of dv: this warp has read the same channels there
        if (!Carries && i % 2 == 0) store_decayed_tokens<E>(part, y, betas_of[part], g, warp, lane);
      }
    }
    wgmma_commit();
    const auto betas = [&] {  // of this warp
      const Betas of = betas_at(p, at, s.work.start + static_cast<int64_t>(chunks - 1 - turn) * kChunk, s.work.h);
      return const_cast<float*>(of.first) + walker * of.step;
    };
    const bool at_end = turn == 0 || turn == chunks - 1, exact = at_end && (with_rests || kDivides<E>);
    if constexpr (!Carries && !kDivides<E>) {
      wait_for_errors();
      Tokens errors;
      if (!exact) load_tokens(errors, r, warp, lane), dot_tokens<E, false>(y, errors, nullptr, at_end ? ends_at(p, s.work.n, s.work.h, turn == 0).of_beta[walker] : betas(), warp, lane);
    }
    wgmma_wait<0>();
    settle_state(dS);
    keep(bits), keep(q_bits);
    if constexpr (!Carries) {
      Tokens errors;
      const bool asked = !Beside;  // one place is not used then
      if (kDivides<E> && at_end && asked) wait_for_errors();
      if (Beside && turn == 0) {
        keep_tokens(y, kept() + kChunk * kChunk / 4, lane);
      } else if (exact) {
        if constexpr (Beside && kErrorPlaces<Groups> == 1) {
          load_tokens_from_memory(errors, p.errors + at * kValueBytes + anew(slice) / kSlice * kBoxBytes, warp, lane);
        } else {
          load_tokens(errors, r, warp, lane);
        }
        dot_tokens<E, true>(y, errors, with_rests ? rests_of(p, s.work, turn == 0, walker) : nullptr,
                            ends_at(p, s.work.n, s.work.h, turn == 0).of_beta[walker], warp, lane);
      } else if (kDivides<E> && small != 0.f) {
        if constexpr (Beside) wait_for_forward<Groups>(p, s.work);
        load_tokens_from_memory(errors, p.errors + at * kValueBytes + anew(slice) / kSlice * kBoxBytes, warp, lane);
        dot_tokens<E, false>(y, errors, nullptr, betas(), warp, lane);
      }
      if ((!kDivides<E> || at_end) && asked) parity ^= 2;
    }
    at -= p.H;
    __syncwarp();
    warp_arrive(lane, shared_address(&s.empty[place]));
    const bool around = place == kStages - 1;
    place = around ? 0 : place + 1, parity ^= around;
  }
  behind += chunks;
  if constexpr (Carries) {
    save_state(dS, s.carried.to, row, column);
  } else {
    if (s.work.of_dh0 >= 0) {
      save_state(dS, whole_state(p.dh0, at_place(p, s.work.of_dh0, s.work.h), p.segments.k_first), row, column);
    }
  }
  if (!Beside || chunks == 0) return;
  find_of_last<E, Groups>(p, s.work, wg);
}

// Where the states of a walk back go.
template <int Groups>
__device__ __forceinline__ void store_states_back(const Problem& p, ReverseShared<Groups>& s, int& behind) {
  unsigned char* const to = p.ends + at_place(p, s.work.place + s.work.chunks - 1, s.work.h) * kStateBytes;
  store_states<true>(s, to + s.work.slice / kSlice * (kHalves * kBoxBytes), -static_cast<int64_t>(p.H) * kStateBytes, behind);
}

}  // namespace
