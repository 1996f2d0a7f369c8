"""Calls that are drawn on the device of a check, in the regime `typical` alone.

What belongs to tokens, sequences or slots comes from torch's generator, so that it depends on the device; rates and
biases of heads come from the line's seed as everywhere.
"""

import math
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from gdnspec.family import Definition, Scope, Workload, in_blocks, to_torch
from gdnspec.family import Tensor as TensorModel
from torch import Tensor

from .bounds import SLACK, normalises
from .chunk_stages import chunk_wy
from .draw import Painter
from .regimes import mamba_parameters

BLOCK = 1 << 25  # elements drawn at a time
TINY = 2.0**-126
SLOW = 1 / 160  # of the decay of models, for backward passes
# The first dimension of what a call has a row of, for each token or sequence, or of a pool.
PER_ROW = (["batch_size"], ["total_seq_len"], ["num_seqs"], ["num_chunks"], ["num_slots"])
SIZES = ("total_seq_len", "num_k_heads", "num_v_heads", "head_size")
Make = Callable[[Tensor], Tensor]  # from normal numbers


class Brush:
    """Draws one workload. Each input has a generator of its own, so omitting one changes no other."""

    def __init__(self, definition: Definition, workload: Workload, scope: Scope, device: str) -> None:
        self.definition, self.workload, self.scope, self.device = definition, workload, scope, device
        self.painter = Painter(definition, workload, scope)
        self._solved: dict[str, Tensor] = {}

    def paint(self, tensor: TensorModel) -> Tensor:
        """On the device."""
        if tensor.is_index or tensor.shape is None or tensor.shape[:1] not in PER_ROW:
            return to_torch(self.painter.paint(tensor)).to(self.device)
        shape, dtype = self.definition.shape(tensor, self.scope), getattr(torch, tensor.dtype)
        if tensor.parts:
            shapes = self.definition.part_shapes(tensor, self.scope)
            drawn = [self.drawn(p.name, p.draw, (shape[0], *shapes[p.name]), dtype).flatten(1) for p in tensor.parts]
            return torch.cat(drawn, dim=1)
        if tensor.draw in ("solved_keys", "solved_values"):
            return self.solved(tensor.draw)
        return self.drawn(tensor.name, tensor.draw, shape, dtype)

    def drawn(self, name: str, draw: str | None, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Normal, but for keys and queries, which have unit norm unless the operator sees to that, and for gates."""
        generator = torch.Generator(self.device)
        generator.manual_seed(((self.workload.seed or 0) ^ zlib.crc32(name.encode())) & (2**63 - 1))
        make, out = self._make(draw, dtype), torch.empty(shape, dtype=dtype, device=self.device)
        size = shape[-2:] if draw == "decay_gates" else shape[-1:]  # a head has a rate, a channel a bias
        rows = out.view(-1, *size)
        step = max(1, BLOCK // max(1, math.prod(size)))
        for start in range(0, len(rows), step):
            count = len(rows[start : start + step])
            normal = torch.randn((count, *size), generator=generator, device=self.device)
            rows[start : start + step] = make(normal).to(dtype)
        return out

    def _make(self, draw: str | None, dtype: torch.dtype) -> Make:
        if draw in ("queries", "keys") and not self.painter.normalised_inside:
            return _toward_zero if dtype == torch.bfloat16 else _unit
        if draw == "decay_gates":
            return self._log_gate()
        return torch.sigmoid if draw == "write_gates" else lambda x: x

    def _log_gate(self) -> Make:
        """log alpha as models are initialised with: -A softplus(a + dt_bias), [.., heads, K].

        A is smaller for a backward pass: where a channel forgets fast, honest kernels differ by several percent in its
        dg, and among the many channels of large workloads there would be one that no budget allows."""
        A, dt_bias = (
            torch.from_numpy(x.astype(np.float32)).to(self.device)
            for x in mamba_parameters(self.painter.stream("gate"), self.painter.layout.heads, self.painter.K)
        )
        rate = (SLOW * A if self.definition.stage == "backward" else A)[:, None]
        return lambda a: -rate * torch.nn.functional.softplus(a + dt_bias)

    def solved(self, draw: str) -> Tensor:
        """Keys or values that the stage before would have made of the same keys, values and gates."""
        if not self._solved:
            (T, HK, H, K), bf16 = (int(self.scope[axis]) for axis in SIZES), torch.bfloat16
            k, v = self.drawn("k", "keys", (T, HK, K), bf16), self.drawn("v", "values", (T, H, K), bf16)
            g = self.drawn("g", "decay_gates", (T, H, K), torch.float32)
            beta = self.drawn("beta", "write_gates", (T, H), torch.float32)
            u, w = chunk_wy(k, v, g, beta, torch.tensor(self.scope["cu_seqlens"], device=self.device))
            self._solved = {"solved_values": u, "solved_keys": w}
        return self._solved[draw]


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=TINY)


def _toward_zero(x: Tensor) -> Tensor:
    """Of unit norm, cut to what bfloat16 holds: |k| <= 1 after rounding."""
    return (_unit(x).view(torch.int32) & -65536).view(torch.float32)


def problems(definition: Definition, tensors: dict[str, Tensor], workload: Workload) -> Iterator[str]:
    """As `bounds.problems`, a block at a time."""
    if normalises(definition, workload) or "k" not in tensors:
        return
    k = tensors["k"].flatten(0, -3)  # [tokens, num_k_heads, K]
    write = torch.ones(len(k), 1, device=k.device)
    if "b" in tensors:
        write = torch.sigmoid(tensors["b"].float()).flatten(0, -2)
    elif "beta" in tensors:
        write = tensors["beta"].flatten(0, -2)
    for keys, beta in in_blocks(k, write):
        norms = keys.double().square().sum(-1)
        heads = max(norms.shape[1], beta.shape[1])
        product = norms.repeat_interleave(heads // norms.shape[1], 1) * beta.double()
        if product.numel() and float(product.max()) > 2 + SLACK:
            yield f"beta * |k|^2 reaches {float(product.max()):.4g}: above 2 the recurrence is not bounded"
            return
