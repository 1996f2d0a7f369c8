"""Inputs drawn on the device of a check: gigabytes in a second, where the generator of files would take minutes.

The regime `typical` alone. What belongs to tokens, sequences or slots comes from torch's generator, so that it depends
on the device; weights and what a head has once come from the line's seed as everywhere.
"""

import zlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from gdnspec.build.reference import module
from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.inputs.draw import Painter, RegimeError
from gdnspec.inputs.materialise import InvalidWorkload, scalars
from gdnspec.inputs.regimes import mamba_parameters
from gdnspec.inputs.validity import SLACK
from gdnspec.model.definition import Definition
from gdnspec.model.definition import Tensor as TensorModel
from gdnspec.model.workload import Workload
from gdnspec.protocol.arena import TORCH
from gdnspec.runner.batch import PER_ROW
from gdnspec.runner.call import Content
from gdnspec.runner.tensors import in_blocks, to_torch

BLOCK = 1 << 25  # elements drawn at a time
TINY = 2.0**-126


def draw(found: Found, workload: Workload, device: str) -> Content:
    """The call of a line that says `"drawn": "device"`. Raises `InvalidWorkload` where its inputs may not be used."""
    try:
        brush = _Brush(found, workload, device)
        wanted = [t for t in found.definition.inputs if not t.is_scalar and t.name not in workload.omit]
        tensors = {tensor.name: brush.paint(tensor) for tensor in wanted}
    except RegimeError as error:
        raise InvalidWorkload(str(error)) from None
    for problem in problems(found.definition, tensors, workload.normalises(found.definition)):
        raise InvalidWorkload(problem)
    return Content(tensors, scalars(found, workload, brush.scope), brush.scope)


class _Brush:
    """Draws one workload. Each input has a generator of its own, so omitting one changes no other."""

    def __init__(self, found: Found, workload: Workload, device: str) -> None:
        self.family = found.family
        self.definition, self.workload, self.device = found.definition, workload, device
        self.scope = workload.scope(found.definition, preset_of(found, workload))
        self.painter = Painter(found.definition, workload, self.scope)
        self._solved: dict[str, Tensor] = {}

    def paint(self, tensor: TensorModel) -> Tensor:
        """On the device."""
        per_row = tensor.shape is not None and (tensor.shape[:1] in PER_ROW or tensor.mutates)
        if tensor.is_index or not per_row:
            return to_torch(self.painter.paint(tensor)).to(self.device)
        shape, dtype = self.definition.shape(tensor, self.scope), TORCH[tensor.dtype]
        if tensor.parts:
            parts = self.definition.part_shapes(tensor, self.scope).items()
            drawn = [self.by_name(name, (shape[0], *part), dtype).flatten(1) for name, part in parts]
            return torch.cat(drawn, dim=1)
        if tensor.name in ("u", "w"):
            return self.solved(tensor.name)
        return self.by_name(tensor.name, shape, dtype)

    def by_name(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Normal, but for keys and queries, which have unit norm unless the operator sees to that, and for gates."""
        make: Callable[[Tensor], Tensor] = lambda x: x  # noqa: E731
        if name in ("q", "k") and not self.painter.normalised_inside:
            make = self._unit(dtype)
        elif name in ("g", "decay"):
            make = self._gate(log=self.definition.conventions.decay_gate == "log")
        elif name == "beta":
            make = torch.sigmoid
        generator = torch.Generator(self.device)
        generator.manual_seed(((self.workload.seed or 0) ^ zlib.crc32(name.encode())) & (2**63 - 1))
        out = torch.empty(shape, dtype=dtype, device=self.device)
        rows = out.view(-1, shape[-1])
        step = max(1, BLOCK // max(1, shape[-1]))
        for start in range(0, len(rows), step):
            size = (len(rows[start : start + step]), shape[-1])
            rows[start : start + step] = make(torch.randn(size, generator=generator, device=self.device)).to(dtype)
        return out

    def _unit(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        def unit(x: Tensor) -> Tensor:
            x = x / x.norm(dim=-1, keepdim=True).clamp(min=TINY)
            # Toward zero, so that |k| <= 1 after rounding.
            return (x.view(torch.int32) & -65536).view(torch.float32) if dtype == torch.bfloat16 else x

        return unit

    def _gate(self, log: bool) -> Callable[[Tensor], Tensor]:
        """alpha, or its logarithm, as models are initialised with: -A softplus(a + dt_bias), [.., heads]."""
        A, dt_bias = (
            torch.from_numpy(x.astype(np.float32)).to(self.device)
            for x in mamba_parameters(self.painter.stream("gate"), self.painter.layout.heads)
        )

        def gate(a: Tensor) -> Tensor:
            x = a + dt_bias
            log_alpha = -A * (x.clamp(min=0) + torch.log1p(torch.exp(-x.abs())))
            return log_alpha if log else torch.exp(log_alpha)

        return gate

    def solved(self, name: str) -> Tensor:
        """u or w of the same keys, values and gates: what the stage before would have made."""
        if not self._solved:
            tokens, H = int(self.scope["total_seq_len"]), int(self.scope["num_v_heads"])
            K, V = int(self.scope["key_head_dim"]), int(self.scope["value_head_dim"])
            k = self.by_name("k", (tokens, int(self.scope["num_k_heads"]), K), torch.bfloat16)
            v = self.by_name("v", (tokens, H, V), torch.bfloat16)
            g, beta = (self.by_name(gate, (tokens, H), torch.float32) for gate in ("g", "beta"))
            ends = torch.tensor(self.scope["cu_seqlens"], device=self.device)
            u, w = module(self.family, "chunk_stages").chunk_wy(k, v, g, beta, ends)
            self._solved = {"u": u, "w": w}
        return self._solved[name]


def problems(definition: Definition, tensors: dict[str, Tensor], normalised: bool) -> Iterator[str]:
    """What makes drawn inputs an invalid workload, in words: values outside of their domain, a recurrence that is not
    bounded. A block at a time."""
    for model in definition.inputs:
        if model.name in tensors and tensors[model.name].is_floating_point():
            yield from _values(model, tensors[model.name])
    if not normalised and "k" in tensors:
        yield from _unbounded(tensors)


def _values(model: TensorModel, x: Tensor) -> Iterator[str]:
    low, high = model.domain or (None, None)
    downwards = model.domain is not None and low is None
    for (block,) in in_blocks(x):
        legal = torch.isfinite(block) | (block == -torch.inf) if downwards else torch.isfinite(block)
        if not bool(legal.all()):
            yield f"{model.name} has values that are not finite"
            return
        if block.numel() and low is not None and float(block.min()) < low:
            yield f"{model.name} falls to {float(block.min())}, below {low}"
            return
        if block.numel() and high is not None and float(block.max()) > high:
            yield f"{model.name} rises to {float(block.max())}, above {high}"
            return


def _unbounded(tensors: dict[str, Tensor]) -> Iterator[str]:
    """beta * |k|^2 <= 2 at every token, where keys arrive as they are used."""
    k = tensors["k"].flatten(0, -3)  # [tokens, num_k_heads, K]
    write = torch.ones(len(k), 1, device=k.device)
    if "b" in tensors:
        write = torch.sigmoid(tensors["b"].float()).flatten(0, -2)
    elif "beta" in tensors:
        write = tensors["beta"]
    for keys, beta in in_blocks(k, write):
        norms = keys.double().square().sum(-1)
        heads = max(norms.shape[1], beta.shape[1])
        product = norms.repeat_interleave(heads // norms.shape[1], 1) * beta.double()
        if product.numel() and float(product.max()) > 2 + SLACK:
            yield f"beta * |k|^2 reaches {float(product.max()):.4g}: above 2 the recurrence is not bounded"
            return
