"""The convolution before the rule: its reference, by hand and against another package, and what kernels refuse."""

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import forked_command
import pytest
import torch
from conftest import ROOT
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.workloads import load_workloads
from gdnspec.model.errors import SpecError
from helpers_unit import line, reference
from torch import Tensor

conv = reference("convolution")
F64 = torch.float64
Keywords = dict[str, Any]
LENGTHS = (1, 0, 2, 3, 9, 1)


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def inputs(W: int, lengths: tuple[int, ...] = LENGTHS, C: int = 6, dtype: torch.dtype = F64) -> Keywords:
    generator = torch.Generator().manual_seed(W)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64).to(dtype)

    N = len(lengths)
    return {
        "x": normal(sum(lengths), C), "weight": normal(C, W), "bias": normal(C),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0), "conv_states": normal(N + 2, C, W - 1),
        "slots": torch.arange(N, dtype=torch.int32).flip(0) + 1, "has_initial_state": torch.arange(N) % 2 == 0,
    }  # fmt: skip


# --- by hand ----------------------------------------------------------------------------------------------------


def test_two_tokens_worked_out_by_hand() -> None:
    # One channel, width 3, weights 1, 2, 4, bias 0.5; before: 3 (older), 5; tokens 7, -2.
    given = {
        "x": torch.tensor([[7.0], [-2.0]], dtype=F64), "weight": torch.tensor([[1.0, 2.0, 4.0]], dtype=F64),
        "bias": torch.tensor([0.5], dtype=F64), "cu_seqlens": torch.tensor([0, 2]),
        "conv_states": torch.tensor([[[9.0, 9.0]], [[3.0, 5.0]]], dtype=F64), "slots": torch.tensor([1]),
        "has_initial_state": torch.tensor([True]),
    }  # fmt: skip
    output, after = conv.conv1d_prefill(**given)
    # 3 + 2 * 5 + 4 * 7 + 0.5 = 41.5;  5 + 2 * 7 - 4 * 2 + 0.5 = 11.5
    torch.testing.assert_close(output, silu(torch.tensor([[41.5], [11.5]], dtype=F64)), rtol=1e-15, atol=0)
    assert after.tolist() == [[[9.0, 9.0]], [[7.0, -2.0]]]
    one = {name: given[name] for name in ("weight", "bias", "conv_states", "slots")}
    output, after = conv.conv1d_decode(given["x"][:1], **one)
    torch.testing.assert_close(output, silu(torch.tensor([[41.5]], dtype=F64)), rtol=1e-15, atol=0)
    assert after[1].tolist() == [[5.0, 7.0]], "the state moves up by one"


# --- what holds by definition -------------------------------------------------------------------------------------


@pytest.mark.parametrize("W", [2, 3, 4])
def test_token_by_token_is_the_whole_prefill(W: int) -> None:
    given = inputs(W)
    output, after = conv.conv1d_prefill(**given)
    pool = given["conv_states"].clone()
    fresh = given["slots"][~given["has_initial_state"]].long()
    lengths = torch.tensor(LENGTHS)
    pool[fresh[lengths[~given["has_initial_state"]] > 0]] = 0.0
    got = torch.zeros_like(output)
    for t in range(max(LENGTHS)):
        rows = (lengths > t).nonzero()[:, 0]
        at = given["cu_seqlens"][rows] + t
        one = conv.conv1d_decode(given["x"][at], given["weight"], given["bias"], pool, given["slots"][rows])
        got[at], pool = one
    torch.testing.assert_close(got, output, rtol=1e-14, atol=1e-15)
    assert torch.equal(pool, after)


@pytest.mark.parametrize("W", [2, 3, 4])
def test_a_state_is_the_last_inputs_of_all_calls_together(W: int) -> None:
    given = inputs(W)
    _, after = conv.conv1d_prefill(**given)
    for n, (start, stop) in enumerate(pairwise(given["cu_seqlens"].tolist())):
        slot = int(given["slots"][n])
        before = given["conv_states"][slot].T
        seen = before if given["has_initial_state"][n] or start == stop else torch.zeros_like(before)
        assert torch.equal(after[slot], torch.cat([seen, given["x"][start:stop]])[-(W - 1) :].T), LENGTHS[n]
    assert torch.equal(after[[0, -1]], given["conv_states"][[0, -1]]), "slots that nobody names"


def test_an_empty_sequence_keeps_its_state_whatever_its_flag() -> None:
    given = inputs(4, (0, 0))
    output, after = conv.conv1d_prefill(**given)
    assert output.numel() == 0
    assert torch.equal(after, given["conv_states"])


def test_a_skipped_sequence_is_zero_and_touches_nothing() -> None:
    given = inputs(4, (3, 4))
    given["slots"] = torch.tensor([-1, 0], dtype=torch.int32)
    output, after = conv.conv1d_prefill(**given)
    assert not output[:3].any()
    assert output[3:].all()
    assert torch.equal(after[1:], given["conv_states"][1:])


@pytest.mark.parametrize("W", [2, 4])
@pytest.mark.parametrize("bias", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_the_transformers_package_computes_the_same(W: int, bias: bool) -> None:
    package = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    given = inputs(W, (7,), dtype=torch.float32)
    given |= {"bias": given["bias"] if bias else None, "has_initial_state": torch.tensor([False])}
    output, after = conv.conv1d_prefill(**given)
    weights = {"weight": given["weight"], "bias": given["bias"], "activation": "silu"}
    theirs = package.causal_conv1d_fn(given["x"].T[None], **weights)
    torch.testing.assert_close(output, theirs[0].T, rtol=1e-6, atol=1e-6)
    state = after[given["slots"].long()].clone()
    one = {"weight": given["weight"], "bias": given["bias"], "conv_states": after, "slots": given["slots"]}
    token, after = conv.conv1d_decode(given["x"][:1], **one)
    theirs = package.causal_conv1d_update(given["x"][:1].T[None], state, **weights)
    torch.testing.assert_close(token, theirs[0].T, rtol=1e-6, atol=1e-6)
    assert torch.equal(after[given["slots"].long()], state)


# --- lines that are refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"integers": {"slots": [0, 0, 1], "has_initial_state": [1, 0, 1]}}, "no slot is named by two sequences"),
        ({"integers": {"slots": [0, 9, 1], "has_initial_state": [1, 0, 1]}}, "slots are -1 or slots of the pool"),
        ({"integers": {"slots": [0, 2, 1], "has_initial_state": [1, 2, 1]}}, "values of a boolean input"),
        ({"integers": {"slots": [0, 2, 1], "has_initial_state": [1, 0]}}, "2 values instead of 3"),
        ({"integers": {"slots": [0, 2, 1]}}, "no values for 'has_initial_state'"),
        ({"preset": "synthetic-gqa-4x2-d64"}, "gives axis 'key_head_dim' no value"),
    ],
)
def test_a_line_that_no_call_may_be_made_of_is_refused(tmp_path: Path, changes: Keywords, says: str) -> None:
    found, file = definition("gdn_conv1d_prefill"), tmp_path / "workloads.jsonl"
    right = line(found).model_dump(mode="json", exclude_unset=True)
    file.write_text(json.dumps(right) + "\n")
    assert len(load_workloads(file, found)) == 1
    file.write_text(json.dumps(right | changes) + "\n")
    with pytest.raises(SpecError, match=says):
        load_workloads(file, found)


# --- what kernels refuse -------------------------------------------------------------------------------------------

REFUSALS = """
import json, os, sys
from pathlib import Path
import torch
from gdnspec.build.loader import load_function

folder, build = Path(sys.argv[1]), Path(sys.argv[2])
entries = {name: load_function(folder, f"conv1d.py::{name}", build) for name in ("conv1d_prefill", "conv1d_decode")}
bf16, i32 = torch.bfloat16, torch.int32
N, C, W, SLOTS = 3, 24, 4, 6
LENGTHS = (2, 0, 5)

def prefill(**changes):
    T = sum(LENGTHS)
    return {"x": torch.full((T, C), 2, dtype=bf16), "weight": torch.ones(C, W, dtype=bf16),
            "bias": torch.ones(C, dtype=bf16),
            "cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0), "conv_states": torch.ones(SLOTS, C, W - 1, dtype=bf16),
            "slots": torch.tensor([4, 0, 2], dtype=i32), "has_initial_state": torch.tensor([True, False, True]),
            "output": torch.full((T, C), torch.nan, dtype=bf16)} | changes

def decode(**changes):
    given = prefill()
    del given["cu_seqlens"], given["has_initial_state"]
    return given | {"x": given["x"][:N], "output": given["output"][:N]} | changes

def wide(W):
    return {"weight": torch.ones(C, W, dtype=bf16), "conv_states": torch.ones(SLOTS, C, W - 1, dtype=bf16)}

pool = prefill()["conv_states"]
both = {
    "width 1": wide(1), "width 5": wide(5),
    "weight of other channels": {"weight": torch.ones(C + 8, W, dtype=bf16)},
    "bias of other channels": {"bias": torch.ones(C - 8, dtype=bf16)},
    "weight float32": {"weight": torch.ones(C, W)}, "x int32": {"x": torch.ones(7, C, dtype=i32)},
    "x not contiguous": {"x": torch.ones(C, 7, dtype=bf16).T},
    "x with three dimensions": {"x": torch.ones(1, 7, C, dtype=bf16)},
    "states of another width": {"conv_states": torch.ones(SLOTS, C, W, dtype=bf16)},
    "states channels last": {"conv_states": torch.ones(SLOTS, W - 1, C, dtype=bf16).mT},
    "states that overlap": {"conv_states": pool[:1].expand(SLOTS, -1, -1)},
    "states float32": {"conv_states": pool.float()},
    "slots int64": {"slots": torch.tensor([4, 0, 2])},
    "slots of one row less": {"slots": torch.tensor([4, 0], dtype=i32)},
    "output of one row less": {"output": torch.ones(2, C, dtype=bf16)},
    "output float32": {"output": torch.ones(7, C)},
    "debug slot past the end": {"slots": torch.tensor([4, SLOTS, 2], dtype=i32)},
    "debug slot -2": {"slots": torch.tensor([4, -2, 2], dtype=i32)},
    "debug slot twice": {"slots": torch.tensor([4, 2, 2], dtype=i32)},
}
cases = [(f"{name}: {what}", name, change) for name in entries for what, change in both.items()]
for what, change in {
    "flags int32": {"has_initial_state": torch.ones(N, dtype=i32)},
    "flags of one sequence less": {"has_initial_state": torch.ones(N - 1, dtype=torch.bool)},
    "bounds int32": {"cu_seqlens": torch.tensor([0, 2, 2, 7], dtype=i32)},
    "bounds of no sequence": {"cu_seqlens": torch.tensor([0])},
    "debug bounds that fall": {"cu_seqlens": torch.tensor([0, 5, 2, 7])},
    "debug bounds past the end": {"cu_seqlens": torch.tensor([0, 2, 2, 8])},
}.items():
    cases.append((f"conv1d_prefill: {what}", "conv1d_prefill", change))
made = {"conv1d_prefill": prefill, "conv1d_decode": decode}
said = {}
for name, entry, change in cases:
    if os.environ["GDNSPEC_DEBUG"] == "0" and "debug" in name:
        continue
    try:
        entries[entry](**made[entry](**change))
        said[name] = "nothing"
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"

# Slots that are none, where nobody looks: skipped, and nothing is touched but what is named.
for entry in entries:
    given = made[entry](slots=torch.tensor([4, SLOTS, -7], dtype=i32))
    if os.environ["GDNSPEC_DEBUG"] == "0":
        before = given["conv_states"].clone()
        entries[entry](**given)
        same = (given["conv_states"] == before).flatten(1).all(1).tolist()
        rows = 2 if entry == "conv1d_prefill" else 1
        said[f"{entry}: outside"] = str([bool(given["output"][rows:].eq(0).all()), *same])
print(json.dumps(said))
"""


def refusals(tmp_path: Path, debug: str) -> dict[str, str]:
    environment = os.environ | {"TRITON_INTERPRET": "1", "GDNSPEC_DEBUG": debug}
    (tmp_path / "program.py").write_text(REFUSALS)
    given = [str(ROOT / "solutions/triton_layer"), str(tmp_path)]
    done = forked_command.run(given, environment, script=tmp_path / "program.py")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert isinstance(said, dict)
    return said


def test_bad_input_is_refused_on_the_host(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    said = refusals(tmp_path, "1")
    assert len(said) == 44
    assert {name: x for name, x in said.items() if not x.startswith("ValueError: ")} == {}
    assert "kernel width 5" in said["conv1d_prefill: width 5"]
    assert "kernel width 1" in said["conv1d_decode: width 1"]
    assert "conv_states has shape (6, 24, 3), not [slots, 32, 3]" in said["conv1d_prefill: weight of other channels"]
    assert "named twice" in said["conv1d_decode: debug slot twice"]
    assert "rise from 0 to 7" in said["conv1d_prefill: debug bounds that fall"]


def test_a_slot_that_is_none_is_skipped_and_nothing_else_touched(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    said = refusals(tmp_path, "0")
    changed = [slot != 4 for slot in range(6)]
    assert said["conv1d_prefill: outside"] == said["conv1d_decode: outside"] == str([True, *changed])
