"""LinearAttention and CausalConvWithState, two operators of ONNX since opset 27, as single nodes in float32.

onnxruntime runs a node, or the evaluator that the onnx package brings as its reference, which is NumPy.

The operators take padded batches, gates in log space, states [K, V] and as many states as key heads. So the call turns
a linear gate into its logarithm, repeats heads, turns states by a view, goes through sequences one by one, and moves
states out of a pool and into it. Norms and raw gates are computed before the operator, which has neither. All of it is
in the timed call. The scale is handed on as it is: the operator takes 0.0 for its default.
"""

from functools import cache

import torch
from onnx import TensorProto, helper

LINEAR, CONVOLUTION = "LinearAttention", "CausalConvWithState"


@cache
def _node(evaluator, operator, inputs, outputs, attributes):
    """Runs a model of one node. `inputs` and `outputs`: (name, sizes), with None for any size; no sizes for an input
    that is left out."""
    given = [name if sizes else "" for name, sizes in inputs]
    node = helper.make_node(operator, given, [name for name, _ in outputs], **dict(attributes))
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in side if sizes]
        for side in (inputs, outputs)
    ]
    graph = helper.make_graph([node], operator, *values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)])
    if evaluator == "reference":
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(model).run
    import onnxruntime

    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run


def _called(evaluator, operator, given, sizes, outputs, **attributes):
    """Runs a node on tensors by name; None leaves an input out. `sizes`: of inputs for which the model names them."""
    shaped = tuple((name, () if x is None else sizes.get(name, (None,) * x.ndim)) for name, x in given.items())
    run = _node(evaluator, operator, shaped, outputs, tuple(sorted(attributes.items())))
    feeds = {name: x.float().contiguous().numpy() for name, x in given.items() if x is not None}
    return [torch.from_numpy(x.copy()) for x in run(None, feeds)]


# --- the rule ---------------------------------------------------------------------------------------------------


def _heads(x, count):
    """[.., heads, d] -> [.., count, d]."""
    return x.repeat_interleave(count // x.shape[-2], dim=-2)


def _rule(q, k, v, g, beta, state, scale, evaluator):
    """q, k [B, T, heads, K], v [B, T, heads, V], g (a logarithm) and beta [B, T, H], state [B, H, K, V]; as many
    states as value heads or query heads. Returns the output [B, T, H, V] and the state, both in float32."""
    H = max(q.shape[2], v.shape[2])
    q, k, v = (_heads(x, H) for x in (q, k, v))
    given = {
        "query": q.flatten(2), "key": k.flatten(2), "value": v.flatten(2), "past_state": state, "decay": g,
        "beta": torch.ones(*q.shape[:2], H) if beta is None else beta,
    }  # fmt: skip
    output, state = _called(
        evaluator, LINEAR, given, {}, (("output", (None,) * 3), ("present_state", (None,) * 4)),
        q_num_heads=H, kv_num_heads=H,
        scale=0.0 if scale is None else float(scale), update_rule="delta" if g is None else "gated_delta",
    )  # fmt: skip
    return output.unflatten(2, (H, -1)), state


def _log(alpha):
    return None if alpha is None else alpha.float().log()


def _turned(state):
    """[.., V, K] <-> [.., K, V]."""
    return None if state is None else state.transpose(-1, -2)


# --- prefill ----------------------------------------------------------------------------------------------------


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale, evaluator="onnxruntime"):
    """gdn_prefill_k_first. The operator is not asked about empty sequences."""
    H, bounds = max(q.shape[1], v.shape[1]), cu_seqlens.tolist()
    output = torch.empty(q.shape[0], H, v.shape[-1], dtype=v.dtype)
    states = torch.zeros(len(bounds) - 1, H, q.shape[-1], v.shape[-1])
    for n, (start, stop) in enumerate(zip(bounds, bounds[1:])):  # noqa: B905, RUF007
        state = None if initial_state is None else initial_state[n : n + 1]
        if start == stop:
            if state is not None:
                states[n] = state[0]
            continue
        one = [None if x is None else x[None, start:stop] for x in (q, k, v, g, beta)]
        o, S = _rule(*one, state, scale, evaluator)
        output[start:stop], states[n] = o[0].to(v.dtype), S[0]
    return output, states


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, evaluator="onnxruntime"):
    """gdn_prefill_k_last, gdn_prefill_k_last_kv_dims."""
    output, states = prefill_k_first(q, k, v, _log(g), beta, cu_seqlens, _turned(initial_state), scale, evaluator)
    return output, _turned(states)


def prefill_from_conv(qkv, decay, beta, recurrent_state, slots, row_offsets, evaluator="onnxruntime"):
    """gdn_prefill_from_conv and its variants."""
    _, V_heads, K, V = recurrent_state.shape
    keys = (qkv.shape[1] - V_heads * V) // 2
    q, k, v = (x.float().unflatten(1, (-1, d)) for x, d in zip(qkv.split((keys, keys, V_heads * V), 1), (K, K, V)))  # noqa: B905
    output, bounds = torch.zeros(qkv.shape[0], V_heads, V), row_offsets.tolist()
    q, k, g = _normed(q), _normed(k), _log(decay)
    for n, slot in enumerate(slots.tolist()):
        rows = slice(bounds[n], bounds[n + 1])
        if slot < 0 or rows.start == rows.stop:
            continue
        one = [x[None, rows] for x in (q, k, v, g, beta)]
        o, S = _rule(*one, recurrent_state[slot : slot + 1], None, evaluator)
        output[rows], recurrent_state[slot] = o[0], S[0].to(recurrent_state.dtype)
    return output.flatten(1)


# --- decode -----------------------------------------------------------------------------------------------------


def _normed(x):
    """The L2 norm, in float32."""
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def decode_k_first(
    q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval=None, evaluator="onnxruntime"
):
    """gdn_decode_k_first, gdn_decode_k_first_bf16_state."""
    if use_qk_l2norm is None or use_qk_l2norm:
        q, k = _normed(q), _normed(k)
    g = -A_log.float().exp() * torch.nn.functional.softplus(a.float() + dt_bias.float())
    beta = b.float().sigmoid() * (2.0 if allow_neg_eigval else 1.0)
    o, S = _rule(q, k, v, g, beta, state, scale, evaluator)
    return o.to(v.dtype), S.to(state.dtype)


def decode_k_last(
    q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval=None, evaluator="onnxruntime"
):
    """gdn_decode_k_last, gdn_decode_k_last_bf16_state, gdn_decode_k_last_kv_dims."""
    o, S = decode_k_first(
        q, k, v, _turned(state), A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval, evaluator
    )
    return o, _turned(S)


def decode_packed_k_last(mixed_qkv, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, evaluator="onnxruntime"):
    """gdn_decode_packed_k_last."""
    H, D = state.shape[1], state.shape[-1]
    keys = (mixed_qkv.shape[1] - H * D) // 2
    q, k, v = (x.unflatten(1, (-1, D)).unsqueeze(1) for x in mixed_qkv.split((keys, keys, H * D), dim=1))
    o, S = decode_k_last(
        q, k, v, state, A_log, a.unsqueeze(1), dt_bias, b.unsqueeze(1), scale, use_qk_l2norm, None, evaluator
    )
    return o.squeeze(1), S


def decode_pool_k_last(
    q,
    k,
    v,
    pool,
    read_slots,
    write_slots,
    A_log,
    a,
    dt_bias,
    b,
    scale,
    use_qk_l2norm,
    allow_neg_eigval=None,
    evaluator="onnxruntime",
):
    """gdn_decode_pool_k_last, gdn_decode_pool_k_last_bf16_state, gdn_decode_pool_k_last_kv_dims."""
    output = torch.zeros_like(v)
    rows = (read_slots >= 0).nonzero()[:, 0]
    if len(rows):
        state, of = pool[read_slots[rows].long()], (x[rows] for x in (q, k, v))
        o, S = decode_k_last(
            *of, state, A_log, a[rows], dt_bias, b[rows], scale, use_qk_l2norm, allow_neg_eigval, evaluator
        )  # fmt: skip
        output[rows], pool[write_slots[rows].long()] = o, S
    return output


# --- the convolution --------------------------------------------------------------------------------------------


def _convolved(x, weight, bias, state, evaluator):
    """x [B, C, T], state [B, C, W - 1] -> the same. onnxruntime 1.32 has no kernel for the operator. It runs the
    function that the standard gives for it, and that needs the channels and the width in the model."""
    C, W = weight.shape
    given = {"input": x, "weight": weight.unsqueeze(1), "bias": bias, "past_state": state}
    sizes = {"input": (None, C, None), "weight": (C, 1, W), "bias": (C,), "past_state": (None, C, W - 1)}
    outputs = (("output", (None, C, None)), ("present_state", (None, C, W - 1)))
    return _called(evaluator, CONVOLUTION, given, sizes, outputs, activation="silu")


def conv1d_prefill(x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state, evaluator="onnxruntime"):
    """gdn_conv1d_prefill."""
    output, bounds = torch.zeros_like(x), cu_seqlens.tolist()
    for n, slot in enumerate(slots.tolist()):
        rows = slice(bounds[n], bounds[n + 1])
        if slot < 0 or rows.start == rows.stop:
            continue
        state = conv_states[slot][None] if has_initial_state[n] else None
        y, after = _convolved(x[rows].T[None], weight, bias, state, evaluator)
        output[rows], conv_states[slot] = y[0].T.to(x.dtype), after[0].to(conv_states.dtype)
    return output


def conv1d_decode(x, weight, bias, conv_states, slots, evaluator="onnxruntime"):
    """gdn_conv1d_decode."""
    output = torch.zeros_like(x)
    rows = (slots >= 0).nonzero()[:, 0]
    if len(rows):
        at = slots[rows].long()
        y, after = _convolved(x[rows].unsqueeze(-1), weight, bias, conv_states[at], evaluator)
        output[rows], conv_states[at] = y.squeeze(-1).to(x.dtype), after.to(conv_states.dtype)
    return output
