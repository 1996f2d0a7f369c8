"""With equal channels Kimi Delta Attention is gated delta net: the float64 references are equal bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gdnspec.build import reference as code
from gdnspec.catalog.families import family
from torch import Tensor

KDA, GDN = family("kda"), family("gdn")
H, D, F64 = 4, 16, torch.float64  # value heads; two share a key head
Keywords = dict[str, Any]
CHUNKS = ("cu_seqlens", "chunk_cu_starts")


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def few(seed: int, *shape: int) -> Tensor:
    """Of few bits, so that no sum of products rounds."""
    return (normal(seed, *shape) * 8).round() / 8


def channels(x: Tensor) -> Tensor:
    """What a head has, for each of its key channels."""
    return x[..., None].expand(*x.shape, D).contiguous()


def packed_rows() -> tuple[Keywords, Keywords]:
    raw = {"a": 3 * normal(1, 5, H), "dt_bias": normal(2, H)}
    call = {
        "mixed_qkv": normal(3, 5, (2 + 2 + H) * D), "state": normal(4, 5, H, D, D), "A_log": normal(5, H),
        "b": normal(6, 5, H), "scale": None, "use_qk_l2norm": True,
    }  # fmt: skip
    own = {name: channels(x) for name, x in raw.items()} | {"lower_bound": None}
    return call | own, call | raw


def layer() -> tuple[Keywords, Keywords]:
    """Projections of low rank that hand hidden channels on as they are, and an output gate of one at each token: there
    a sigmoid is a SiLU. Lengths are multiples of 8: torch takes the end of a tensor by another exponential."""
    hidden, C = 12, (2 + 2 + H) * D
    x, rows = normal(1, 40, hidden), torch.eye(hidden, dtype=F64)
    x[:, 0] = 1.0
    ones = torch.zeros(H * D, hidden, dtype=F64)
    ones[:, 0] = 1.0
    ranks = torch.zeros(D, hidden, dtype=F64)
    ranks[:H] = rows[1 : 1 + H]  # rank h is the hidden channel that head h forgets by
    gate = torch.zeros(D, hidden, dtype=F64)
    gate[0, 0] = 1.0
    own = {
        "f_a_weight": ranks, "f_b_weight": torch.eye(D, dtype=F64)[:H].repeat_interleave(D, dim=0),
        "g_a_weight": gate, "g_b_weight": torch.eye(D, dtype=F64)[:1].expand(H * D, D),
        "dt_bias": channels(normal(2, H)), "lower_bound": None, "eps": 1e-6,
    }  # fmt: skip
    other = {"a_weight": rows[1 : 1 + H], "z_weight": ones, "dt_bias": normal(2, H)}
    call = {
        "x": x, "qkv_weight": normal(3, C, hidden), "b_weight": normal(4, H, hidden), "conv_weight": normal(5, C, 4),
        "A_log": normal(6, H), "norm_weight": normal(7, D), "out_weight": normal(8, hidden, H * D),
        "cu_seqlens": torch.tensor([0, 32, 32, 40]), "conv_states": normal(9, 4, C, 3),
        "conv_slots": torch.tensor([1, 0, 3]), "recurrent_states": normal(10, 4, H, D, D),
        "state_slots": torch.tensor([2, 1, 0]), "has_initial_state": torch.tensor([True, True, False]),
    }  # fmt: skip
    return call | own, call | other


def tokens_of_layer() -> tuple[Keywords, Keywords]:
    of_sequences = {"cu_seqlens", "has_initial_state"}
    own, other = ({name: x for name, x in call.items() if name not in of_sequences} for call in layer())
    return own | {"x": own["x"][:3]}, other | {"x": other["x"][:3]}


def chunked(*names: str) -> Callable[[], tuple[Keywords, Keywords]]:
    """Two whole chunks and one. Here a sum over key channels has decays in it, there the decay multiplies the sum. They
    are equal bit for bit where neither rounds: queries and keys of few bits, gates that halve, keep or reset. What an
    output is a sum of has few bits as well: each processor adds matrices of another shape in another order."""

    def calls() -> tuple[Keywords, Keywords]:
        T, keys = 3 * 64, torch.randint(-2, 3, (2, 192, 2, D), generator=torch.Generator().manual_seed(7)) / 8
        alpha = torch.tensor([0.0, 0.5, 1.0], dtype=F64)[torch.arange(T * H).reshape(T, H) % 7 % 3]
        g = alpha.log()
        assert torch.equal(g.exp(), alpha)
        call = {
            "q": keys[0].to(F64), "k": keys[1].to(F64), "v": normal(1, T, H, D), "u": normal(2, T, H, D),
            "w": 0.1 * normal(3, T, H, D), "u_new": few(4, T, H, D), "beta": torch.sigmoid(normal(5, T, H)),
            "states": few(6, 3, H, D, D), "initial_state": normal(7, 2, H, D, D), "scale": None,
            "cu_seqlens": torch.tensor([0, 128, 192]), "chunk_cu_starts": torch.tensor([0, 2, 3]),
        }  # fmt: skip
        other = {name: call[name] for name in names} | {"g": g}
        return other | {"g": channels(g)}, other

    return calls


CASES: dict[str, tuple[str, str, Callable[[], tuple[Keywords, Keywords]]]] = {
    "decode_packed_k_last": ("serving", "gated_delta_net", packed_rows),
    "layer_prefill": ("layer", "layer", layer),
    "layer_decode": ("layer", "layer", tokens_of_layer),
    "chunk_wy": ("chunk_stages", "chunk_stages", chunked("k", "v", "beta", "cu_seqlens")),
    "chunk_state": ("chunk_stages", "chunk_stages", chunked("k", "w", "u", *CHUNKS, "initial_state")),
    "chunk_output": ("chunk_stages", "chunk_stages", chunked("q", "k", "u_new", "states", *CHUNKS, "scale")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_with_equal_channels_it_is_gated_delta_net_bit_for_bit(name: str) -> None:
    own_file, other_file, calls = CASES[name]
    own, other = calls()
    found = getattr(code.module(KDA, own_file), name)(**own)
    wanted = getattr(code.module(GDN, other_file), name)(**other)
    pairs = list(zip(found, wanted, strict=True)) if isinstance(found, tuple) else [(found, wanted)]
    assert all(torch.equal(x, y) for x, y in pairs)
    assert all(x.abs().sum() > 0 for x, _ in pairs)
