// The states again, over the chunks of a sequence in order, 64 value channels a warpgroup. S [V, K] is the state before a chunk:
//   X^T  = V^T - (S K^T) diag(gamma)
//   r^T  = X^T E^T                                      the error of each token, to memory; and S
//   S   <- gamma_C S + r^T diag(beta gamma_C / gamma) K
#pragma once
#include "maps.cuh"
#include "walk.cuh"

namespace {

template <int Groups>
struct ForwardStage {
  alignas(1024) unsigned char k[kHalves * kBoxBytes], v[Groups * kBoxBytes];
  ForwardTile tile;
};
// Blocks: of a multiprocessor. Two of them, a slice each, for short sequences: one loads and stores states while the other walks.
template <int Groups, int Blocks = 1>
constexpr int kForwardStages = Blocks == 2 ? 2 : Groups == 2 && kTerms == 2 ? 3 : 4;  // two terms of E leave less room
template <int Groups, int Blocks = 1>
using ForwardShared = Walking<ForwardStage<Groups>, Groups, kForwardStages<Groups, Blocks>>;
static_assert(sizeof(ForwardShared<1>) <= kMostShared && sizeof(ForwardShared<2>) <= kMostShared);
static_assert(2 * (sizeof(ForwardShared<1, 2>) + 1024) <= kMostShared + 1024);  // 1 KB more of each is the system's
constexpr int kShortWalkRegisters = 208, kShortFeedRegisters = 48;  // of half of a multiprocessor

// Beside: others store the states and tell of them. Waits: and prepare tiles meanwhile.
template <int Groups, int Blocks = 1, bool Beside = false, bool Waits = Beside>
struct ForwardWay {
  const Maps& maps;
  ForwardShared<Groups, Blocks>& s;
  const bool leaves = true, with_values = true;
  const Work& work = s.work;
  static constexpr bool kWaits = Waits, kTells = Beside;
  __device__ __forceinline__ void count(int turns) const { store_count(&s.values_there, turns); }
  __device__ __forceinline__ void ask_late(const Problem&, int) const {}
  __device__ __forceinline__ static int chunk_of(const Work&, int turn) { return turn; }
  __device__ __forceinline__ void leave(const Problem& p, ForwardStage<Groups>& stage, int c, int lane) const {
    if (!leaves) return;
    unsigned char* const to = p.errors + at_place(p, work.place + c, work.h) * kValueBytes + work.slice / kSlice * kBoxBytes;
    if (lane == 0) store_bytes(to, shared_address(stage.v), Groups * kBoxBytes);
  }
  __device__ __forceinline__ void ask(const Problem& p, ForwardStage<Groups>& stage, int, int c, uint32_t landed) const {
    const int token = static_cast<int>(work.start) + c * kChunk;
    const unsigned char* const tile = tile_at(p.forward_tiles, at_place(p, work.place + c, work.h), work.slice);
    barrier_expect(landed, (kHalves + (with_values ? Groups : 0)) * kBoxBytes + kForwardBytes);
    load_boxes(shared_address(stage.k), &maps.k, 0, work.k_head, token, landed);
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      const int behind = term == kTerms - 1 ? static_cast<int>(sizeof(ForwardDecays)) : 0;
      load_lower(shared_address(stage.tile.E[term]), tile + term * kTriangle, behind, landed);
    }
    if (!with_values) return;
    stored_read();  // what was left in the place of v
    const CUtensorMap* const map = Groups == kHalves ? &maps.v : &maps.slice_of_v;
    load_boxes(shared_address(stage.v), map, work.slice / kSlice, work.v_head, token, landed);
  }
  __device__ __forceinline__ void clear(ForwardStage<Groups>& stage, int rows, int lane) const {
    for (int i = 0; i < kHalves + Groups; ++i) clear_rows(shared_address(stage.k) + i * kBoxBytes, rows, lane, 32);
  }
};

// Carries: nothing is left but the state behind the last chunk. Beside: as above. Else a warp that has nothing else to do stores states, too: by
// those that walk it would be done one after the other, and products wait for all of them.
template <class E, int Groups, bool Carries, int Blocks = 1, bool Beside = false>
__device__ __forceinline__ void walk_forward(const Problem& p, ForwardShared<Groups, Blocks>& s, int wg) {
  constexpr int kStages = kForwardStages<Groups, Blocks>;
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0), lane = lane_here();
  const int chunks = s.work.chunks, slice = s.work.slice + wg * kSlice;
  Slice S;
  const int row = slice + 16 * warp + lane / 4, column = 2 * (lane % 4);
  bool given = false;
  if constexpr (Carries) {
    load_state(S, s.carried.from, row, column);
    if (s.carried.identity) begin_identity(S, row, column);
  } else {
    const StateAt from = state_before(p, s.work.n, s.work.h);
    given = from.first != nullptr;
    load_state(S, from, row, column);
  }
  uint32_t state_bits[8][4];
  float x[32] = {}, y[32];
  if (given && chunks > 0) {  // what a given state loses as an operand
    barrier_wait(shared_address(&s.full[0]), 0);
    pack_rest<E>(state_bits, S);
    wgmma_fence();
    multiply<E>(x, state_bits, shared_address(s.stage[0].k), false);
    wgmma_commit();
    wgmma_wait<0>();
    settle(x);
    keep(state_bits);
  }
  const bool with_rests = !Carries && keeps_rests(p);
  int place = 0, parity = 0;
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    auto& stage = s.stage[place];
    const uint32_t k = shared_address(stage.k), v = shared_address(stage.v) + wg * kBoxBytes;
    const uint32_t E_at = shared_address(stage.tile.E), decays = shared_address(&stage.tile.decays);
    const uint32_t states = shared_address(s.states[wg]);
    barrier_wait(shared_address(&s.full[place]), parity);
    const float end = load_one(decays + offsetof(ForwardDecays, from_start) + 4 * (kChunk - 1));
    Tokens bits;
    load_tokens(bits, v, warp, lane);
    float4 gammas[4];
    load_decays(gammas, decays + offsetof(ForwardDecays, from_start), lane);
    if constexpr (!Carries) barrier_wait(shared_address(&s.taken), (c & 1) ^ 1);
    pack_state<E>(state_bits, S);
    wgmma_fence();
    multiply_and_keep<E, !Carries>(x, state_bits, k, c == 0, states, warp, lane);
    wgmma_commit();
    if constexpr (!Carries) {
      scale_state(S, end);
      pass_on(shared_address(&s.passed_on), lane);
    }
    wgmma_wait<0>();
    settle(x);
    if constexpr (Carries) scale_state(S, end);
    keep(state_bits);
    add_decayed<E>(bits, x, gammas, -1.f);
    float4 written[4];
    load_decays(written, decays + offsetof(ForwardDecays, written), lane);  // as end: ahead of products, behind which it would wait
    wgmma_fence();
#pragma unroll
    for (int term = 0; term < kTerms; ++term) multiply_square<E>(y, bits, E_at + term * kSquare, term > 0);
    wgmma_commit();
    wgmma_wait<0>();
    settle(y);
    keep(bits);
    pack_decayed<E>(bits, y, written);
    wgmma_fence();
    update_state<E>(S, bits, k);
    wgmma_commit();
    if constexpr (!Carries) store_tokens<E>(y, v, warp, lane);  // this warp has read the same channels there
    wgmma_wait<0>();
    settle_state(S);
    keep(bits);
    if (with_rests && (c == 0 || c == chunks - 1)) write_rests<E>(y, rests_of(p, s.work, c == chunks - 1, slice / kSlice * 4 + warp), lane);
    __syncwarp();
    warp_arrive(lane, shared_address(&s.empty[place]));
    const bool around = place == kStages - 1;
    place = around ? 0 : place + 1, parity ^= around;
  }
  if constexpr (Carries) {
    save_state(S, s.carried.to, row, column);
    if (s.carried.turned != nullptr) save_state(S, whole_state(s.carried.turned, 0, true), row, column);
  }
}

// By a warp of the block. Told: somebody waits for them.
template <int Groups, int Blocks, bool Told>
__device__ __forceinline__ void store_states_forward(const Problem& p, ForwardShared<Groups, Blocks>& s, int& turns) {
  unsigned char* const to = p.starts + at_place(p, s.work.place, s.work.h) * kStateBytes;
  store_states<Told>(s, to + s.work.slice / kSlice * (kHalves * kBoxBytes), static_cast<int64_t>(p.H) * kStateBytes, turns);
}

// The grid is (slices, H, N).
template <class E, int Groups, int Blocks>
__global__ void __launch_bounds__(kWalkThreads<Groups>, Blocks) gdn_forward_kernel(const __grid_constant__ Problem p,
                                                                                   const __grid_constant__ Maps maps) {
  DYNAMIC_SHARED(memory);
  using Shared = ForwardShared<Groups, Blocks>;
  constexpr int kStages = kForwardStages<Groups, Blocks>;
  auto& s = *reinterpret_cast<Shared*>(memory);
  if (p.brief > 0 && count_chunks(p, nth_sequence(p, blockIdx.z)) == 0) return;
  prepare_places<Shared, Groups, kStages>(s, [](ForwardStage<Groups>& stage) { clear_squares(shared_address(stage.tile.E), kTerms); }, [&] {
    barrier_init(shared_address(&s.passed_on), 4 * Groups * kSpeakers);
    barrier_init(shared_address(&s.taken), 1);
  });
  if (threadIdx.x == 0) s.work = work_of(p, blockIdx.z, blockIdx.y, blockIdx.x * Groups * kSlice);
  __syncthreads();
  const int wg = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  if (wg < Groups) {
    if constexpr (Groups > 1 || Blocks > 1) registers_up<Blocks == 2 ? kShortWalkRegisters : kWalkRegisters>();
    walk_forward<E, Groups, false, Blocks>(p, s, wg);
  } else {
    if constexpr (Groups > 1 || Blocks > 1) registers_down<Blocks == 2 ? kShortFeedRegisters : kFeedRegisters>();
    const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0);
    if (warp == 0) {
      Behind behind;
      feed<ForwardWay<Groups, Blocks>, Shared, Groups, kStages>(p, s, {maps, s}, behind);
    } else if (warp == 2) {
      int turns = 0;
      store_states_forward<Groups, Blocks, false>(p, s, turns);
    }
  }
}

// The same, a slice a block, beside the walk back and the gradients, which begin as soon as all blocks of this kernel have.
template <class E>
__global__ void __launch_bounds__(kWalkThreads<1>, 1) gdn_forward_beside_kernel(const __grid_constant__ Problem p,
                                                                                const __grid_constant__ Maps maps) {
  DYNAMIC_SHARED(memory);
  using Shared = ForwardShared<1>;
  constexpr int kStages = kForwardStages<1>;
  auto& s = *reinterpret_cast<Shared*>(memory);
  prepare_places<Shared, 1, kStages>(s, [](ForwardStage<1>& stage) { clear_squares(shared_address(stage.tile.E), kTerms); }, [&] {
    barrier_init(shared_address(&s.passed_on), 4 * kSpeakers);
    barrier_init(shared_address(&s.taken), 1);
    s.states_there = s.values_there = 0;
  });
  wait_for_last();
  let_next_begin();  // which does not wait for this one to be over, so what came before has to be
  if (threadIdx.x == 0) s.work = work_of(p, blockIdx.z, blockIdx.y, blockIdx.x * kSlice);
  __syncthreads();
  const int of_block = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
  int turns = 0;
  if (of_block < 4) {
    walk_forward<E, 1, false, 1, true>(p, s, 0);
  } else if (of_block == 4) {
    Behind behind;
    feed<ForwardWay<1, 1, true, false>, Shared, 1, kStages>(p, s, {maps, s}, behind);
  } else if (of_block == 6) {
    store_states_forward<1, 1, true>(p, s, turns);
  } else if (of_block == 7) {
    tell_turns<1>(p, s, static_cast<int>(s.work.place) * p.k_heads + s.work.k_head, 0, s.work.chunks, turns);
  }
  __syncthreads();  // all that is left is there
  if (threadIdx.x == 0) store_released(forward_over(p, s.work), 1);
}

}  // namespace
