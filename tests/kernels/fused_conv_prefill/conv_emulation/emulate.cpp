// The device code of fused_conv_prefill as a library for a CPU: a block after the other, in random order, its threads too.
#include "instructions.cuh"
#include "pass.cuh"

namespace {

template <int D, int W, bool Bias>
void emulate(Problem p) {
  constexpr int kHeads = kThreads * kPer / D;
  p.groups = (2 * p.HK + p.H + kHeads - 1) / kHeads;
  std::vector<unsigned> blocks((p.T + p.strip - 1) / p.strip * p.groups);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), schedule);
  for (const unsigned block : blocks) {
    blockIdx = {block, 0, 0};
    prepare_warps(kThreads);
    prepare_groups(kThreads);
    run_fibers(kThreads, [&] { gdn_conv_gates_kernel<D, W, Bias>(p); }, [] { return false; });
  }
}

template <int D, int W>
void emulate(const Problem& p) {
  p.bias == nullptr ? emulate<D, W, false>(p) : emulate<D, W, true>(p);
}

template <int D>
void emulate(const Problem& p, int W) {
  W == 2 ? emulate<D, 2>(p) : W == 3 ? emulate<D, 3>(p) : emulate<D, 4>(p);
}

}  // namespace

extern "C" void conv_gates(
    const bf16* x, const bf16* weight, const bf16* bias, const bf16* a, const bf16* b, const float* A_log, const bf16* dt_bias,
    const int64_t* cu_seqlens, bf16* pool, const int32_t* slots, const uint8_t* carried, bf16* q, bf16* k, bf16* v, float* g,
    float* beta, int64_t slot_stride, int T, int N, int num_slots, int HK, int H, int D, int W, int strip, unsigned seed) {
  Problem p{};
  p.x = x, p.weight = weight, p.bias = bias, p.a = a, p.b = b, p.dt_bias = dt_bias, p.A_log = A_log;
  p.cu_seqlens = cu_seqlens, p.pool = pool, p.slots = slots, p.carried = carried;
  p.q = q, p.k = k, p.v = v, p.g = g, p.beta = beta, p.slot_stride = slot_stride;
  p.T = T, p.N = N, p.num_slots = num_slots, p.HK = HK, p.H = H, p.strip = strip;
  first_of_x = x, end_of_x = x + static_cast<int64_t>(T) * (2 * HK + H) * D;
  schedule.seed(seed);
  D == 64 ? emulate<64>(p, W) : D == 128 ? emulate<128>(p, W) : emulate<256>(p, W);
}
