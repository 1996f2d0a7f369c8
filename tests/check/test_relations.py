"""What a judge sees only when it calls more than once: other content, other batches, a state carried over."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Run

KERNEL = (ROOT / "solutions" / "torch_recurrent" / "kernel.py").read_text()
PREFILL = "gdn_prefill_k_last"
HEAD = "def run(q, k, v, g, beta, cu_seqlens, initial_state, scale):\n"
RIGHT = "prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale)"

MakePrefill = Callable[..., Path]


@pytest.fixture
def make_prefill(tmp_path: Path) -> MakePrefill:
    """Writes a solution of gdn_prefill_k_last: a right kernel, and a body that may spoil it."""

    def make(body: str, deterministic: bool = True, supports: list[str] | None = None) -> Path:
        folder = tmp_path / "solutions" / "under_test"
        folder.mkdir(parents=True)
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        (folder / "kernel.py").write_text(f"{KERNEL}\n\n{HEAD}{lines}")
        entry = {"entry": "kernel.py::run", "call": "return", "prepare": None, "supports": supports or []}
        manifest = json.loads((ROOT / "solutions" / "torch_recurrent" / "solution.json").read_text())
        manifest |= {"name": "under_test", "deterministic": deterministic, "entries": {PREFILL: entry}}
        (folder / "solution.json").write_text(json.dumps(manifest))
        return folder.parent

    return make


def check(gdnspec: Run, solutions: Path, *options: str, workload: str = "ragged") -> tuple[int, dict[str, Any], str]:
    arguments = [PREFILL, "--solutions-dir", solutions, "--solution", "under_test", "--workload", workload]
    done = gdnspec("check", *arguments, "--device", "cpu", "--json", "-", *options)
    (result,) = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, result, done.stderr


ALL = {
    "flip_value_channels", "scale_value_channels", "permute_value_channels", "flip_key_channels",
    "permute_value_heads_in_group", "permute_sequences", "one_sequence_at_a_time", "split_and_carry",
}  # fmt: skip


def test_a_right_kernel_keeps_every_symmetry_and_relation(gdnspec: Run, make_prefill: MakePrefill) -> None:
    code, result, said = check(gdnspec, make_prefill(f"return {RIGHT}"), "--symmetries")
    assert code == 0, said
    none = {"permute_query_heads_in_group": None}  # groups of one query head
    assert result["symmetries"] == none | dict.fromkeys(ALL, "PASSED")


WRONG_IN_OTHER_CALLS = {
    # Right on the workload as it stands, whatever its content; wrong on other batches.
    "one_sequence_at_a_time": f"o, s = {RIGHT}\nreturn (o * 1.1).to(o.dtype) if len(cu_seqlens) == 2 else o, s",
    "split_and_carry": f"o, s = {RIGHT}\nreturn o, s if len(q) in (1, 63, 65, 129) else s * 1.1",
}


@pytest.mark.parametrize(
    "relation",
    [pytest.param(x, marks=() if x == "split_and_carry" else pytest.mark.thorough) for x in WRONG_IN_OTHER_CALLS],
)
def test_a_kernel_that_is_wrong_on_other_batches_alone(gdnspec: Run, make_prefill: MakePrefill, relation: str) -> None:
    solutions = make_prefill(WRONG_IN_OTHER_CALLS[relation])
    code, result, _ = check(gdnspec, solutions)
    assert (code, result["status"]) == (0, "PASSED"), "it is right on the workload itself"
    code, result, _ = check(gdnspec, solutions, "--symmetries", "--seed", "3")
    assert (code, result["status"]) == (1, "INCORRECT_NUMERICAL")
    assert result["symmetries"][relation] == "INCORRECT_NUMERICAL"
    assert "--symmetries" in result["repeat"]
    assert "--seed 3" in result["repeat"]


def test_what_a_solution_does_not_support_is_not_held_against_it(gdnspec: Run, make_prefill: MakePrefill) -> None:
    solutions = make_prefill(f"return {RIGHT}", supports=["num_seqs == 3"])
    code, result, said = check(gdnspec, solutions, "--symmetries")
    assert code == 0, said
    assert result["symmetries"]["one_sequence_at_a_time"] is None
    assert result["symmetries"]["permute_sequences"] == "PASSED"


CAUSE = (
    'the manifest promises the same bits in every call ("deterministic": true): write "deterministic": false in '
    "solution.json, or fix the kernel"
)

# Channel 0 is multiplied by a little more than one: within the budget, and not what a permutation leaves alone.
LEANS = f"o, s = {RIGHT}\ns[..., 0, :] *= 1.0001\nreturn o, s"


def test_who_promises_the_same_bits_is_held_to_the_symmetries_exactly(gdnspec: Run, make_prefill: MakePrefill) -> None:
    code, result, _ = check(gdnspec, make_prefill(LEANS, deterministic=True))
    assert (code, result["status"]) == (1, "NOT_REPRODUCIBLE")
    assert "the symmetries are exact, and a repeat of the first call gives the same bits" in result["message"]
    assert "the bits depend on a value's place" in result["message"]
    assert result["message"].endswith(CAUSE)


def test_who_promises_nothing_is_held_to_the_budget(gdnspec: Run, make_prefill: MakePrefill) -> None:
    code, _, said = check(gdnspec, make_prefill(LEANS, deterministic=False), "--symmetries")
    assert code == 0, said


def test_two_calls_on_the_same_inputs_that_differ_are_told_apart(gdnspec: Run, make_prefill: MakePrefill) -> None:
    counts = "calls = globals().setdefault('calls', [])\ncalls.append(1)"  # random numbers are at times the same
    body = f"{counts}\no, s = {RIGHT}\nreturn o, s * (1 + 1e-6 * len(calls))"
    code, result, _ = check(gdnspec, make_prefill(body, deterministic=True))
    assert (code, result["status"]) == (1, "NOT_REPRODUCIBLE")
    assert "between two calls on the same inputs" in result["message"]
    assert result["message"].endswith(CAUSE)


def test_the_seed_repeats_the_second_call(gdnspec: Run, make_prefill: MakePrefill) -> None:
    says = "calls = globals().setdefault('calls', [])\ncalls.append(1)\nassert len(calls) == 1, v[5].tolist()"
    solutions = make_prefill(f"{says}\nreturn {RIGHT}")
    first, again, other = (check(gdnspec, solutions, "--seed", seed)[1]["message"] for seed in ("7", "7", "8"))
    assert first == again != other


# --- errors by regime and position ------------------------------------------------------------------------------


def test_an_error_that_grows_along_the_sequence_shows_as_a_trend(gdnspec: Run, make_prefill: MakePrefill) -> None:
    grows = "o * (1 + torch.arange(len(o))[:, None, None] / 1000)"
    solutions = make_prefill(f"o, s = {RIGHT}\nreturn ({grows}).to(o.dtype), s")
    code, result, _ = check(gdnspec, solutions, "--errors", workload="length_1000")
    assert code == 1
    output, state = result["outputs"]
    assert [(bucket["first"], bucket["last"]) for bucket in output["profile"]] == [
        (0, 0), (1, 3), (4, 15), (16, 63), (64, 255), (256, 999),
    ]  # fmt: skip
    errors = [bucket["worst_vector"] for bucket in output["profile"]]
    assert errors[0] < 0.01
    assert errors[3:] == pytest.approx([0.063, 0.255, 0.999], rel=0.1)
    assert errors == sorted(errors)
    assert state["profile"] == []  # a state has no positions


def test_the_report_has_a_row_a_regime_and_a_column_a_position(gdnspec: Run) -> None:
    done = gdnspec("check", PREFILL, "--solution", "torch_chunkwise", "--device", "cpu", "--errors")
    assert done.returncode == 0, done.stderr
    title = "torch_chunkwise on gdn_prefill_k_last: largest error of a vector, by regime and position in the sequence"
    assert title in done.stdout
    lines = done.stdout.split(title)[1].splitlines()
    assert lines[1].split()[:5] == ["regime", "0", "1-3", "4-15", "16-63"]
    assert lines[1].split()[5] in ("64..", "64-255")  # as far as the longest of the fresh workloads goes
    rows = {line.split()[0] for line in lines[2:] if line.strip()}
    assert {"typical", "hard_reset", "repeated_keys", "slow_decay", "recorded"} <= rows


def test_the_report_names_the_worst_of_many_outputs(gdnspec: Run, tmp_path: Path) -> None:
    kernel = ROOT / "solutions" / "torch_backward" / "around.py"
    (tmp_path / "checks.py").write_bytes((kernel.parent / "checks.py").read_bytes())
    (tmp_path / "kernel.py").write_bytes((kernel.parent / "kernel.py").read_bytes())
    (tmp_path / "wrong.py").write_text(
        f"{kernel.read_text()}\n\ndef mine(x, z, weight, eps, do):\n"
        "    dx, dz, dweight = gated_norm(x, z, weight, eps, do)\n"
        "    return dx, (1.5 * dz).bfloat16(), dweight\n"
    )
    options = ("--workload", "rows", "--device", "cpu", "--seed", "1", "--errors")
    done = gdnspec("check", "gdn_gated_rms_norm_backward", tmp_path / "wrong.py::mine", *options)
    assert done.returncode == 1, done.stderr
    header, row = [line for line in done.stdout.splitlines() if line.startswith(("regime", "typical"))]
    assert header.split()[-1] == "where"
    assert row.split()[-2:] == ["of", "dz"]


def test_gradients_are_not_split_and_sums_over_all_sequences_not_taken_apart(gdnspec: Run) -> None:
    """The state that a gradient needs at a cut is in no output; what a parameter gets belongs to no sequence."""
    options = ("--solution", "torch_backward", "--device", "cpu", "--workload", "ragged", "--symmetries", "--json", "-")
    done = gdnspec("check", "gdn_prefill_backward_k_last", "gdn_prefill_backward_raw_gates", *options)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line)["symmetries"] for line in done.stdout.splitlines())
    assert first["split_and_carry"] is None
    assert (second["split_and_carry"], second["one_sequence_at_a_time"]) == (None, None)
    assert (first["one_sequence_at_a_time"], second["permute_sequences"]) == ("PASSED", "PASSED")
