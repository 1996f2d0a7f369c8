"""tools/sanitize.py, as far as it goes without a GPU: what it builds when a macro is asked for."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT


@pytest.fixture
def sanitize(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("sanitize")


def test_a_macro_is_defined_before_the_first_line_and_lines_keep_their_numbers(sanitize: Any, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "kernel.cu").write_text('#include "lanes.h"\nint line = __LINE__, lanes = LANES;\n')
    (folder / "lanes.h").write_text("#ifdef EVERY\n#define LANES 32\n#else\n#define LANES 1\n#endif\n")
    made = sanitize.defined(folder, ["EVERY"], tmp_path / "two")
    for of, lanes in ((folder, 1), (made, 32)):
        command = ["g++", "-E", "-P", "-x", "c++", str(of / "kernel.cu")]
        assert f"int line = 2, lanes = {lanes};" in subprocess.run(command, capture_output=True, text=True).stdout
    kept = [sanitize.of_sources(of, tmp_path / "kept") for of in (folder, made, folder)]
    assert kept[0] == kept[2] != kept[1], "a build is of these sources"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("cuda_decode", "--define", "a b"), "'a b' is no name of a macro"), (("no_such",), "no solution 'no_such'")],
)
def test_bad_requests(
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    sanitize: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sanitize, "device", lambda kind: object())
    monkeypatch.setattr(sys, "argv", ["sanitize.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        sys.exit(sanitize.main())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_solution_without_cuda_sources_has_nothing_to_define(sanitize: Any, tmp_path: Path) -> None:
    with pytest.raises(sanitize.SpecError, match=r"has no \.cu file"):
        sanitize.defined(ROOT / "solutions" / "triton_decode", ["EVERY"], tmp_path / "x")
