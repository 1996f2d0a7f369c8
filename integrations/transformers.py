"""Run the linear attention layers of a transformers model on `gdnspec.ops`.

    import gdnspec.integrations.transformers
    handle = gdnspec.integrations.transformers.use(model)   # Qwen3-Next, Qwen3.5, OLMo Hybrid, Kimi Linear, ..
    ...
    handle.restore()                                        # or: with use(model): ...

Each layer gets another `forward`, as transformers' mapping of kernels gives one to the layers that it names. Where it
names the layer, as it does Qwen3.5's, and the model has `use_kernels`, the forward comes through that mapping. The
functions of the mapping are no way in: all models of a process share them, and they get finished gates and repeated
heads.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from types import MethodType, TracebackType
from typing import Any, Self

import torch
from gdnspec import ops
from torch import Tensor, nn
from torch.nn.functional import softplus

try:
    from transformers.integrations.accelerate import force_accelerate_hooks
    from transformers.utils.kernel_config import KernelConfig
except ImportError as error:
    raise ImportError(f"{error}: gdnspec needs transformers 5.17, pip install 'gdnspec[transformers]'") from error

from . import kimi_linear
from .layer_states import Layer, is_step, keep, rows_of, sequences_of, step_of
from .precision import l2_normalised
from .qkvz import Sizes, apart

Projected = tuple[Tensor, Tensor, Tensor, Tensor]


# --- projections of hidden states: q, k and v side by side, output gates, raw b and a ---------------------------


def _qwen3_next(layer: Layer, hidden: Tensor) -> Projected:
    """Two projections, whose rows have all of a key head and of its value heads side by side."""
    H = layer.num_k_heads
    qkv, z = apart(layer.in_proj_qkvz(hidden), Sizes(H, layer.head_k_dim, layer.value_dim // H))
    b, a = layer.in_proj_ba(hidden).unflatten(-1, (H, 2, -1)).movedim(-2, 0).flatten(-2)
    return qkv, z, b, a


def _qwen3_5(layer: Layer, hidden: Tensor) -> Projected:
    return layer.in_proj_qkv(hidden), layer.in_proj_z(hidden), layer.in_proj_b(hidden), layer.in_proj_a(hidden)


def _olmo_hybrid(layer: Layer, hidden: Tensor) -> Projected:
    qkv = torch.cat([layer.q_proj(hidden), layer.k_proj(hidden), layer.v_proj(hidden)], dim=-1)
    return qkv, layer.g_proj(hidden), layer.b_proj(hidden), layer.a_proj(hidden)


# By class: the projections of the hidden states, and the names of the norm and of the output projection.
LAYERS: dict[str, tuple[Callable[[Layer, Tensor], Projected], str, str]] = {
    "Qwen3NextGatedDeltaNet": (_qwen3_next, "norm", "out_proj"),
    "Qwen3_5GatedDeltaNet": (_qwen3_5, "norm", "out_proj"),
    "Qwen3_5MoeGatedDeltaNet": (_qwen3_5, "norm", "out_proj"),
    "OlmoHybridGatedDeltaNet": (_olmo_hybrid, "o_norm", "o_proj"),
}
SERVED = f"Qwen3-Next, Qwen3.5, Qwen3.5-MoE, OLMo Hybrid, {kimi_linear.SERVED}"


# --- a layer ----------------------------------------------------------------------------------------------------


def _forward_of(kind: str) -> Callable[..., Tensor]:
    project, norm_name, out_name = LAYERS[kind]

    def forward(
        self: Layer,
        hidden_states: Tensor,
        cache_params: Any = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """As the layer's own, with the state of the convolution and of the rule in transformers' cache."""
        if attention_mask is not None:  # padding becomes zeros, which leave a state of zeros as it is
            hidden_states = (hidden_states * attention_mask[:, :, None]).to(hidden_states.dtype)
        B, T, _ = hidden_states.shape
        qkv, z, b, a = (x.flatten(0, 1).contiguous() for x in project(self, hidden_states))
        norm = getattr(self, norm_name)
        if is_step(self, T, cache_params):
            output = _step(self, norm, qkv, z, a, b, cache_params)
        else:
            output = _sequences(self, qkv.view(B, T, -1), a, b, cache_params, kwargs.get("cu_seq_lens_q"))
            output = ops.gated_rms_norm(output, z.view(output.shape), norm.weight, norm.variance_epsilon)
        return getattr(self, out_name)(output.view(B, T, -1))

    # The operators read weights of the convolution and of the norm, which accelerate may have to load before.
    return force_accelerate_hooks(["conv1d", norm_name])(forward)


def _step(layer: Layer, norm: Layer, qkv: Tensor, z: Tensor, a: Tensor, b: Tensor, cache_params: Any) -> Tensor:
    """One token per row."""
    columns, states, put_back = step_of(layer, cache_params)
    slots = rows_of(len(qkv), qkv).slots
    convolution, gates = (layer.conv1d.weight[:, 0], layer.conv1d.bias), (layer.A_log, layer.dt_bias)
    if _expressed(layer, qkv, norm.weight, columns) and norm.variance_epsilon == 1e-6:
        pools = (columns, slots, states, slots)
        output = ops.gated_delta_net_step_(qkv, z, a, b, *convolution, *gates, norm.weight, *pools)
    else:
        heads = [x[:, None] for x in _heads(layer, ops.causal_conv1d_step(qkv, *convolution, columns, slots))]
        raw, options = (gates[0].float(), a[:, None], gates[1], b[:, None]), {"allow_neg_eigval": _twice(layer)}
        o = ops.gated_delta_rule_step_(*heads, states, slots, slots, *raw, **options)[:, 0]
        output = ops.gated_rms_norm(o, z.view(o.shape), norm.weight, norm.variance_epsilon)
    put_back()
    return output


def _sequences(layer: Layer, qkv: Tensor, a: Tensor, b: Tensor, cache_params: Any, packed: Tensor | None) -> Tensor:
    """The output of the rule over whole sequences, [tokens, heads, V]."""
    convolution = (layer.conv1d.weight[:, 0], layer.conv1d.bias)
    starts, columns, slots, has_columns, state = sequences_of(layer, qkv, cache_params, packed)
    states = (starts, columns, slots, has_columns)
    if _expressed(layer, qkv):
        inputs = ops.causal_conv1d_gates(
            qkv.flatten(0, 1), *convolution, a, b, layer.A_log, layer.dt_bias, *states, layer.head_k_dim
        )
    else:
        q, k, v = _heads(layer, ops.causal_conv1d(qkv.flatten(0, 1), *convolution, *states))
        alpha = torch.exp(-layer.A_log.float().exp() * softplus(a.float() + layer.dt_bias))
        beta = b.float().sigmoid() * (2 if _twice(layer) else 1)
        inputs = (l2_normalised(q), l2_normalised(k), v, alpha, beta)
    output, state = ops.gated_delta_rule(*inputs, state, starts, gate="linear", state_layout="k_last")
    keep(layer, cache_params, state)
    return output


def _expressed(layer: Layer, *tensors: Tensor) -> bool:
    """Whether the operators of several steps compute what the layer does, on a GPU in the types of their kernels."""
    if layer.head_k_dim != layer.head_v_dim or _twice(layer):
        return False
    types = {x.dtype for x in (*tensors, layer.conv1d.weight, layer.dt_bias)}
    return tensors[0].device.type == "cpu" or types == {torch.bfloat16}


def _twice(layer: Layer) -> bool:
    """Whether beta is up to 2, as in OLMo Hybrid."""
    return getattr(layer, "allow_neg_eigval", False)


def _heads(layer: Layer, qkv: Tensor) -> list[Tensor]:
    parts = qkv.split([layer.key_dim, layer.key_dim, layer.value_dim], dim=-1)
    sizes = (layer.head_k_dim, layer.head_k_dim, layer.head_v_dim)
    return [x.contiguous().unflatten(-1, (-1, size)) for x, size in zip(parts, sizes, strict=True)]


FORWARDS = {kind: _forward_of(kind) for kind in LAYERS} | kimi_linear.FORWARDS


class Handle:
    """Layers that run on `gdnspec.ops`, until `restore` or the end of a `with` block."""

    def __init__(self, layers: list[Layer], undo: list[Callable[[], None]]) -> None:
        self.layers, self._undo = layers, undo

    def __repr__(self) -> str:
        return f"<gdnspec: {len(self.layers)} layers, {'in use' if self._undo else 'restored'}>"

    def restore(self) -> None:
        """Gives the layers the forward that they had before. A second call does nothing."""
        undo, self._undo = self._undo, []
        for call in undo:
            call()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()


def use(model: nn.Module) -> Handle:
    """Runs all linear attention layers of a model on `gdnspec.ops`; `restore()` of the result undoes it.

    Raises `ValueError` for a model without such layers, or whose layers run on `gdnspec.ops` already.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"use() takes a model, which is a torch.nn.Module, not a {type(model).__name__}")
    layers: list[Layer] = [module for module in model.modules() if _kind(module)]
    name = type(model).__name__
    if not layers:
        raise ValueError(f"{name} has no linear attention that gdnspec serves: use() takes models of {SERVED}")
    if any(_in_use(layer) for layer in layers):
        raise ValueError(f"{name} uses gdnspec already: call restore() of what use() returned before you call it again")
    if wrong := {layer.activation for layer in layers} - {"silu", "swish"}:
        raise ValueError(f"{name} has a convolution with the activation {wrong.pop()!r}: gdnspec serves silu")
    mapped = {type(layer).kernel_layer_name: _kind(layer) for layer in layers if hasattr(layer, "kernel_layer_name")}
    if mapped and getattr(model, "use_kernels", False):
        return Handle(layers, [_mapped(model, mapped)])
    return Handle(layers, [_replaced(layer) for layer in layers])


def _replaced(layer: Layer) -> Callable[[], None]:
    """Gives a layer its forward here; returns what takes it back."""
    before = vars(layer).get(_attribute(layer))
    setattr(layer, _attribute(layer), MethodType(FORWARDS[_kind(layer)], layer))

    def undo() -> None:
        if _in_use(layer):  # nobody has replaced it since
            delattr(layer, name := _attribute(layer))
            if before is not None or name != "forward":
                setattr(layer, name, before or MethodType(type(layer).forward, layer))

    return undo


def _mapped(model: Any, kinds: dict[str, str]) -> Callable[[], None]:
    """The same through transformers' mapping of kernels, by which a model with `use_kernels` sets forwards again
    whenever it changes between training and evaluation."""
    before = model.kernel_config
    mapping = {name: dict.fromkeys(("cpu", "cuda"), _Repository(kind)) for name, kind in kinds.items()}
    model.kernel_config = copy(before) if before else KernelConfig()
    model.kernel_config.kernel_mapping = model.kernel_config.kernel_mapping | mapping
    model.set_use_kernels(True)

    def undo() -> None:
        model.kernel_config = before
        model.set_use_kernels(True)

    return undo


@dataclass(frozen=True)
class _Repository:
    """What the `kernels` library loads a layer from."""

    kind: str

    def load(self) -> type[nn.Module]:
        return type(self.kind, (nn.Module,), {"forward": FORWARDS[self.kind], "can_torch_compile": True})


def _kind(module: nn.Module) -> str:
    """The class of transformers that a layer has or extends, or nothing."""
    names = (c.__name__ for c in type(module).__mro__ if c.__module__.startswith("transformers.models."))
    return next((name for name in names if name in FORWARDS), "")


def _attribute(layer: Layer) -> str:
    """Where a layer's forward is: accelerate puts another around it."""
    return "_old_forward" if hasattr(layer, "_hf_hook") else "forward"


def _in_use(layer: Layer) -> bool:
    return getattr(vars(layer).get(_attribute(layer)), "__func__", None) is FORWARDS[_kind(layer)]
