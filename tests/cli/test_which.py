"""gdnspec which: the choice, its reason, the runners-up."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Run
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.device_names import cpu_name, slug
from gdnspec.choice import asking
from gdnspec.choice.asking import ask, batch_of, device_of, lengths_of
from gdnspec.choice.choose import choose
from gdnspec.cli.chosen import print_choices
from gdnspec.model.errors import SpecError
from helpers_unit import OF_A_MODEL

PRESET = ("--preset", "qwen3-next-80b-a3b-tp1")
PREFILL = ("which", "gdn_prefill_k_last", *PRESET)
DECODE = ("which", "gdn_decode_k_last", *PRESET)


def test_it_prints_the_choice_and_the_runners_up(gdnspec: Run) -> None:
    done = gdnspec(*PREFILL, "--lengths", "1x8192", "--device", "nvidia-h200")
    assert done.returncode == 0, done.stderr
    first, reason, _, header, *rows = done.stdout.splitlines()
    assert first == "gdn_prefill_k_last, 1x8192 of qwen3-next-80b-a3b-tp1, on nvidia-h200: hopper_prefill"
    assert reason.startswith("fastest of 5 measured on an NVIDIA H200 at 1x8192: ")
    assert f"at 1x8192: {rows[0].split()[1]} us" in reason
    assert header.split()[:3] == ["solution", "time", "ratio"]
    assert [row.split()[0] for row in rows[:3]] == ["hopper_prefill", "hopper_prefill:strict", "triton_chunkwise"]


def test_a_processor_has_one_spelling(gdnspec: Run) -> None:
    assert slug(cpu_name()) == cpu_name(), "doctor and check print the name, which and traces its slug"
    for device in ("cpu", cpu_name()):
        done = gdnspec(*DECODE, "--batch", "8", "--device", device)
        assert f", on {cpu_name()}: torch_" in done.stdout.splitlines()[0]


def test_a_time_of_an_earlier_version_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside each solution, and not of the best one alone."""
    found = definitions()["gdn_prefill_k_last"]
    preset = found.family.preset(PRESET[1])
    assert preset is not None
    call = ask(found, preset, PRESET[1], [8192], "nvidia-h200")
    choices, among = choose(call)
    print_choices(call, PRESET[1], [replace(choice, earlier=choice is choices[1]) for choice in choices], among)
    rows = capsys.readouterr().out.splitlines()[4:]
    assert [row.rstrip().endswith("measured, by an earlier version") for row in rows[:3]] == [False, True, False]


def test_sequences_without_tokens_and_whole_bounds_are_said(gdnspec: Run) -> None:
    nothing = gdnspec(*PREFILL, "--lengths", "2x0", "--device", "nvidia-h200").stdout
    assert nothing.startswith("gdn_prefill_k_last, 2x0 of qwen3-next-80b-a3b-tp1, on nvidia-h200: ")
    rows = gdnspec(*DECODE, "--batch", "70000", "--device", "nvidia-h200").stdout
    assert "100%" in rows
    assert "e+" not in rows


def test_programs_get_json(gdnspec: Run) -> None:
    said = json.loads(gdnspec(*DECODE, "--batch", "12", "--json", "--device", "nvidia-h200").stdout)
    best = said["choices"][0]
    assert best["basis"] == "expected"
    assert best["seconds"] < said["choices"][1]["seconds"]


def test_a_forced_choice_is_mentioned(gdnspec: Run) -> None:
    done = gdnspec(*DECODE, "--batch", "8", "--device", "cpu", env={"GDNSPEC_SOLUTION": "torch_recurrent"})
    assert "GDNSPEC_SOLUTION is set: gdnspec.kernel takes torch_recurrent" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("which", "gdn_decode_klast", *PRESET), "did you mean 'gdn_decode_k_last'?"),
        (("which", "gdn_decode_k_last", "--preset", "qwen3-next", "--batch", "8"), "no preset 'qwen3-next'"),
        ((*DECODE, "--batch", "8", "--device", "nvidia-h20"), "did you mean 'nvidia-h200'?"),
        ((*DECODE, "--lengths", "8"), "takes rows: give --batch"),
    ],
)
def test_what_makes_no_sense_is_refused(gdnspec: Run, arguments: tuple[str, ...], said: str) -> None:
    done = gdnspec(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert not done.stdout


def test_lengths_are_lists_and_multiples() -> None:
    assert lengths_of("2x3, 5") == [3, 3, 5]
    for wrong in ("", "x", "2x", "0x5", "1e3", "-1", "2x3x4", f"{1 << 21}x1"):
        with pytest.raises(SpecError, match="--lengths: "):
            lengths_of(wrong)


def test_rows_and_sequences_are_not_confused() -> None:
    known = definitions()
    assert batch_of(known["gdn_verify_k_last"], None, 2, None) == [4, 4]
    for name, *given in (("gdn_prefill_k_last", None, 8, None), ("gdn_prefill_k_last", None, None, None)):
        with pytest.raises(SpecError, match="takes sequences"):
            batch_of(known[name], *given)
    with pytest.raises(SpecError, match="one token per row"):
        batch_of(known["gdn_decode_k_last"], None, 8, 4)


@pytest.mark.parametrize("name", sorted(definitions()))
def test_every_definition_has_a_choice(name: str) -> None:
    found = definitions()[name]
    ragged = found.definition.conventions.packing == "ragged"
    each = [1000, 24] if ragged else batch_of(found, None, 8, None)
    name = OF_A_MODEL[found.family.name]
    preset = found.family.preset(name)
    assert preset is not None
    choices, _ = choose(ask(found, preset, name, each, "nvidia-h200"))
    assert choices[0].reason


def test_the_gpu_of_this_machine_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA L4\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert asking.gpu_name() == "NVIDIA L4"
    assert device_of(None) == "nvidia-l4"
    program.write_text("#!/bin/sh\necho failed >&2; exit 9\n")
    assert device_of(None) == "nvidia-h200"
