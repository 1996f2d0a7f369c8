"""What stands between FlashInfer's own functions and these definitions, where its trace_apply puts a solution in place.

FlashInfer 0.7.2 names a call by its heads, such as gdn_decode_qk16_v32_d128, and passes the arguments that its template
for the call lists, by name and without those that are None. So `use_qk_l2norm`, `output` and `output_final_state` never
arrive. Both of its decode functions have one name, though their states lie differently: this is for the function with
states [V, K], `gated_delta_rule_decode_pretranspose`.
"""

from collections.abc import Collection, Mapping

DECODE, DECODE_BF16, PREFILL = "gdn_decode_k_last", "gdn_decode_k_last_bf16_state", "gdn_prefill_k_last"
DECODE_RUN = """\
def run(q, k, v, A_log, a, dt_bias, b, state=None, scale=None):
    rules = {rules}
    if state is None or q.shape[1] != 1:
        raise ValueError("this solution takes one token a sequence, and states in `state`: no pool, no draft tokens")
    if state.dtype not in rules:
        raise ValueError(f"this solution does not serve states in {{state.dtype}}")
    output, new_state = rules[state.dtype](q, k, v, state, A_log, a, dt_bias, b, scale, True)
    state.copy_(new_state)  # FlashInfer updates it in place
    return output, state
"""
PREFILL_RUN = """\
def run(q, k, v, cu_seqlens, a=None, b=None, state=None, scale=None):
    cu_seqlens = cu_seqlens.to(torch.int64)
    return gdn_prefill_k_last(q, k, v, a, b, cu_seqlens, state, scale)
"""


def applied(served: Collection[str], axes: Mapping[str, int]) -> dict[str, str]:
    """See `gdnspec.family.Foreign.applied`. A name has the query heads, value heads and the head size."""
    if "head_size" not in axes:
        return {}
    heads = f"qk{axes['num_q_heads']}_v{axes['num_v_heads']}_d{axes['head_size']}"
    found = {}
    types = {DECODE: "torch.float32", DECODE_BF16: "torch.bfloat16"}
    rules = ", ".join(f"{dtype}: {name}" for name, dtype in types.items() if name in served)
    if rules:
        found[f"gdn_decode_{heads}"] = DECODE_RUN.format(rules=f"{{{rules}}}")
    if PREFILL in served:
        found[f"gdn_prefill_{heads}"] = PREFILL_RUN
    return found
