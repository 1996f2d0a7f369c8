"""Kimi Delta Attention over whole sequences with finished gates: ragged ones side by side, or a padded batch."""

from typing import Any

import torch
from gdnspec.family import Asked, Backward, Grads, checks, register
from torch import Tensor

from ..chunkwise import chunk
from ..kimi_delta_attention import arithmetic_type, default_scale, expand_heads
from . import sizes

NAME = "kimi_delta_attention"
CHUNK = 16  # tokens: the decays between any two of them are kept, for each channel


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    state_layout: str = "k_first",
) -> tuple[Tensor, Tensor]:
    """In chunks of tokens. Sequences of one length are computed together, as further heads. Rows behind the last
    sequence, whatever they hold, have outputs and gradients of zero."""
    output, final = fake(q, k, v, g, beta, initial_state, cu_seqlens, scale, state_layout)
    q, k, v, g, beta = checks.of_sequences(NAME, "cu_seqlens", cu_seqlens, q, k, v, g, beta)
    O, S = computed(q, k, v, g, beta, initial_state, cu_seqlens, scale, state_layout)
    O = checks.padded(O.to(output.dtype), output.shape[:-2].numel())
    return O.reshape(output.shape), S.to(final.dtype).contiguous()


def computed(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, scale: float | None, state_layout: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output [tokens, H, V] and the states, in the type of the arithmetic. Every row is one of a sequence."""
    dtype, factor = arithmetic_type(q, k, v, g, beta, initial_state), default_scale(q.shape[-1], scale)
    H, V_size, K_size = *v.shape[-2:], q.shape[-1]
    Q, K, V = (expand_heads(x.to(dtype).flatten(0, -3), H) for x in (q, k, v))  # [T, H, d]
    alpha = torch.ones_like(K) if g is None else g.to(dtype).flatten(0, -3).exp()
    write = torch.ones_like(K[..., 0]) if beta is None else beta.to(dtype).flatten(0, -2)
    if cu_seqlens is None:
        starts = torch.arange(q.shape[0], device=q.device) * q.shape[1]
        lengths = torch.full_like(starts, q.shape[1])
    else:
        starts, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff().long()
    if initial_state is None:
        S = torch.zeros(len(starts), H, V_size, K_size, dtype=dtype, device=q.device)
    else:
        S = initial_state.to(dtype)
        S = S.mT if state_layout == "k_first" else S

    of_tokens = Q, K, V, alpha, write
    pieces, tokens, states, rows = [V[:0]], [starts[:0]], [S[:0]], [starts[:0]]
    for length in lengths.unique().tolist():
        row = (lengths == length).nonzero()[:, 0]
        token = (starts[row, None] + torch.arange(length, device=q.device)).flatten()
        S_row = S[row]
        if length > 0:
            x: list[Any] = [x[token].unflatten(0, (-1, length)).transpose(1, 2).flatten(0, 1) for x in of_tokens]
            O, S_row = _chunks(S_row.flatten(0, 1), factor, *x)  # [n H, L, V]
            pieces.append(O.unflatten(0, (-1, H)).transpose(1, 2).flatten(0, 1))
            S_row = S_row.unflatten(0, (-1, H))
        tokens.append(token)
        states.append(S_row)
        rows.append(row)
    O, S = torch.cat(pieces)[torch.cat(tokens).argsort()], torch.cat(states)[torch.cat(rows).argsort()]
    return O, S.mT if state_layout == "k_first" else S


def _chunks(
    S: Tensor, scale: float, Q: Tensor, K: Tensor, V: Tensor, alpha: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """S [heads, V, K]; Q, K, alpha [heads, L, K]; V [heads, L, V]; beta [heads, L]. Returns O [heads, L, V], and S."""
    outputs = []
    for parts in zip(*(x.split(CHUNK, dim=1) for x in (Q, K, V, alpha, beta)), strict=True):
        O, S = chunk(*parts, S, scale)
        outputs.append(O)
    return torch.cat(outputs, 1), S


def fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    state_layout: str = "k_first",
) -> tuple[Tensor, Tensor]:
    """Outputs without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    floats = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": initial_state}
    checks.tensors(NAME, floats, {"cu_seqlens": cu_seqlens})
    of_output, of_states = sizes.sequences(NAME, q, k, v, initial_state, cu_seqlens, state_layout)
    sizes.log_gates(NAME, q, v, g, beta)
    state_type = arithmetic_type(q, k, v, g, beta) if initial_state is None else initial_state.dtype
    return v.new_empty(of_output), v.new_empty(of_states, dtype=state_type)


def flat(tokens: tuple[Any, ...], cu_seqlens: Tensor | None) -> tuple[tuple[Any, ...], Tensor, Any]:
    """A padded batch as ragged sequences: the tensors of tokens, where sequences start, and the sizes of the batch."""
    if cu_seqlens is not None:
        return tokens, cu_seqlens.long(), None
    (B, T), like = tokens[0].shape[:2], tokens[0]
    starts = torch.arange(0, B * T + 1, T, device=like.device) if T else like.new_zeros(B + 1, dtype=torch.int64)
    return tuple(None if x is None else x.flatten(0, 1) for x in tokens), starts, (B, T)


def meant(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    state_layout: str = "k_first",
) -> tuple[tuple[Any, ...], Any]:
    """The inputs of the definition with the layout of a call, and the sizes of a padded batch."""
    sizes.one_size(NAME, q, v)
    (q, k, v, g, beta), starts, padded = flat((q, k, v, g, beta), cu_seqlens)
    g, beta, S = (None if x is None else x.float() for x in (g, beta, initial_state))  # no-ops for float32
    return (q, k, v, g, beta, starts, S, scale), padded


def asked(*args: Any) -> Asked:
    inputs, padded = meant(*args)
    definition = f"kda_prefill_{args[8] if len(args) > 8 else 'k_first'}"
    given = None if len(args) < 6 or args[5] is None else args[5].dtype
    if padded is None and given in (None, torch.float32):
        return definition, inputs, None

    def finish(outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        output, state = outputs
        output = output if padded is None else output.unflatten(0, padded)
        return output, state if given is None else state.to(given)

    return definition, inputs, finish


# --- gradients --------------------------------------------------------------------------------------------------


def serves(q: Tensor, k: Tensor, v: Tensor, g: Any, beta: Any, initial_state: Any, cu_seqlens: Any, *more: Any) -> bool:
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    short = all(x is None or x.dtype.itemsize <= 4 for x in (g, beta, initial_state))  # what float32 holds
    tokens = q.dtype == k.dtype == v.dtype == torch.bfloat16
    return tokens and short and q.shape[-1] == v.shape[-1] and sequences > 0


def backward_asked(grads: Grads, args: tuple[Any, ...]) -> Asked:
    (do, dht), (inputs, padded), turned = grads, meant(*args), args[8] == "k_first"
    do = do if do is None or padded is None else do.flatten(0, 1)
    q, k, v, g, beta, starts, S, scale = inputs
    S, dht = (None if x is None else x.mT.float().contiguous() if turned else x.float() for x in (S, dht))

    def finish(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        *tokens, dh0 = outputs
        return (*tokens, dh0.mT if turned else dh0)

    return "kda_prefill_backward_k_last", (q, k, v, g, beta, starts, S, scale, do, dht), finish


ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? g=None, Tensor? beta=None, Tensor? initial_state=None, "
    "Tensor? cu_seqlens=None, float? scale=None, str state_layout='k_first'"
)
OPERATOR = register(NAME, ARGUMENTS, "(Tensor, Tensor)", plain, fake, asked, Backward(serves, backward_asked))
