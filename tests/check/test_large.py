"""Calls that are drawn on the device and judged on a sample: the mechanism at small sizes, the real rows on a GPU."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run
from gdnspec.build import machine
from gdnspec.build.reference import judged
from gdnspec.catalog.definitions import Found, definition, definitions, preset_of
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import load_workloads, workloads
from gdnspec.check.call import Content
from gdnspec.check.drawn import draw, problems
from gdnspec.check.excerpt import Sample, chosen
from gdnspec.check.plan import plan
from gdnspec.check.run import Checker, Options
from gdnspec.inputs.fresh import fresh
from gdnspec.inputs.materialise import Inputs, InvalidWorkload, digest, materialise
from gdnspec.model import roles
from gdnspec.model.errors import SpecError
from gdnspec.model.result import CheckResult
from gdnspec.model.workload import Workload
from gdnspec.numerics.expected import evaluate
from gdnspec.numerics.torch_arrays import in_blocks, to_array, to_torch
from helpers_unit import GVA, line

DECODE, PREFILL = "gdn_decode_k_last", "gdn_prefill_k_last"
# What a parameter gets is a sum over all of a call, of which no sample can be judged: such definitions have small rows.
OWN = {name: found.definition for name, found in definitions().items()}
SUMS = {name for name, own in OWN.items() if any(roles.of_all(own, tensor) for tensor in own.outputs)}
DRAWN = definitions().keys() - SUMS
LARGE = {name: [w for w in workloads(definition(name)) if w.drawn] for name in DRAWN}
# Drawn as others are, but for the type or the layout of states.
ALIKE = ("k_first", "_bf16_state", "_int8_state", "_kv_dims", "_neg_eigval", "f32_qkv")
DIFFERENT = [name for name in sorted(LARGE) if not name.endswith(ALIKE)]
QUICK = {*DIFFERENT[::3], DECODE, PREFILL}
SAMPLED = [pytest.param(n, marks=[pytest.mark.thorough] * (n not in QUICK)) for n in sorted(LARGE)]
HEADS = "synthetic-gva-256x512-d8"
LENGTHS = (5, 0, 3, 70, 1, 64, 2)

Make = Callable[..., Path]


def small(name: str, **more: Any) -> Workload:
    """A line that is drawn and judged as the definition's large ones are, but small."""
    given: dict[str, Any] = {"drawn": "device", "judged": LARGE[name][0].judged, "lengths": LENGTHS, "batch": 9, **more}
    if given["judged"] is not None:
        heads = {} if given["judged"].heads is None else {"heads": 3}
        given["judged"] = {"sequences": 3, **heads}
    found = definition(name)
    del given["batch" if found.definition.conventions.packing == "ragged" else "lengths"]
    return line(found, given.pop("preset", HEADS), **given)


def wrong_with(found: Found, tensors: dict[str, torch.Tensor], workload: Workload) -> Iterator[str]:
    yield from problems(found.definition, tensors)
    yield from judged(found.family).device_problems(found.definition, tensors, workload)


def whole(content: Content) -> Inputs:
    arrays = {name: to_array(x) for name, x in content.tensors.items()}
    return Inputs(arrays, content.scalars, content.scope, digest(arrays))


# --- what is drawn, and what a sample of it is ------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLED)
def test_a_sample_is_a_call_of_its_own_with_the_same_answer(name: str) -> None:
    """Sequences, tokens, slots, chunks, heads and parts of packed rows: each is taken from where it stands."""
    found, workload = definition(name), small(name)
    content = draw(found, workload, "cpu")
    sample = Sample(found.definition, workload, content)
    inputs = sample.inputs()
    assert sum(x.nbytes for x in inputs.tensors.values()) < sum(x.nbytes for x in content.tensors.values())
    for tensor in found.definition.inputs:
        if tensor.name in inputs.tensors:
            assert inputs.tensors[tensor.name].shape == found.definition.shape(tensor, inputs.scope), tensor.name
    assert not list(found.definition.broken(inputs.scope))
    mine = evaluate(found, inputs, "cpu", torch.float64)
    everything = evaluate(found, whole(content), "cpu", torch.float64)
    for output, value in sample.outputs(everything).items():
        assert value.shape == mine[output].shape, output
        assert torch.allclose(value, mine[output], rtol=1e-9, atol=1e-9), output


@pytest.mark.parametrize("name", SAMPLED)
def test_the_device_draws_the_same_again_and_nothing_that_may_not_be(name: str) -> None:
    found, workload = definition(name), small(name)
    first, again = (draw(found, workload, "cpu") for _ in range(2))
    other = draw(found, workload.model_copy(update={"seed": 2}), "cpu")
    for key, x in first.tensors.items():
        model = found.definition.input(key)
        assert tuple(x.shape) == found.definition.shape(model, first.scope)
        assert str(x.dtype) == f"torch.{model.dtype}"
        assert torch.equal(x, again.tensors[key])
        if not model.is_index:
            assert not torch.equal(x, other.tensors[key]), key
    assert list(wrong_with(found, first.tensors, workload)) == []


def test_drawn_inputs_are_what_the_regime_says() -> None:
    content = draw(definition(PREFILL), small(PREFILL), "cpu")
    norms = content.tensors["k"].double().norm(dim=-1)
    assert float(norms.max()) <= 1
    assert float(norms.min()) > 0.98
    same = materialise(definition(PREFILL), small(PREFILL).model_copy(update={"drawn": None, "judged": None}))
    for name in ("v", "g", "beta", "initial_state"):
        files, device = to_torch(same.tensors[name]).double(), content.tensors[name].double()
        assert float(device.std()) == pytest.approx(float(files.std()), rel=0.15), name
        assert float(device.mean()) == pytest.approx(float(files.mean()), abs=0.05), name


def test_gates_of_large_gradients_decay_slowly_and_no_others() -> None:
    """Among many heads a typical one forgets so fast that honest kernels are far apart in its dg."""
    names = ("gdn_prefill_backward_k_last", PREFILL)
    least = {n: float(draw(definition(n), small(n, preset=GVA), "cpu").tensors["g"].min()) for n in names}
    assert least.pop(names[0]) > 0.9
    assert least[PREFILL] < 0.5
    regimes = {n: {x.regime for x in fresh(definition(n), 1, "cuda") if x.name == "fresh_large"} for n in names}
    assert regimes == {names[0]: {"slow_decay"}, PREFILL: {"typical"}}


def test_what_may_not_be_drawn_is_found() -> None:
    found = definition(PREFILL)
    right = draw(found, small(PREFILL), "cpu").tensors
    for name, value, says in (
        ("k", 2.0, "above 2 the recurrence is not bounded"), ("beta", 2.5, "above 2"), ("g", -0.5, "below 0"),
        ("v", torch.nan, "not finite"), ("initial_state", torch.inf, "not finite"),
    ):  # fmt: skip
        wrong = right[name].clone()
        wrong[-1] = value
        said = list(wrong_with(found, {**right, name: wrong}, small(PREFILL)))
        assert any(says in text for text in said), (name, said)


def test_the_first_and_the_last_are_always_chosen() -> None:
    for count in (1, 2, 3, 4, 5, 100, 65540):
        for seed in range(20):
            numbers = chosen(count, 4, seed)
            assert numbers == sorted(set(numbers))
            assert len(numbers) == min(count, 4)
            assert {0, count - 1} <= set(numbers)
    assert len({tuple(chosen(100, 4, seed)) for seed in range(20)}) > 15


def test_heads_that_a_definition_mixes_are_not_taken_apart() -> None:
    for name in ("gdn_layer_decode", "gdn_conv1d_decode"):
        workload = small(name).model_copy(update={"judged": LARGE[DECODE][0].judged})
        with pytest.raises(InvalidWorkload, match="leave `heads` out of `judged`"):
            Sample(definition(name).definition, workload, draw(definition(name), workload, "cpu"))


def test_blocks_are_all_of_a_tensor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdnspec.numerics.torch_arrays.BLOCK_BYTES", 64)
    for shape in ((0, 3), (1, 3), (50, 3), (7,), (3, 100), ()):
        x = torch.rand(shape)
        blocks = [a for a, b in in_blocks(x, x)]
        assert torch.equal(torch.cat(blocks) if shape else blocks[0], x)
    assert len([*in_blocks(torch.rand(50, 3))]) == 10


# --- the verdict ------------------------------------------------------------------------------------------------


def check(folder: Path, *rows: Workload, name: str = DECODE) -> list[CheckResult]:
    where = machine.device("cpu")
    assert where is not None
    checker = Checker("cpu", Options(timeout=60.0), lambda text: None)
    return list(checker.run(list(plan([load_solution(folder)], [(definition(name), list(rows))], where))))


HEAD = "def run(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):\n    "
RIGHT = "o, s = decode_k_last(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)\n    "
BATCH = 4000


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("", "PASSED", ""),
        ("o[-1] = 0", "INCORRECT_NUMERICAL", "worst at sequence 2"),  # the last of three
        ("s[0] *= 1.01", "INCORRECT_NUMERICAL", "worst at sequence 0"),
        ("s[1:-1, 0, 3] = float('nan')", "NON_FINITE", "never written"),
        ("o[1234] = float('inf')", "NON_FINITE", "[1234, 0, 0, 0]"),
        ("s[1234] = state[1234]", "INCORRECT_NUMERICAL", "outside the judged sample"),
        ("o[77] = o[78]", "INCORRECT_NUMERICAL", "outside the judged sample"),
    ],
)
def test_what_is_wrong_anywhere_is_rejected(make_solution: Make, code: str, status: str, says: str) -> None:
    """In the sample by its numbers; elsewhere because it is not finite, or because a second call, whose rows stand in
    another order, must give the same."""
    row = small(DECODE, batch=BATCH, preset="synthetic-mha-1x1-d8")
    assert {1234, 77, 78}.isdisjoint(chosen(BATCH, 3, row.seed or 0))
    (result,) = check(make_solution(f"{HEAD}{RIGHT}{code}\n    return o, s"), row)
    assert result.status == status, result.message
    assert says in result.message


def test_a_grid_of_65535_pairs_is_found_by_the_last(make_solution: Make) -> None:
    """As a kernel that has a block for each pair in one axis of its grid, on the shipped row for a CPU."""
    found = definition(DECODE)
    rows = [w for w in workloads(found) if w.name in ("pairs_66048", "rows_65540")]
    clipped = "s.view(-1, *s.shape[2:])[65535:] = 0"
    results = check(make_solution(f"{HEAD}{RIGHT}{clipped}\n    return o, s"), *rows)
    assert [r.status for r in results] == ["INCORRECT_NUMERICAL"] * 2
    results = check(make_solution(f"{HEAD}{RIGHT}return o, s", name="right"), *rows)
    assert [r.status for r in results] == ["PASSED"] * 2


# --- lines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(LARGE))
def test_every_definition_has_rows_past_65535_pairs_and_past_2_31_elements(name: str) -> None:
    found = definition(name)
    sizes, pairs = [], []
    for row in workloads(found):
        scope = row.scope(found.definition, preset_of(found, row))
        tensors = [t for t in (*found.definition.inputs, *found.definition.outputs) if not t.is_scalar]
        sizes.append(max(torch.Size(found.definition.shape(t, scope)).numel() for t in tensors))
        rows = row.axes.get("num_chunks") or row.axes.get("num_seqs") or row.axes.get("batch_size", 0)
        if name.endswith("_chunk_wy"):  # its chunks are counted by nothing
            rows = sum(-(-length // 64) for length in row.sequence_lengths or ())
        pairs.append(rows * roles.heads(found.definition, scope))
    assert max(sizes) > 2**31
    # Of so many pairs under write gates up to 2, one is always rounded too far for a budget.
    assert max(pairs) > 65536 or name == "gdn_layer_prefill_neg_eigval"
    # Gradients are also timed on inputs that the device draws: their budgets would take hours on a processor.
    suites = ("conformance", "performance") if found.definition.stage == "backward" else ("conformance",)
    assert all(row.device == "cuda" and row.suite in suites for row in LARGE[name])


def test_no_sample_is_taken_of_a_sum_over_all_sequences() -> None:
    workload = line(definition("gdn_prefill_backward_raw_gates"), HEADS, drawn="device", judged={"sequences": 3})
    found = definition("gdn_prefill_backward_raw_gates")
    with pytest.raises(InvalidWorkload, match="dA_log, ddt_bias: a sum over all sequences"):
        Sample(found.definition, workload, draw(found, workload, "cpu"))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"judged": None}, "judged on a sample"),
    ({"regime": "hard_reset"}, "only the regime typical"),
    ({"sha256": "0" * 64}, "has no hash"),
    ({"budget": {"output": {"relative_l2": 1e-3, "worst_vector": 1e-3, "max_over_rms": 1e-3}}}, "leave out budget"),
    ({"judged": {"sequences": 1}}, "at least 2"),
    ({"drawn": "host"}, "'device'"),
]


@pytest.mark.parametrize(("changes", "says"), WRONG)
def test_a_wrong_line_says_what_to_do(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    row = small(DECODE).model_dump(mode="json", exclude_defaults=True)
    file = tmp_path / "lines.jsonl"
    file.write_text(json.dumps(row) + "\n")
    assert load_workloads(file, definition(DECODE))
    file.write_text(json.dumps({key: x for key, x in {**row, **changes}.items() if x is not None}) + "\n")
    with pytest.raises(SpecError, match=says):
        load_workloads(file, definition(DECODE))


def test_other_commands_leave_out_what_only_a_check_draws(gdnspec: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    row = {**small(PREFILL).model_dump(mode="json", exclude_defaults=True), "preset": "synthetic-gva-2x4-d64"}
    file.write_text(json.dumps(row) + "\n")
    options = ("--solution", "torch_recurrent", "--device", "cpu")
    done = gdnspec("check", PREFILL, "--workloads", file, *options)
    assert done.returncode == 0, done.stderr
    done = gdnspec("vectors", "export", PREFILL, "--workloads", file, "--out", tmp_path / "vectors")
    assert done.returncode == 2
    assert "which only gdnspec check can do" in done.stderr
    done = gdnspec("workloads", "freeze", PREFILL, "--workloads", file, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "each check measures its sample" in done.stderr
    assert json.loads(file.read_text()) == row
    with pytest.raises(InvalidWorkload, match="only a check can draw its inputs"):
        materialise(definition(PREFILL), Workload.model_validate(row))


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(LARGE))
def test_every_large_row_has_a_solution_that_passes(gdnspec: Run, tmp_path: Path, name: str) -> None:
    rows = [option for w in LARGE[name] for option in ("--workload", w.name)]
    done = gdnspec("check", name, *rows, "--device", "cuda", "--json", tmp_path / "r.jsonl", timeout=880)
    assert done.returncode == 0, done.stderr + done.stdout
    results = [json.loads(text) for text in (tmp_path / "r.jsonl").read_text().splitlines()]
    for row in LARGE[name]:
        mine = {r["solution"]: r["status"] for r in results if r["workload"] == row.name}
        assert set(mine.values()) <= {"PASSED", "UNSUPPORTED"}, (row.name, mine)
        assert "PASSED" in mine.values(), (row.name, mine)


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("row", [w.name for w in LARGE[DECODE]])
def test_offsets_that_end_at_2_31_are_found(make_solution: Make, row: str) -> None:
    """What lies past 2^31 elements is left out, as where an offset of 32 bits has wrapped and is refused."""
    few = "for n in range(0, len(q), 256):\n        t = slice(n, n + 256)\n        "  # two states are too much
    call = "decode_k_last(q[t], k[t], v[t], state[t], A_log, a[t], dt_bias, b[t], scale, use_qk_l2norm)"
    code = f"{few}output[t], new_state[t] = {call}\n    new_state.view(-1)[1 << 31 :] = 0\n"
    where = machine.device("cuda")
    assert where is not None
    lines = [w for w in LARGE[DECODE] if w.name == row]
    checker = Checker("cuda", Options(timeout=120.0), lambda text: None)
    folder = make_solution(HEAD.replace("):", ", output, new_state):") + code, call="out")
    (result,) = checker.run(list(plan([load_solution(folder)], [(definition(DECODE), lines)], where)))
    if result.status == "UNSUPPORTED":
        pytest.skip(result.message)  # the memory of the card
    assert result.status == "INCORRECT_NUMERICAL", result.message
