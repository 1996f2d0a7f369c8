"""Kimi Delta Attention of transformers on `gdnspec.ops`: the layers of Kimi Linear and of GLM-5.3-Flash.

`gdnspec.integrations.transformers.use(model)` puts them in use.
"""

from typing import Any

import torch
from gdnspec import ops
from torch import Tensor
from transformers.integrations.accelerate import force_accelerate_hooks

from .layer_states import Layer, is_step, keep, rows_of, sequences_of, step_of

NAMES = ("KimiLinearDeltaAttention", "Glm5NextTextLinearAttention")
SERVED = "Kimi Linear and GLM-5.3-Flash"


def forward(
    self: Layer, hidden_states: Tensor, cache_params: Any = None, attention_mask: Tensor | None = None, **kwargs: Any
) -> Tensor:  # fmt: skip
    """As the layer's own, with the states of the convolution and of the rule in transformers' cache. The norm and the
    output gate are the layer's."""
    if attention_mask is not None:  # padding becomes zeros, which leave a state of zeros as it is
        hidden_states = (hidden_states * attention_mask[:, :, None]).to(hidden_states.dtype)
    B, T, _ = hidden_states.shape
    H, K, gate = self.num_heads, self.head_dim, self.forget_gate
    qkv = torch.cat([self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)], dim=-1)
    a = gate.f_b_proj(gate.f_a_proj(hidden_states)).view(B * T, H, K)
    b = self.b_proj(hidden_states).flatten(0, 1)
    rates, biases = gate.A_log.float().flatten(), gate.dt_bias.float().view(H, K)
    bound = getattr(gate, "safe_gate_lower_bound", None)
    convolution = (self.conv1d.weight[:, 0], self.conv1d.bias)
    if is_step(self, T, cache_params):
        states, each = step_of(self, cache_params), rows_of(B, qkv).slots
        mixed = ops.causal_conv1d_step(qkv.flatten(0, 1), *convolution, states.columns, each)
        heads = (x[:, None] for x in _heads(mixed, H))
        output = ops.kimi_delta_attention_step_(
            *heads, states.states, each, each, rates, a[:, None], biases, b[:, None], lower_bound=bound
        )
        states.put_back()
    else:
        starts, columns, slots, has_columns, state = sequences_of(self, qkv, cache_params, kwargs.get("cu_seq_lens_q"))
        mixed = ops.causal_conv1d(qkv.flatten(0, 1), *convolution, starts, columns, slots, has_columns)
        output, state = ops.kimi_delta_attention_raw_gates(
            *_heads(mixed, H), rates, a, biases, b, state, starts, lower_bound=bound
        )
        keep(self, cache_params, state)
    z = self.g_b_proj(self.g_a_proj(hidden_states)).view(B, T, H, K)
    found: Tensor = self.o_proj(self.o_norm(output.view(B, T, H, K), z).reshape(B, T, -1))
    return found


def _heads(mixed: Tensor, count: int) -> list[Tensor]:
    """q, k and v [rows, heads, K] of channels side by side."""
    return [x.contiguous().unflatten(-1, (count, -1)) for x in mixed.chunk(3, dim=-1)]


# The operators read weights of the convolution and of the gate, which accelerate may have to load before.
FORWARDS = dict.fromkeys(NAMES, force_accelerate_hooks(["conv1d", "forget_gate"])(forward))
