"""gdnspec capture: record workloads from a program that calls a gated delta rule."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from gdnspec.catalog.definitions import definition
from gdnspec.cli.console import complain, say
from gdnspec.model.errors import Problem, SpecError

SITE = """import gdnspec.recording.injected as injected
injected.install()
"""


def capture(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND..", help="The program, after two dashes.")],
    definition_: Annotated[str, typer.Option("--definition", help="A prefill or a decode with states of its own.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The workload file, JSONL.")],
    target: Annotated[
        str | None,
        typer.Option(help="package.module:function.", show_default="the rules of transformers' Qwen3-Next"),
    ] = None,
    tensors: Annotated[str, typer.Option(help="Whose tensors are kept: none, sample:N or all.")] = "none",
    repeats: Annotated[
        int, typer.Option(min=1, help="How often query and key heads were repeated before the call; transformers does.")
    ] = 1,
    max_bytes: Annotated[int, typer.Option(min=1, help="Of all tensors together.")] = 1 << 30,
    force: Annotated[bool, typer.Option(help="Overwrite the file.")] = False,
) -> None:
    """Run a program and record what it calls a gated delta rule with: `gdnspec capture .. -- python script.py`.

    Each process of it that calls the rule writes a file of its own: FILE, then FILE with a number. Exit code: the
    program's own; 1 where it ended well but never called the rule.
    """
    from gdnspec.recording import lines
    from gdnspec.recording.capture import PACKAGE, USUAL
    from gdnspec.recording.sample import Sample

    found = definition(definition_)
    lines.hold(found.definition)
    Sample(tensors, output, max_bytes)
    chosen = target or USUAL.get(found.definition.stage, f"{PACKAGE}:")
    name, colon, attribute = chosen.partition(":")
    if not (name and colon and attribute):
        raise SpecError(f"--target {chosen!r} is not package.module:function")
    if output.exists() and not force:
        raise SpecError([Problem(output, "exists already", hint="--force overwrites it")])
    if not output.parent.is_dir():
        raise SpecError([Problem(output, "its folder does not exist")])
    request = {
        "definition": definition_, "out": str(output.resolve()), "target": chosen, "tensors": tensors,
        "repeats": repeats, "max_bytes": max_bytes,
    }  # fmt: skip
    output.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="gdnspec-capture-") as folder:
        (Path(folder) / "sitecustomize.py").write_text(SITE)
        (Path(folder) / "said").mkdir()
        tools = str(Path(__file__).resolve().parents[2])
        earlier = os.environ.get("PYTHONPATH")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([folder, *([earlier] if earlier else []), tools]),
            "GDNSPEC_CAPTURE": json.dumps(request | {"said": f"{folder}/said"}),
        }
        try:
            code = subprocess.run(command, env=environment, check=False).returncode
        except OSError as error:
            raise SpecError(f"{command[0]} cannot be run: {error.strerror or error}") from None
        said = [json.loads(file.read_text()) for file in sorted((Path(folder) / "said").iterdir())]
    if not said and output.exists():
        # It was killed, or left without a goodbye; what it had recorded is there all the same.
        calls = sum(json.loads(line)["weight"] for line in output.read_text().splitlines())
        said = [{"calls": calls, "passed_over": 0, "unfit": {}, "out": str(output), "kept": 0, "too_large": 0}]
    raise typer.Exit(_told(said, code, chosen))


def _told(said: list[dict[str, object]], code: int, target: str) -> int:
    """What was recorded, and the exit code."""
    refused = [str(one["refused"]) for one in said if "refused" in one]
    if refused:
        complain(f"gdnspec: {refused[0]}")
        return 2
    total = 0
    for one in said:
        calls, passed_over, unfit = one["calls"], one["passed_over"], one["unfit"]
        assert isinstance(calls, int)
        assert isinstance(unfit, dict)
        total += calls
        if calls or unfit or passed_over:
            kept = f", tensors of {one['kept']}" if one["kept"] else ""
            say(f"{calls} calls in {one['out']}{kept}; {passed_over} of another stage")
        for reason, count in unfit.items():
            complain(f"{count} calls left out: {reason}")
        if one["too_large"]:
            complain(f"tensors of {one['too_large']} calls left out: --max-bytes")
        if one.get("failure"):
            complain(f"gdnspec: {one['out']}: recording ended early: {one['failure']}")
            return code or 1
    if code == 0 and not total:
        complain(f"gdnspec: {target} was never called with what --definition takes: nothing was recorded")
        return 1
    # A program that a signal ended: as a shell says it.
    return 128 - code if code < 0 else code
