"""Run the linear attention layers of a transformers model on `gdnspec.ops`.

    import gdnspec.integrations.transformers
    handle = gdnspec.integrations.transformers.use(model)   # Qwen3-Next, Qwen3.5, OLMo Hybrid
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
from torch.nn.functional import pad, softplus

try:
    from transformers.integrations.accelerate import force_accelerate_hooks
    from transformers.utils.kernel_config import KernelConfig
except ImportError as error:
    raise ImportError(f"{error}: gdnspec needs transformers 5.17, pip install 'gdnspec[transformers]'") from error

Layer = Any  # a module of transformers, whose attributes have no types
Projected = tuple[Tensor, Tensor, Tensor, Tensor]


def _qwen3_next(layer: Layer, hidden: Tensor) -> Projected:
    *qkv, z, b, a = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(hidden), layer.in_proj_ba(hidden))
    return torch.cat([x.flatten(2) for x in qkv], dim=-1), z, b, a


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
SERVED = "Qwen3-Next, Qwen3.5, Qwen3.5-MoE and OLMo Hybrid"


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
        qkv, z, b, a = (x.contiguous() for x in project(self, hidden_states))
        cache: Any = None if cache_params is None else cache_params.layers[self.layer_idx]
        carried = cache is not None and cache_params.has_previous_state(self.layer_idx)
        one = carried and qkv.shape[1] == 1
        starts = None if carried else kwargs.get("cu_seq_lens_q")  # of sequences that are packed in one row
        qkv = _convolved(self, qkv, cache_params, carried, one and not cache.record_past, starts)
        state = cache.recurrent_states[0] if carried else None
        output, state = (_step if one else _sequences)(self, _heads(self, qkv), a, b, state, starts)
        if cache is not None:
            cache_params.update_recurrent_state(state, self.layer_idx)
        norm = getattr(self, norm_name)
        output = ops.gated_rms_norm(output, z.view(output.shape), norm.weight, norm.variance_epsilon)
        return getattr(self, out_name)(output.flatten(2))

    # The operators read weights of the convolution and of the norm, which accelerate may have to load before.
    return force_accelerate_hooks(["conv1d", norm_name])(forward)


def _convolved(layer: Layer, x: Tensor, cache_params: Any, carried: bool, one: bool, starts: Tensor | None) -> Tensor:
    """silu(conv(x)). The cache has more tokens than the convolution reads, or fewer if it keeps all of a short past."""
    (B, T, C), kept = x.shape, layer.conv_kernel_size - 1
    weight, bias = layer.conv1d.weight[:, 0], layer.conv1d.bias
    held: Any = cache_params.layers[layer.layer_idx].conv_states[0] if carried else None
    if starts is None:
        starts = torch.arange(0, B * T + 1, T, device=x.device)
    slots = torch.arange(len(starts) - 1, dtype=torch.int32, device=x.device)
    states = x.new_zeros(len(slots), C, kept) if held is None else pad(held, (kept - held.shape[-1], 0))
    if one:
        y = ops.causal_conv1d_step(x[:, 0], weight, bias, states, slots)
        held[:, :, -kept:] = states
        return y[:, None]
    if cache_params is not None:
        cache_params.update_conv_state(x.mT, layer.layer_idx, conv_kernel_size=kept + 1)
    has_initial_state = torch.full_like(slots, carried, dtype=torch.bool)
    return ops.causal_conv1d(x.flatten(0, 1), weight, bias, starts, states, slots, has_initial_state).view(B, T, C)


def _heads(layer: Layer, qkv: Tensor) -> list[Tensor]:
    parts = qkv.split([layer.key_dim, layer.key_dim, layer.value_dim], dim=-1)
    sizes = (layer.head_k_dim, layer.head_k_dim, layer.head_v_dim)
    return [x.contiguous().unflatten(-1, (-1, size)) for x, size in zip(parts, sizes, strict=True)]


def _step(layer: Layer, qkv: list[Tensor], a: Tensor, b: Tensor, state: Any, _: Tensor | None) -> tuple[Tensor, Tensor]:
    gates = (layer.A_log.float(), a, layer.dt_bias, b)
    return ops.gated_delta_rule_step(*qkv, state, *gates, allow_neg_eigval=_twice(layer), state_layout="k_first")


def _sequences(
    layer: Layer, qkv: list[Tensor], a: Tensor, b: Tensor, state: Tensor | None, starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    q, k, v = qkv
    g = -layer.A_log.float().exp() * softplus(a.float() + layer.dt_bias)
    beta = b.float().sigmoid() * (2 if _twice(layer) else 1)
    inputs = (_l2_normalised(q), _l2_normalised(k), v, g, beta)
    if starts is None:
        return ops.gated_delta_rule(*inputs, state)
    output, state = ops.gated_delta_rule(*(x[0] for x in inputs), state, starts)
    return output[None], state


def _twice(layer: Layer) -> bool:
    """Whether beta is up to 2, as in OLMo Hybrid."""
    return getattr(layer, "allow_neg_eigval", False)


def _l2_normalised(x: Tensor) -> Tensor:
    X = x.float()
    return (X * torch.rsqrt((X * X).sum(dim=-1, keepdim=True) + 1e-6)).to(x.dtype)


FORWARDS = {kind: _forward_of(kind) for kind in LAYERS}


class Handle:
    """Layers that run on `gdnspec.ops`, until `restore` or the end of a `with` block."""

    def __init__(self, layers: list[Layer], undo: list[Callable[[], None]]) -> None:
        self.layers, self._undo = layers, undo

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
    return next((name for name in names if name in LAYERS), "")


def _attribute(layer: Layer) -> str:
    """Where a layer's forward is: accelerate puts another around it."""
    return "_old_forward" if hasattr(layer, "_hf_hook") else "forward"


def _in_use(layer: Layer) -> bool:
    return getattr(vars(layer).get(_attribute(layer)), "__func__", None) is FORWARDS[_kind(layer)]
