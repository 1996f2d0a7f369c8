"""gdnspec capture: record workloads from a program that calls a function of a library."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdnspec import paths
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.writing import require_file
from gdnspec.cli import offered
from gdnspec.cli.console import complain, say
from gdnspec.cli.options import DefinitionsDir, ForceFile
from gdnspec.model.errors import Problem, SpecError

if TYPE_CHECKING:
    from gdnspec.inputs.contract import Calls

KINDS = 5  # kinds of call that are listed per function
SITE = """import gdnspec.capture.injected as injected
injected.install()
"""


def capture(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="After two dashes: the program and its arguments.")
    ],
    definition_: Annotated[
        str,
        typer.Option(
            "--definition", help="The prefill or decode that the program calls.", autocompletion=offered.definitions
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The workload file, JSONL.")],
    target: Annotated[
        str | None,
        typer.Option(help="Record this package.module:function.", show_default="the functions that the family names"),
    ] = None,
    tensors: Annotated[str, typer.Option(help="Keep the tensors of these calls: none, sample:N or all.")] = "none",
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How often the program repeats each head before the call.",
            show_default="found from the values",
        ),
    ] = None,
    max_bytes: Annotated[int, typer.Option(min=1, help="Most bytes of all kept tensors together.")] = 1 << 30,
    force: ForceFile = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Run a program and record its calls of an operator: `gdnspec capture .. -- python script.py`.

    Each process of the program that calls the operator writes its own file: the first writes FILE, others add a number
    to its name. The exit code is the program's own, or 1 if the program succeeded without calling the operator.
    """
    from gdnspec.capture.recorder import hold, recordings, remove, target_of
    from gdnspec.capture.sample import Sample

    found = definition(definition_)
    calls = hold(found)
    Sample(tensors, output, max_bytes)
    chosen = target_of(calls, found, target)
    name, colon, attribute = chosen.partition(":")
    if not (name and colon and attribute):
        raise SpecError(f"--target {chosen!r} is not of the form package.module:function")
    if output.exists() and not force:
        raise SpecError(
            [Problem(output, "exists already", hint="--force replaces it, and the numbered files beside it")]
        )
    if not output.parent.is_dir():
        raise SpecError([Problem(output, "its folder does not exist")])
    require_file(output, "-o FILE")
    if force:
        remove(output)
    before = {file.resolve() for file in recordings(output)}
    request = {
        "definition": definition_, "out": str(output.resolve()), "target": chosen, "tensors": tensors,
        "repeats": repeats, "max_bytes": max_bytes, "calls": [dict(calls.arguments), calls.needed, dict(calls.told)],
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="gdnspec-capture-") as folder:
        (Path(folder) / "sitecustomize.py").write_text(SITE)
        (Path(folder) / "said").mkdir()
        tools = str(paths.PACKAGE.parent)
        earlier = os.environ.get("PYTHONPATH")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([folder, *([earlier] if earlier else []), tools]),
            "GDNSPEC_CAPTURE": json.dumps(request | {"said": f"{folder}/said"}),
        }
        code = _run(command, environment)
        said = [json.loads(file.read_text()) for file in sorted((Path(folder) / "said").iterdir())]
    made = sorted({file.resolve() for file in recordings(output)} - before)
    raise typer.Exit(_told(said, made, code, chosen, definition_, calls, named=target is not None))


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Runs the program and returns its exit code. Ctrl-C reaches the program too, so it is ignored here until the
    program ends; SIGTERM is passed on."""
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise SpecError(f"{command[0]} cannot be run: {error.strerror or error}") from None
    earlier = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        return process.wait()
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _calls(file: Path) -> int:
    """The sum of a file's weights. Also reads the file of a process that was killed."""
    total = 0
    for line in file.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            total += json.loads(line)["weight"]
    return total


def _told(
    said: list[dict[str, Any]], files: list[Path], code: int, target: str, name: str, read: "Calls", named: bool
) -> int:
    """Prints what was recorded, and returns the exit code. `named`: whether the user named the target."""
    refused = [str(one["refused"]) for one in said if "refused" in one]
    if refused:
        complain(f"gdnspec: {refused[0]}")
        return 2
    for file in files:
        if not file.stat().st_size:
            file.unlink()  # of a process that imported the function but never called it
    files = [file for file in files if file.exists()]
    by_file = {Path(one["out"]).resolve(): one for one in said if "out" in one}
    total, failed = 0, False
    for file in sorted({*files, *by_file}):
        calls, one = _calls(file) if file in files else 0, by_file.get(file, {})
        total += calls
        if calls:
            kept = f", tensors of {one['kept']}" if one.get("kept") else ""
            beside = f"; {one['passed_over']} calls of another stage skipped" if one.get("passed_over") else ""
            say(f"{calls} calls in {file}{kept}{beside}")
        for text in one.get("repeats", []):
            say(f"  {text}")
        for word, reasons in (("calls left out", one.get("unfit", {})), ("tensors left out", one.get("unkept", {}))):
            for reason, count in reasons.items():
                complain(f"{count} {word}: {reason}")
        if one.get("too_large"):
            complain(f"{one['too_large']} tensors left out: more than --max-bytes")
        if one.get("failure"):
            complain(f"gdnspec: {file}: recording ended early: {one['failure']}")
            failed = True
    if failed:
        return code or 1
    missing = next((str(one["missing"]) for one in said if "missing" in one), None)
    if not total and missing:
        return code or _complain_of_missing(target, missing, named)
    if code == 0 and not total:
        complain(f"gdnspec: nothing was recorded: {target} was never called with the inputs of --definition {name}")
        _complain_of_others([one["called"] for one in said if "called" in one], target, read)
        return 1
    # The exit code that a shell gives for a program that a signal ended.
    return 128 - code if code < 0 else code


def _complain_of_missing(target: str, module: str, named: bool) -> int:
    """Prints that the program has no such module, and returns the exit code: 2 for a name that the user gave, 3 for a
    package of the family's own choice, which is not installed or too old."""
    if named:
        complain(f"gdnspec: --target {target!r}: there is no module {module!r}")
        return 2
    install = f"pip install --upgrade {module.partition('.')[0]}"
    complain(f"gdnspec: there is no module {module!r}: {install}, or name another function with --target")
    return 3


def _complain_of_others(processes: list[dict[str, dict[str, int]]], target: str, calls: "Calls") -> None:
    """Prints which functions with similar arguments were called instead, and with which shapes."""
    called: dict[str, Counter[str]] = {}
    for functions in processes:
        for function, kinds in functions.items():
            called.setdefault(function, Counter()).update(kinds)
    if not called:
        complain(f"  no other Python function with these arguments was called: {', '.join(calls.needed)}")
    for function, counts in called.items():
        for kind, times in counts.most_common(KINDS):
            complain(f"  called {times} times: {function} with {kind}")
        if len(counts) > KINDS:
            complain(f"  and {function} with {len(counts) - KINDS} other kinds of arguments")
    others = [function for function in called if function != target]
    if others and target not in called:
        complain(f"  --target records another function: --target {others[0]}")
    elif target in called:
        complain(f"  {calls.stages}")
