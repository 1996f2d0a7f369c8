"""Calls that are drawn on the device of a check, in the regime `typical` alone.

What belongs to tokens, sequences or slots comes from torch's generator, so that it depends on the device; weights and
what a head has once come from the line's seed as everywhere.
"""

import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch
from gdnspec.family import Definition, Scope, Workload, in_blocks, to_torch
from gdnspec.family import Tensor as TensorModel
from torch import Tensor

from .bounds import SLACK, normalises
from .chunk_stages import chunk_wy
from .chunkwise import prefill_checkpoints
from .draw import Painter
from .regimes import mamba_parameters

BLOCK = 1 << 25  # elements drawn at a time
TINY = 2.0**-126
SLOW = 1 / 160  # of the decay of models, for backward passes
# The first dimension of what a call has a row of, for each token or sequence, or of a pool.
PER_ROW = (["batch_size"], ["total_seq_len"], ["num_seqs"], ["num_chunks"], ["num_slots"], ["num_checkpoints"])


class Brush:
    """Draws one workload. Each input has a generator of its own, so omitting one changes no other."""

    def __init__(self, definition: Definition, workload: Workload, scope: Scope, device: str) -> None:
        self.definition, self.workload, self.scope, self.device = definition, workload, scope, device
        self.painter = Painter(definition, workload, scope)
        self._solved: dict[str, Tensor] = {}

    def paint(self, tensor: TensorModel) -> Tensor:
        """On the device."""
        per_row = tensor.shape is not None and tensor.shape[:1] in PER_ROW
        if tensor.is_index or not per_row:
            return to_torch(self.painter.paint(tensor)).to(self.device)
        shape, dtype = self.definition.shape(tensor, self.scope), getattr(torch, tensor.dtype)
        if tensor.parts:
            shapes = self.definition.part_shapes(tensor, self.scope)
            drawn = [self.drawn(p.name, p.draw, (shape[0], *shapes[p.name]), dtype).flatten(1) for p in tensor.parts]
            return torch.cat(drawn, dim=1)
        if tensor.draw in ("solved_keys", "solved_values"):
            return self.solved(tensor.draw)
        if tensor.draw == "states_between":
            return self.between()
        return self.drawn(tensor.name, tensor.draw, shape, dtype)

    def drawn(self, name: str, draw: str | None, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Normal, but for keys and queries, which have unit norm unless the operator sees to that, and for gates."""
        make: Callable[[Tensor], Tensor] = lambda x: x  # noqa: E731
        if draw in ("queries", "keys") and not self.painter.normalised_inside:
            make = self._unit(dtype)
        elif draw == "decay_gates":
            make = self._gate(log=self.definition.conventions.decay_gate == "log")
        elif draw == "write_gates":
            make = torch.sigmoid
        elif draw == "state_codes":
            make = self._codes(dtype)
        elif draw == "state_scales":
            make = lambda x: x.abs() / 128  # noqa: E731
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

    def _codes(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """A third of the largest code as the standard deviation; beyond the largest, the largest."""
        largest = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}[dtype]

        def codes(x: Tensor) -> Tensor:
            x = (x * (largest / 3)).clamp(-largest, largest)
            return x.round() if dtype == torch.int8 else x

        return codes

    def _gate(self, log: bool) -> Callable[[Tensor], Tensor]:
        """alpha, or its logarithm, as models are initialised with: -A softplus(a + dt_bias), [.., heads].

        A is smaller for a backward pass: where a head forgets fast, honest kernels differ by several percent in its dg.
        Among the many heads of large workloads there would be one that no budget allows."""
        A, dt_bias = (
            torch.from_numpy(x.astype(np.float32)).to(self.device)
            for x in mamba_parameters(self.painter.stream("gate"), self.painter.layout.heads)
        )
        if self.definition.stage == "backward":
            A = A * SLOW

        def gate(a: Tensor) -> Tensor:
            x = a + dt_bias
            log_alpha = -A * (x.clamp(min=0) + torch.log1p(torch.exp(-x.abs())))
            return log_alpha if log else torch.exp(log_alpha)

        return gate

    def solved(self, draw: str) -> Tensor:
        """Keys or values that the stage before would have made of the same keys, values and gates."""
        if not self._solved:
            tokens, H = int(self.scope["total_seq_len"]), int(self.scope["num_v_heads"])
            K, V = int(self.scope["key_head_dim"]), int(self.scope["value_head_dim"])
            k = self.drawn("k", "keys", (tokens, int(self.scope["num_k_heads"]), K), torch.bfloat16)
            v = self.drawn("v", "values", (tokens, H, V), torch.bfloat16)
            g = self.drawn("g", "decay_gates", (tokens, H), torch.float32)
            beta = self.drawn("beta", "write_gates", (tokens, H), torch.float32)
            ends = torch.tensor(self.scope["cu_seqlens"], device=self.device)
            u, w = chunk_wy(k, v, g, beta, ends)
            self._solved = {"solved_values": u, "solved_keys": w}
        return self._solved[draw]

    def between(self) -> Tensor:
        """The states that a forward pass on the other inputs goes through, one sequence after the other: in float64
        they would take several times the memory of all of them."""
        given = {x.name: None if x.name in self.workload.omit else self.paint(x) for x in self.definition.inputs
                 if x.name in ("q", "k", "v", "g", "beta", "initial_state")}  # fmt: skip
        interval, bounds = int(self.scope["checkpoint_interval"]), list(self.scope["cu_seqlens"])
        shape = self.definition.shape(self.definition.input("checkpoints"), self.scope)
        kept = [torch.empty(0, *shape[1:], device=self.device)]
        for n, (start, stop) in enumerate(pairwise(bounds)):
            if stop - start < interval:
                continue
            rows = {name: None if x is None else x[start:stop].double() for name, x in given.items()}
            S = given["initial_state"]
            rows["initial_state"] = None if S is None else S[n : n + 1].double()
            ends, starts = (torch.tensor([0, x]) for x in (stop - start, (stop - start) // interval))
            found = prefill_checkpoints(
                **rows, cu_seqlens=ends, scale=None, checkpoint_cu_starts=starts, checkpoint_interval=interval
            )
            kept.append(found[2].float())
        return torch.cat(kept)


def problems(definition: Definition, tensors: dict[str, Tensor], workload: Workload) -> Iterator[str]:
    """As `bounds.problems`, a block at a time."""
    if not normalises(definition, workload) and "k" in tensors:
        yield from _unbounded(tensors)


def _unbounded(tensors: dict[str, Tensor]) -> Iterator[str]:
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
