"""The states of a linear attention layer in transformers' cache, as the operators of `gdnspec.ops` want them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

Layer = Any  # a module of transformers, whose attributes have no types


class Rows(NamedTuple):
    """Of N sequences: a slot each, where they begin if each has one token, and whether all or none has a state."""

    slots: Tensor
    bounds: Tensor
    every: Tensor
    none: Tensor


KEPT: dict[tuple[int, torch.device], Rows] = {}


def rows_of(count: int, like: Tensor) -> Rows:
    """Made once per number of rows and device, and kept: a CUDA graph may read them whenever it is replayed. What is
    made while one is recorded, or a model compiled, has no values yet and is of that graph alone."""
    if torch.compiler.is_compiling() or type(like) is not Tensor:
        return _made(count, like.device)
    key = (count, like.device)
    if key not in KEPT:
        if like.is_cuda and torch.cuda.is_current_stream_capturing():
            return _made(count, like.device)
        with torch.inference_mode(False):  # calls with gradients may save them
            made = _made(count, torch.device("cpu"))
            KEPT[key] = Rows(*(x.to(like.device) for x in made))  # waits, so that all streams may read them
    return KEPT[key]


def _made(count: int, device: torch.device) -> Rows:
    every = torch.ones(count, dtype=torch.bool, device=device)
    bounds = torch.arange(count + 1, device=device)
    return Rows(torch.arange(count, dtype=torch.int32, device=device), bounds, every, torch.zeros_like(every))


def is_step(layer: Layer, tokens: int, cache_params: Any) -> bool:
    """Whether a call has one token per row, which goes on from a state that may change in place."""
    return tokens == 1 and carried(layer, cache_params) and not cache_params.layers[layer.layer_idx].record_past


def carried(layer: Layer, cache_params: Any) -> bool:
    """Whether the cache has states of this layer."""
    return cache_params is not None and cache_params.has_previous_state(layer.layer_idx)


class Step(NamedTuple):
    """The states of a step: pools of the convolution and of the rule, and what puts them back where they are copies."""

    columns: Tensor
    states: Tensor
    put_back: Callable[[], None]


def step_of(layer: Layer, cache_params: Any) -> Step:
    """The states of the cache are the pools, unless they lie otherwise: then they are copied."""
    cache, kept = cache_params.layers[layer.layer_idx], layer.conv_kernel_size - 1
    held, turned = cache.conv_states[0], cache.recurrent_states[0].mT
    in_place = turned.is_contiguous() and turned.dtype.itemsize >= 4
    columns, states = _columns(held, kept), turned if in_place else turned.float().contiguous()

    def put_back() -> None:
        if columns is not held:
            held[:, :, -kept:] = columns
        if not in_place:
            cache_params.update_recurrent_state(states.mT, layer.layer_idx)

    return Step(columns, states, put_back)


class Sequences(NamedTuple):
    """Whole sequences: where they start, their columns of the convolution with a slot each and whether these are there
    already, and the states of the rule. No slots are named where qkv wants gradients: sequence n has columns n."""

    starts: Tensor
    columns: Tensor
    slots: Tensor | None
    has_columns: Tensor
    state: Tensor | None


def sequences_of(layer: Layer, qkv: Tensor, cache_params: Any, packed: Tensor | None) -> Sequences:
    """qkv [B, T, channels]. `packed`: the starts of sequences that are packed in one row, where a call has them."""
    (B, T, _), kept, goes_on = qkv.shape, layer.conv_kernel_size - 1, carried(layer, cache_params)
    starts = None if goes_on else packed
    rows = rows_of(B if starts is None else len(starts) - 1, qkv)
    starts = rows.bounds * T if starts is None else starts.long()
    cache: Any = None if cache_params is None else cache_params.layers[layer.layer_idx]
    held = cache.conv_states[0] if goes_on else None
    columns = qkv.new_empty(len(rows.slots), qkv.shape[2], kept) if held is None else _columns(held, kept)
    # The package's own code needs no more columns than these, but where it may take some back.
    if cache is not None and (held is None or columns is not held or cache.record_past):
        size = kept + 1 if cache.record_past else kept
        cache_params.update_conv_state(qkv.mT, layer.layer_idx, conv_kernel_size=size)
    state = cache.recurrent_states[0].mT.contiguous() if goes_on else None
    slots = None if qkv.requires_grad else rows.slots
    return Sequences(starts, columns, slots, rows.every if goes_on else rows.none, state)


def keep(layer: Layer, cache_params: Any, state: Tensor) -> None:
    """Puts a state [.., V, K] into the cache, which keeps strides where it is new, so that the next call has [V, K] as
    they lie."""
    if cache_params is not None:
        cache_params.update_recurrent_state(state.mT, layer.layer_idx)


def _columns(held: Tensor, kept: int) -> Tensor:
    """The last inputs of the convolution. The cache has more where the package's own code has filled it, or fewer where
    it keeps all of a short past."""
    if held.shape[-1] == kept and held.is_contiguous():
        return held
    return pad(held, (kept - held.shape[-1], 0)).contiguous()
