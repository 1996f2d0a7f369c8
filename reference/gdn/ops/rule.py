"""The gated delta rule over whole sequences: ragged ones side by side, or a padded batch."""

from typing import Any

import torch
from gdnspec.family import Asked, Backward, Grads, checks, register
from torch import Tensor

from ..chunkwise import sequence
from ..gated_delta_net import arithmetic_type, default_scale, expand_heads
from . import sizes

NAME = "gated_delta_rule"
GATES, LAYOUTS = ("log", "linear"), ("k_first", "k_last")
CHUNK = 64


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    gate: str = "log",
    state_layout: str = "k_first",
) -> tuple[Tensor, Tensor]:
    """In chunks of tokens. Sequences of one length are computed together, as further heads. Rows behind the last
    sequence, whatever they hold, have outputs and gradients of zero."""
    output, final = fake(q, k, v, g, beta, initial_state, cu_seqlens, scale, gate, state_layout)
    q, k, v, g, beta = checks.of_sequences(NAME, "cu_seqlens", cu_seqlens, q, k, v, g, beta)
    dtype, factor = arithmetic_type(q, k, v, g, beta, initial_state), default_scale(q.shape[-1], scale)
    N, H = final.shape[:2]
    Q, K, V = (expand_heads(x.to(dtype).flatten(0, -3), H) for x in (q, k, v))  # [T, H, d]
    ones = torch.ones(Q.shape[:2], dtype=dtype, device=q.device)
    alpha = ones if g is None else g.to(dtype).flatten(0, -2)
    alpha = alpha.exp() if gate == "log" and g is not None else alpha
    write = ones if beta is None else beta.to(dtype).flatten(0, -2)
    S = torch.zeros(final.shape, dtype=dtype, device=q.device) if initial_state is None else initial_state.to(dtype)
    S = S.mT if state_layout == "k_first" else S
    if cu_seqlens is None:
        starts = torch.arange(N, device=q.device) * q.shape[1]
        lengths = torch.full_like(starts, q.shape[1])
    else:
        starts, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff().long()

    pieces, tokens, states, rows = [V[:0]], [starts[:0]], [S[:0]], [starts[:0]]
    for length in lengths.unique().tolist():
        row = (lengths == length).nonzero()[:, 0]
        token = (starts[row, None] + torch.arange(length, device=q.device)).flatten()
        S_row = S[row]
        if length > 0:
            x = [x[token].unflatten(0, (-1, length)).transpose(1, 2).flatten(0, 1) for x in (Q, K, V, alpha, write)]
            O, S_row, _ = sequence(*x, S_row.flatten(0, 1), factor, CHUNK)  # [n H, L, V]
            pieces.append(O.unflatten(0, (-1, H)).transpose(1, 2).flatten(0, 1))
            S_row = S_row.unflatten(0, (-1, H))
        tokens.append(token)
        states.append(S_row)
        rows.append(row)
    O, S = torch.cat(pieces)[torch.cat(tokens).argsort()], torch.cat(states)[torch.cat(rows).argsort()]
    S = S.mT if state_layout == "k_first" else S
    O = checks.padded(O.to(output.dtype), output.shape[:-2].numel())
    return O.reshape(output.shape), S.to(final.dtype).contiguous()


def fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    gate: str = "log",
    state_layout: str = "k_first",
) -> tuple[Tensor, Tensor]:
    """Outputs without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    checks.choice(NAME, "gate", gate, GATES)
    checks.choice(NAME, "state_layout", state_layout, LAYOUTS)
    floats = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": initial_state}
    checks.tensors(NAME, floats, {"cu_seqlens": cu_seqlens})
    ragged = cu_seqlens is not None
    if q.dim() != (3 if ragged else 4):
        said = "[T, heads, K] with cu_seqlens, [B, T, heads, K] without"
        raise ValueError(f"{NAME}: q has the shape {list(q.shape)}: {said} is served")
    if cu_seqlens is not None and (cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1):
        raise ValueError(f"{NAME}: cu_seqlens has the shape {list(cu_seqlens.shape)}: [sequences + 1] is served")
    lead, told = (q.shape[:-2], "[T, heads, " if ragged else "[B, T, heads, ")
    checks.shape(NAME, "k", k, (*lead, None, q.shape[-1]), f"{told}K]")
    checks.shape(NAME, "v", v, (*lead, None, None), f"{told}V]")
    sizes.heads(NAME, q.shape[-2], k.shape[-2], v.shape[-2])
    K, V = q.shape[-1], v.shape[-1]
    sizes.head_size(NAME, K)
    H = max(q.shape[-2], v.shape[-2])
    checks.shape(NAME, "g", g, (*lead, H), f"{told[:-2]}]")
    checks.shape(NAME, "beta", beta, (*lead, H), f"{told[:-2]}]")
    N = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    size = (N, H, V, K) if state_layout == "k_last" else (N, H, K, V)
    state_told = f"[sequences, heads, {'V, K' if state_layout == 'k_last' else 'K, V'}]"
    checks.shape(NAME, "initial_state", initial_state, size, state_told)
    state_type = arithmetic_type(q, k, v, g, beta) if initial_state is None else initial_state.dtype
    return v.new_empty(*lead, H, V), v.new_empty(size, dtype=state_type)


def meant(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    gate: str = "log",
    state_layout: str = "k_first",
) -> tuple[str, tuple[Any, ...], tuple[int, ...] | None, bool]:
    """The definition that has the layout and gate of a call, or the nearest one, and its inputs; the sizes of a padded
    batch; and whether that definition has states transposed."""
    padded = None
    if cu_seqlens is None:
        padded = B, T = tuple(q.shape[:2])
        rows: list[Any] = [None if x is None else x.flatten(0, 1) for x in (q, k, v, g, beta)]
        q, k, v, g, beta = rows
        cu_seqlens = torch.arange(0, B * T + 1, T, device=q.device) if T else q.new_zeros(B + 1, dtype=torch.int64)
    g, beta, S = (None if x is None else x.float() for x in (g, beta, initial_state))  # no-ops for float32
    same = q.shape[-1] == v.shape[-1]
    k_first = state_layout == "k_first" and gate == "log" and same
    turned = state_layout == "k_first" and not k_first
    if not k_first:
        g = g.exp() if g is not None and gate == "log" else g
        S = S.mT.contiguous() if S is not None and turned else S
    like = "k_first" if k_first else "k_last" if same else "k_last_kv_dims"
    return like, (q, k, v, g, beta, cu_seqlens.long(), S, scale), padded, turned


def asked(*args: Any) -> Asked:
    like, inputs, padded, turned = meant(*args)
    given = None if len(args) < 6 or args[5] is None else args[5].dtype
    if padded is None and not turned and given in (None, torch.float32):
        return f"gdn_prefill_{like}", inputs, None

    def finish(outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        output, state = outputs
        state = state.mT.contiguous() if turned else state
        output = output if padded is None else output.unflatten(0, padded)
        return output, state if given is None else state.to(given)

    return f"gdn_prefill_{like}", inputs, finish


# --- gradients --------------------------------------------------------------------------------------------------


def serves(q: Tensor, k: Tensor, v: Tensor, g: Any, beta: Any, initial_state: Any, cu_seqlens: Any, *more: Any) -> bool:
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    short = all(x is None or x.dtype.itemsize <= 4 for x in (g, beta, initial_state))  # what float32 holds
    tokens = q.dtype == k.dtype == v.dtype == torch.bfloat16
    return tokens and short and q.shape[-1] == v.shape[-1] and sequences > 0


def backward_asked(grads: Grads, args: tuple[Any, ...]) -> Asked:
    (do, dht), (like, inputs, padded, turned) = grads, meant(*args)
    do = do if do is None or padded is None else do.flatten(0, 1)
    dht = None if dht is None else dht.mT.float().contiguous() if turned else dht.float()
    alpha = inputs[3] if like == "k_last" and args[8] == "log" else None

    def finish(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        dq, dk, dv, dg, dbeta, dh0 = outputs
        if alpha is not None:  # which may be anything behind the last sequence, where dg is zero
            dg = torch.where(dg == 0, dg, alpha * dg)
        return dq, dk, dv, dg, dbeta, dh0.mT if turned else dh0

    return f"gdn_prefill_backward_{like}", (*inputs, do, dht), finish


ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? g=None, Tensor? beta=None, Tensor? initial_state=None, "
    "Tensor? cu_seqlens=None, float? scale=None, str gate='log', str state_layout='k_first'"
)
OPERATOR = register(NAME, ARGUMENTS, "(Tensor, Tensor)", plain, fake, asked, Backward(serves, backward_asked))
