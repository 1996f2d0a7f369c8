"""The choice from traces: measured first, then expected from the nearest measured workload."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import solutions
from gdnspec.catalog.traces import load_traces
from gdnspec.choice import expected_time
from gdnspec.choice.candidates import Asked, forced, serving
from gdnspec.choice.choose import Choice, choose
from gdnspec.choice.sizes import sizes
from gdnspec.choice.tuned import keep_tuned, tuned_file, tuned_traces
from gdnspec.model import roles
from gdnspec.model.errors import SpecError

PREFILL, DECODE = "gdn_prefill_k_last", "gdn_decode_k_last"
H200, PRESET = "nvidia-h200", "qwen3-next-80b-a3b-tp1"


def asked(name: str, lengths: list[int] | None, preset: str | None = PRESET, device: str = H200) -> Asked:
    found = definition(name)
    contract = found.definition
    const = {} if preset is None else {a: n for a, n in found.family.preset(preset).axes.items()
                                       if a in contract.const_axes()}  # fmt: skip
    scope = contract.bind(const | (roles.sizes(contract, lengths, {}) if lengths else {}))
    ragged = contract.conventions.packing == "ragged" and lengths
    return Asked(found, scope, "cpu" if device == "cpu" else "cuda", device, True, tuple(lengths) if ragged else None)


def best(*call: Any, **more: Any) -> Choice:
    return choose(asked(*call, **more))[0][0]


def trace(solution: str, workload: str, name: str = PREFILL) -> Any:
    file = solutions()[0][solution].traces / f"{H200}.jsonl"
    return next(t for t in load_traces(file, print) if (t.definition, t.workload) == (name, workload))


def test_the_fastest_trace_of_this_shape_is_chosen() -> None:
    choices, _ = choose(asked(PREFILL, [8192]))
    measured = [choice for choice in choices if choice.measured]
    assert [c.time for c in measured] == sorted(c.time for c in measured)
    times = {s: trace(s, "16x32_1x8192").timing.median for s in ("hopper_prefill", "triton_chunkwise")}
    assert {c.name: c.time for c in measured if c.name in times} == times
    took = times["hopper_prefill"] * 1e6
    said = f"fastest of {len(measured)} measured on an NVIDIA H200 at 1x8192: {took:.0f} us"
    assert choices[0].name == "hopper_prefill"
    assert choices[0].reason.startswith(said)
    assert choices[-1].reason == "nothing was measured, so CUDA before Triton before PyTorch (gdnspec tune measures)"


def test_an_unmeasured_shape_has_the_time_that_the_nearest_efficiency_gives() -> None:
    choice = best(PREFILL, [2048] * 5)
    assert (choice.basis, choice.near[0].workload) == ("expected", "16x32_4x2048")
    near = trace(choice.name, "16x32_4x2048")
    call = asked(PREFILL, [2048] * 5)
    share = near.timing.bound / near.timing.median
    moved = call.found.definition.bytes_moved(call.scope)
    assert choice.time == pytest.approx(moved / near.ceilings.copy_bandwidth / share)
    assert "expected on an NVIDIA H200: about" in choice.reason
    assert f"(4x2048 of {PRESET}) reached" in choice.reason


def test_only_a_batch_of_the_same_lengths_is_measured() -> None:
    even = asked(PREFILL, [2048] * 4)
    assert choose(even)[0][0].basis == "measured"
    for other in (asked(PREFILL, [5000, 1000, 1000, 1192]), replace(even, sequence_lengths=None)):
        choice = choose(other)[0][0]
        assert (choice.basis, other.scope) == ("expected", even.scope)
        assert f"the nearest measured workload (4x2048 of {PRESET}) reached" in choice.reason
    assert choose(replace(asked(PREFILL, [8192]), sequence_lengths=None))[0][0].basis == "measured", (
        "one has all tokens"
    )


def test_heads_count_as_much_as_lengths() -> None:
    near = best(PREFILL, [8192], preset="qwen3.5-397b-a17b-tp2").near[0]
    assert near.sequence_lengths == [8192]


def test_without_lengths_all_measurements_count() -> None:
    choice = best(PREFILL, None, preset=None)
    assert choice.name == "hopper_prefill"
    assert choice.time is None
    assert choice.near, "measured workloads"
    assert f"the mean of {len(choice.near)})" in choice.reason


def test_a_device_without_traces_takes_the_order_of_another() -> None:
    choice = best(DECODE, [1] * 64, device="nvidia-h100")
    assert choice.basis == "elsewhere"
    assert choice.reason.startswith("not measured on this device; fastest of 5 on an NVIDIA H")


def test_on_a_cpu_only_pytorch_serves() -> None:
    choices, found = choose(asked(PREFILL, [8192], device="cpu"))
    assert {choice.solution.manifest.language for choice in choices} == {"python"}
    assert choices[0].name == "torch_chunkwise"
    assert found.refused["triton_chunkwise"] == "it is written in Triton, and runs only on cuda"


def test_without_a_measurement_a_cuda_kernel_comes_first() -> None:
    choice = best("gdn_conv_gates_prefill", [8192])
    assert (choice.name, choice.basis) == ("fused_conv_prefill", "unmeasured")
    assert choice.reason == "nothing was measured, so CUDA before Triton before PyTorch (gdnspec tune measures)"


def test_a_size_that_a_solution_does_not_support_leaves_it_out() -> None:
    found = definition(PREFILL)
    heads = dict.fromkeys(("num_q_heads", "num_k_heads", "num_v_heads"), 2)
    scope = found.definition.bind({**heads, "head_size": 96, "total_seq_len": 9, "num_seqs": 1})
    _, who = choose(Asked(found, scope, "cuda", H200))
    assert who.refused["hopper_prefill"] == "the solution supports head_size == 64 or head_size == 128"
    _, who = choose(Asked(found, asked(PREFILL, [9]).scope, "cuda", H200, contiguous=False))
    assert who.refused["hopper_prefill"] == "the solution supports only contiguous inputs"


def test_peers_serve_only_where_they_are_asked_for() -> None:
    call = asked(PREFILL, [8192])
    assert not any(choice.solution.is_peer for choice in choose(call)[0])
    assert any(choice.solution.is_peer for choice in choose(call, peers=True)[0])
    assert "fla" not in serving(call.found)


def test_what_cannot_count_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of an earlier definition, one that failed, one of a busy GPU."""
    solution = solutions()[0]["hopper_prefill"]
    found = definition(PREFILL)
    good = trace("hopper_prefill", "16x32_1x8192")
    bad = [{"definition_hash": "0"}, {"status": "INCORRECT_NUMERICAL"}, {"unclean": ["busy"]}]
    for update in ({}, *bad):
        monkeypatch.setattr(expected_time, "_readable", lambda file, update=update: [good.model_copy(update=update)])
        assert bool(expected_time._figures(found, solution)) == (not update)


def test_an_earlier_version_counts_on_a_device_where_the_present_one_was_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solution, found = solutions()[0]["hopper_prefill"], definition(PREFILL)
    now = trace("hopper_prefill", "16x32_1x8192").model_copy(update={"source_hash": solution.source_hash})
    before = now.model_copy(update={"source_hash": "0" * 64})
    elsewhere = before.model_copy(update={"device": "nvidia-h100"})
    traces = [now, before, elsewhere]
    monkeypatch.setattr(expected_time, "_readable", lambda file: traces)
    files = len(expected_time.trace_files(solution))
    counted = [(figure.trace.device, figure.earlier) for figure in expected_time._figures(found, solution)]
    assert counted == [(H200, False), ("nvidia-h100", True)] * files
    monkeypatch.setattr(sys.modules["gdnspec.choice.choose"], "figures", expected_time._figures)  # nothing kept
    traces = [before]
    assert (
        "by an earlier version" in next(c for c in choose(asked(PREFILL, [8192]))[0] if c.name == solution.name).reason
    )


def test_what_was_tuned_here_outranks_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDNSPEC_CACHE", str(tmp_path))
    now = solutions()[0]["triton_chunkwise"].source_hash
    slow = trace("triton_chunkwise", "16x32_1x8192").model_copy(update={"source_hash": now})
    assert slow.timing.median > best(PREFILL, [8192]).time
    assert keep_tuned(PREFILL, [slow]) == tuned_file(PREFILL)
    choice = best(PREFILL, [8192])
    assert (choice.name, choice.reason) == ("triton_chunkwise", "the only one tuned on this machine at 1x8192: 404 us")
    assert best(PREFILL, [2048]).name == "hopper_prefill"
    faster = slow.model_copy(update={"timing": slow.timing.model_copy(update={"median": 1e-5})})
    keep_tuned(PREFILL, [faster])
    assert [t.timing.median for t in tuned_traces(PREFILL)] == [1e-5]
    with tuned_file(PREFILL).open("a") as file:
        file.write("no trace\n")
    assert len(tuned_traces(PREFILL)) == 1
    stale = slow.model_copy(update={"source_hash": "0"})
    tuned_file(PREFILL).write_text(stale.model_dump_json() + "\n")
    assert best(PREFILL, [8192]).name == "hopper_prefill"


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GDNSPEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(SpecError, match=r"cannot be written: .*GDNSPEC_CACHE names another folder"):
        keep_tuned(PREFILL, [])


def test_a_forced_solution_must_serve() -> None:
    call = asked(DECODE, [1] * 8, device="cpu")
    assert forced(call, "torch_recurrent").name == "torch_recurrent"
    with pytest.raises(SpecError, match="does not serve gdn_decode_k_last: gdn_decode_k_last is served by cuda_decode"):
        forced(call, "hopper_prefill")


@pytest.mark.parametrize(
    ("name", "shapes", "wanted"),
    [
        (PREFILL, {"cu_seqlens": (4,)}, {"num_seqs": 3}),
        ("gdn_decode_packed_k_last", {"mixed_qkv": (2, 1024), "state": (2, 4, 128, 128)},
         {"batch_size": 2, "num_q_heads": 2, "num_k_heads": 2, "num_v_heads": 4, "num_o_heads": 4}),
    ],
)  # fmt: skip
def test_axes_follow_from_shapes(name: str, shapes: dict[str, Any], wanted: dict[str, int]) -> None:
    found = sizes(definition(name).definition, shapes, {"num_o_heads"} & wanted.keys())
    assert {axis: found.get(axis) for axis in wanted} == wanted


def test_axes_follow_from_an_input_that_a_constraint_calls_an_axis() -> None:
    """The channels of a convolution do not say how they divide into heads."""
    contract = definition("gdn_conv_gates_prefill").definition
    shapes = {"x": (5, 96), "a": (5, 2)}
    assert "head_size" not in sizes(contract, shapes)
    found = sizes(contract, shapes, numbers={"head_dim": 24})
    assert (found["head_size"], found["num_k_heads"]) == (24, 1)
    for head_dim, said in (
        (20, r"x has shape \[5, 96\], whose dimension 1 is not \(2 \* num_k_heads .*, with head_dim = 20$"),
        (48, "num_k_heads would be 0, with head_dim = 48$"),
        (2**40, "x has shape .*, with head_dim = 1099511627776$"),
        (0, "head_dim is 0: 1 or more is served$"),
        (-24, "head_dim is -24: 1 or more is served$"),
    ):
        with pytest.raises(SpecError, match=said):
            sizes(contract, shapes, numbers={"head_dim": head_dim})


def test_shapes_that_contradict_each_other_are_told() -> None:
    contract = definition(PREFILL).definition
    with pytest.raises(SpecError, match=r"cu_seqlens has shape \[0\], whose dimension 0 is not num_seqs \+ 1"):
        sizes(contract, {"cu_seqlens": (0,)})
    with pytest.raises(
        SpecError, match=r"k has shape \[6, 2, 64\], whose dimension 0 is not total_seq_len as in q \[5"
    ):
        sizes(contract, {"q": (5, 2, 64), "k": (6, 2, 64)})
    heads = {"q": (5, 1, 64), "k": (5, 1, 64), "v": (5, 2, 64)}
    said = r"do has shape \[5, 1, 64\], whose dimension 1 is not 2, max\(num_q_heads, num_v_heads\)$"
    with pytest.raises(SpecError, match=said):
        sizes(definition("gdn_prefill_backward_k_last").definition, heads | {"do": (5, 1, 64)})
