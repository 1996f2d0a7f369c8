"""The rows of the scripts in benchmarks/, and what their summaries say of times that are given to them."""

import argparse
import importlib
import json
import math
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import forked_command
import pytest
from conftest import ROOT


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("prefill_shapes")


@pytest.fixture
def tables(shapes: ModuleType) -> ModuleType:
    return importlib.import_module("prefill_tables")


def test_prefill_has_60_long_rows_27_short_ones_and_21_of_heads_of_64(shapes: ModuleType) -> None:
    rows = shapes.rows()
    groups = [row.group for row in rows]
    assert (groups.count("long"), groups.count("short"), groups.count("d64")) == (60, 27, 21)
    assert len({row.name for row in rows}) == 108
    assert {(row.group == "d64", row.head_size) for row in rows} == {(True, 64), (False, 128)}
    assert {row.heads for row in rows if row.head_size == 64} == {(8, 8), (16, 16), (16, 32)}
    short = [row for row in rows if row.group == "short"]
    assert {row.heads for row in short} == {(16, 32), (4, 12), (16, 64)}
    assert max(max(row.lengths) for row in short) == 1000
    assert {(len(row.lengths), row.lengths[0]) for row in short} >= {(64, 1), (512, 40), (24, 1000)}


@pytest.mark.parametrize(("count", "tokens", "least"), [(64, 1, 64), (128, 33, 153), (512, 40, 632), (48, 512, 193)])
def test_the_bound_of_a_short_row_is_the_traffic_of_states(
    shapes: ModuleType, count: int, tokens: int, least: int
) -> None:
    (row,) = [row for row in shapes.rows() if row.name == f"16/32 short {count}x{tokens}"]
    assert round(shapes.bound(row, shapes.COPY_RATES["H200"])) == least


@pytest.mark.parametrize(("name", "least"), [("8/8 d64 4x2048", 12), ("16/32 d64 64x128", 57)])
def test_the_bound_of_heads_of_64(shapes: ModuleType, name: str, least: int) -> None:
    (row,) = [row for row in shapes.rows() if row.name == name]
    assert round(shapes.bound(row, shapes.COPY_RATES["H100"])) == least


@pytest.mark.parametrize(
    ("name", "least"),
    [("16/32 1x8192", 169), ("16/64 1x32768", 1348), ("16/32 short 64x1", 97), ("16/32 short 64x128", 177)],
)
def test_the_bound_of_a_backward_pass(shapes: ModuleType, name: str, least: int) -> None:
    """508 kFLOP per token and value head; or the bytes of three states, where sequences are short."""
    pytest.importorskip("torch")
    backward = importlib.import_module("backward_rows")
    (row,) = [row for row in shapes.rows() if row.name == name]
    assert round(backward.bound(row, shapes.COPY_RATES["H200"])) == least


def recorded(tables: ModuleType, row: Any, device: str, mine: float, other: float) -> dict[str, Any]:
    us = {"mine": (mine, ""), "one": (other, ""), "two": (math.nan, "ValueError")}
    return json.loads(json.dumps(tables.record(row, device, 50.0, us, ["one", "two"])))  # type: ignore[no-any-return]


def test_a_summary_has_each_group_and_counts_what_was_not_run(shapes: ModuleType, tables: ModuleType) -> None:
    short = [row for row in shapes.rows() if row.group == "short"]
    records = [recorded(tables, short[0], "H", 100.0, 50.0), recorded(tables, short[1], "H", 100.0, 200.0)]
    records.append(recorded(tables, short[2], "H", 100.0, math.nan))  # no peer has a time
    long, said, of_64 = tables.summary(records, "H")
    assert (long, of_64) == ("H, long: 0 of 60 rows", "H, d64: 0 of 21 rows")
    assert said.startswith(
        "H, short: 3 of 27 rows; best peer / this 1.000 (geometric mean of 2), 0.500 (16/32 short 64x1)"
    )
    assert said.endswith("50.0% of the bound")


def test_files_are_shown_as_a_table_for_each_device(shapes: ModuleType, tables: ModuleType, tmp_path: Path) -> None:
    row = shapes.rows()[0]
    files = []
    for device, mine in (("H100", 100.0), ("H200", 80.0)):
        files += ["--show", str(tmp_path / device)]
        again = recorded(tables, row, device, mine, 160.0)
        (tmp_path / device).write_text("".join(json.dumps(x) + "\n" for x in ({**again, "bound": 1.0}, again)))
    script = ROOT / "benchmarks/prefill_rows.py"
    done = forked_command.run(files, dict(os.environ), script=script)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("H200\n")
    assert first.startswith("H100\n")
    assert first.count(row.name + " ") == 1, "the last time of a row counts"
    assert "H100, long: 1 of 60 rows; best peer / this 1.600" in first
    assert "H200, long: 1 of 60 rows; best peer / this 2.000" in second
    assert "H200, short: 0 of 27 rows" in second


def test_rows_are_chosen_by_group_or_by_a_part_of_their_name(shapes: ModuleType) -> None:
    assert [row.group for row in shapes.chosen("long,short")] == ["long"] * 60 + ["short"] * 27
    assert {row.name for row in shapes.chosen("lognormal64,512x40")} == {
        *(f"{heads} lognormal64" for heads in ("4/16", "16/32", "16/64")),
        *(f"{heads} short 512x40" for heads in ("16/32", "4/12", "16/64")),
    }
    assert shapes.chosen("") == shapes.rows()


def test_without_a_gpu_a_run_ends_with_what_it_needs() -> None:
    for script, options in (("prefill_rows.py", ["--rows", "short"]), ("decode_rows.py", [])):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        done = forked_command.run(options, environment, script=ROOT / "benchmarks" / script)
        assert done.returncode == 1
        assert done.stderr.startswith(f"{script}: needs a CUDA GPU")


SHOWN = ("prefill_rows.py", "backward_rows.py", "training_rows.py")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "--show: there is no file {file}; --json writes one"),
        ("", "--show: nothing was measured in {file}"),
        ("no JSON", "--show: line 1 of {file} is none that --json of this script wrote: no 'device'"),
        (
            '{"device": "H100", "row": "x"}',
            "--show: line 1 of {file} is none that --json of this script wrote: no 'group'",
        ),
    ],
)
def test_a_file_that_is_none_of_them_is_an_error_of_one_line(text: str | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    if text is not None:
        file.write_text(text)
    for script in SHOWN:
        done = forked_command.run(["--show", str(file)], dict(os.environ), script=ROOT / "benchmarks" / script)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == f"{script}: error: {says.format(file=file)}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("prefill_rows.py --json none/here.jsonl", "--json: there is no folder none: make it first"),
        ("backward_rows.py --json none/here.jsonl", "--json: there is no folder none: make it first"),
        ("decode_rows.py --json none/here.jsonl", "--json: there is no folder none: make it first"),
        ("prefill_rows.py --solutions hoper_prefill", "hoper_prefill is no solution: there is no "),
        ("prefill_rows.py --against flash_kla", "flash_kla is no solution: there is no "),
        ("backward_rows.py --solutions triton_backwards:strict", "triton_backwards is no solution: there is no "),
        ("decode_rows.py --solution cuda_decod", "cuda_decod is no solution: there is no "),
        ("training_rows.py --backward none", "none is no solution: there is no "),
        ("training_rows.py --kept 100", "--kept: '100' is no positive multiple of 64"),
        ("training_rows.py --kept some", "--kept: 'some' is no positive multiple of 64"),
        ("backward_rows.py --decay nan", "--decay: nan is none; give 0 or more"),
    ],
)
def test_what_would_end_a_run_later_is_refused_at_once(words: str, says: str) -> None:
    script, *options = words.split()
    done = forked_command.run(options, dict(os.environ), script=ROOT / "benchmarks" / script)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"{script}: error: {says}")


def test_a_row_says_what_it_was_measured_with(shapes: ModuleType, tables: ModuleType) -> None:
    row = shapes.rows()[0]
    found = recorded(tables, row, "H100", 100.0, 160.0)
    assert found["versions"]["gdnspec"]
    assert "commit" in found
    older = {key: x for key, x in found.items() if key not in ("versions", "commit")}
    found |= {"versions": {"torch": "2.11.0", "flash-qla": "0.1.3"}, "commit": "abcdef01"}
    assert tables.tables([found]).splitlines()[:2] == ["H100", "commit abcdef01, torch 2.11.0, flash-qla 0.1.3"]
    assert tables.tables([older]).splitlines()[:2] == ["H100", ""]


def test_versions_of_one_name_are_built_apart(shapes: ModuleType, tmp_path: Path) -> None:
    """In one folder the second would be the kernel of the first."""
    named = [("old/solutions/x", "x"), ("new/solutions/x", "x"), ("new/solutions/x", "x:strict")]
    assert len({shapes.build_of(tmp_path, tmp_path / folder, name) for folder, name in named}) == 3


def test_decode_has_the_batches_on_either_side_of_each_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    decode = importlib.import_module("decode_shapes")
    for _, heads in decode.HEADS:
        batches = decode.batches(heads, 132)
        assert {*range(1, 41), 147, 294} <= {*batches} and batches[-1] <= 300
        for pairs in range(132, 300 * heads, 132):
            assert any(
                batch * heads <= pairs < (batch + 1) * heads
                for batch in batches
                if batch + 1 in batches or batch == 300
            )
    rows = decode.rows(132)
    assert len({row.name for row in rows}) == len(rows)
    kinds = ("k_last", "k_last_bf16_state", "pool_k_last", "pool_k_last_bf16_state")
    assert {row.definition for row in rows} == {f"gdn_decode_{kind}" for kind in kinds}
    few, many = decode.Row((16, 48), 2, False, False), decode.Row((16, 48), 3, False, False)
    assert (decode.allowed(few, 5.0, 132), decode.allowed(many, 5.0, 132)) == (6.0, 5.7)
    assert decode.allowed(many, 100.0, 132) == pytest.approx(108.0)
    records = [{**many._asdict(), "us": 8.05, "copy": 6.39, "peers": {"flashinfer": 7.3}},
               {**few._asdict(), "us": 6.0, "copy": 5.5, "peers": {}}]  # fmt: skip
    (said,) = decode.summary(json.loads(json.dumps(records)), 132)
    assert said.startswith("16/48 dense float32: 1 of 2 rows take longer than allowed [3]; most beside the copy 1.260")
    assert said.endswith("1 rows more than 1% slower than a peer [3]")


@pytest.fixture
def training(shapes: ModuleType) -> ModuleType:
    pytest.importorskip("torch")
    return importlib.import_module("training_rows")


def test_kimi_delta_attention_is_timed_with_gates_that_last_and_that_forget(shapes: ModuleType) -> None:
    """By default, because the time of our kernel depends on them: no summary may leave one kind out."""
    rows = importlib.import_module("kda_rows")
    assert len(rows.rows()) == 30
    assert rows.kinds(rows.GATES) == ["0.3", "typical", "12"]
    for wrong in ("fast", "-1", "nan", "inf", "0.3,"):
        with pytest.raises(argparse.ArgumentTypeError, match="neither a number from 0 on nor typical"):
            rows.kinds(wrong)
    assert rows.beside_fla({"a": 2.0, "b": 0.5}, "12").strip() == (
        "fla / triton_kda, gates 12: 1.000 (geometric mean of 2), 0.500 (b)"
    )


def test_training_has_the_long_rows_and_twelve_short_ones(shapes: ModuleType, training: ModuleType) -> None:
    groups = [row.group for row in shapes.chosen(training.ROWS)]
    assert (len(groups), groups.count("long"), groups.count("short")) == (72, 60, 12)


def test_training_counts_the_gates_that_speak_against_us(
    shapes: ModuleType, tables: ModuleType, training: ModuleType
) -> None:
    one, two, *_ = shapes.rows()
    records = [
        recorded(tables, row, "H", 100.0, other) | {"gates": gates}
        for row, gates, other in (
            (one, "decay", 150.0), (one, "typical", 50.0), (two, "decay", 200.0), (two, "typical", math.nan),
        )
    ]  # fmt: skip
    text = training.tables(records)
    assert "H, decay gates: 2 rows; FlashQLA / gdnspec 1.732 (geometric mean), least 1.500" in text
    assert f"H, chosen against us: 2 rows; FlashQLA / gdnspec 1.000 (geometric mean), least 0.500 ({one.name}" in text
    assert "1 below 1; 50.0% of the bound" in text.splitlines()[-2]


def test_training_calls_both_solutions(training: ModuleType, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    rows = lambda *shape: torch.randn(*shape).bfloat16()  # noqa: E731
    T, k = 70, torch.nn.functional.normalize(torch.randn(70, 1, 8), dim=-1).bfloat16()
    given = {
        "q": rows(T, 1, 8), "k": k, "v": rows(T, 2, 8), "g": torch.rand(T, 2), "beta": torch.rand(T, 2),
        "cu_seqlens": torch.tensor([0, 2, T]), "initial_state": torch.randn(2, 2, 8, 8), "scale": None,
        "do": rows(T, 2, 8), "dht": torch.randn(2, 2, 8, 8),
    }  # fmt: skip
    found = training.Ours("torch_chunkwise", "torch_backward", tmp_path).bound(given)()
    assert found["dh0"].shape == (2, 2, 8, 8)
    assert all(torch.isfinite(found[name]).all() for name in training.backward.OUTPUTS)
    kept = training.Kept("torch_chunkwise", "torch_backward", 64, tmp_path).bound(given)()
    assert not training.backward.apart(kept, {name: x.float() for name, x in found.items()})


def test_errors_of_gradients_beside_a_peer(
    shapes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The peer is a copy of the solution, with 1% more of everything and NaN at resets."""
    pytest.importorskip("torch")
    script = importlib.import_module("gradient_errors")
    monkeypatch.setattr(script, "LENGTHS", (5, 9))
    monkeypatch.setattr(script, "D", 8)
    peer = tmp_path / "peer"
    shutil.copytree(ROOT / "solutions/torch_backward", peer, ignore=shutil.ignore_patterns("traces"))
    manifest = json.loads((peer / "solution.json").read_text()) | {"name": "peer"}
    manifest["entries"]["gdn_prefill_backward_k_first"]["entry"] = "kernel.py::worse"
    (peer / "solution.json").write_text(json.dumps(manifest))
    with (peer / "kernel.py").open("a") as file:
        file.write(
            "\n\ndef worse(**given):\n"
            "    factor = float('nan') if given['g'].isinf().any() else 1.01\n"
            "    return tuple(factor * x for x in backward_k_first(**given))\n"
        )
    out = tmp_path / "errors.jsonl"
    words = f"gradient_errors.py --device cpu --draws 1 --solutions torch_backward --against {peer} --json {out}"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--inputs", "typical,alpha 0"])
    script.main()
    *_, said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"errors of torch_backward beside \S+peer: at most 0\.\d\d times \(d[qkv] of typical\)", said)
    lines = [json.loads(text) for text in out.read_text().splitlines()]
    assert [(x["input"], x["solution"].endswith("peer")) for x in lines] == [
        ("typical", False), ("typical", True), ("alpha 0 at every 7th", False), ("alpha 0 at every 7th", True),
    ]  # fmt: skip
    assert max(lines[2]["errors"].values()) < 0.01
    assert all(math.isnan(x) for x in lines[3]["errors"].values())
    assert lines[0]["versions"]["gdnspec"]
