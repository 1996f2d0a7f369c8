"""Write solutions as a package for the `kernels` library of Hugging Face: DIR/build/torch-cpu and torch-cuda.

Both are variants without compiled code, which the library calls noarch: Python and Triton are loaded as they are, and a
CUDA source is built with nvcc on its first call.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from packaging.requirements import Requirement

from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import Solution
from gdnspec.interop.calling import module
from gdnspec.model.definition import Definition
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.solution import Entry

BACKENDS = ("cpu", "cuda")
# The packages that metadata.json can name, by their names there; what is empty comes with every variant for torch.
DEPENDS = {
    "torch": "", "triton": "", "ninja": "", "apache-tvm-ffi": "tvm-ffi", "einops": "einops", "helion": "helion",
}  # fmt: skip
README = """\
---
library_name: kernels
license: {license}
---

# {name}

Kernels that gdnspec checks, as a package for the `kernels` library:

```python
from pathlib import Path
import kernels

package = kernels.get_local_kernel(Path("{folder}"))
```

| function | solution | backends | it serves |
|---|---|---|---|
{rows}

A function takes the inputs of its definition in their order, and returns its outputs. Optional inputs may be None.
"""


def write(chosen: list[Solution], out: Path, force: bool, left_out: Callable[[str], None]) -> list[str]:
    """Writes the package, and returns its variants. Of two solutions that serve a definition, the first gets the
    function. `left_out` hears of definitions that a function cannot serve. Raises `SpecError`."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not force:
        raise SpecError([Problem(out, "exists already", hint="--force overwrites it")])
    name = _name(out)
    depends = {solution.name: _depends(solution) for solution in chosen}
    texts = {solution.name: _functions(solution, left_out) for solution in chosen}
    rows: dict[tuple[str, str], list[str]] = {}  # a function and its solution: backends
    written = []
    for backend in BACKENDS:
        serving = [solution for solution in chosen if backend in backends(solution)]
        if not serving:
            continue
        variant = out / "build" / f"torch-{backend}"
        shutil.rmtree(variant, ignore_errors=True)
        variant.mkdir(parents=True)
        functions: dict[str, str] = {}
        for solution in serving:
            text, served = texts[solution.name]
            _write_solution(variant / _module(solution), solution, text)
            for item in served:
                if functions.setdefault(item.name, _module(solution)) == _module(solution):
                    rows.setdefault((item.name, solution.name), []).append(backend)
        (variant / "__init__.py").write_text(_package(name, functions, map(_module, serving)), encoding="utf-8")
        needs = sorted({one for solution in serving for one in depends[solution.name]})
        (variant / "metadata.json").write_text(_metadata(name, backend, serving, needs), encoding="utf-8")
        written.append(variant.name)
    manifests = {solution.name: solution.manifest for solution in chosen}
    shown = [
        f"| `{function}` | {solution} | {', '.join(on)} | {_conditions(manifests[solution].entries[function])} |"
        for (function, solution), on in rows.items()
    ]
    page = README.format(name=name, folder=out.name, license=_license(chosen).lower(), rows="\n".join(shown))
    (out / "README.md").write_text(page, encoding="utf-8")
    return written


def backends(solution: Solution) -> tuple[str, ...]:
    """Where a solution can be called. On a CPU, Triton has an interpreter that needs corrections of gdnspec."""
    device = solution.manifest.requires.device
    if solution.manifest.language != "python" and device == "any":
        return ("cuda",)
    return BACKENDS if device == "any" else (device,)


def _name(out: Path) -> str:
    """The library takes small letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", out.resolve().name.lower()).strip("-")
    if not re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", name):
        hint = "at least two letters or digits, the first a letter"
        raise SpecError([Problem(out, "gives no valid name of a kernel", hint=hint)])
    return name


def _depends(solution: Solution) -> list[str]:
    manifest = solution.manifest
    needed = [Requirement(line).name.lower() for line in manifest.requires.packages]
    for package in needed:
        if package not in DEPENDS:
            known = ", ".join(DEPENDS)
            raise SpecError(
                f"{solution.name} needs the package {package}, which metadata.json cannot name: it has {known}"
            )
    return [DEPENDS[package] for package in needed if DEPENDS[package]]


def _functions(solution: Solution, left_out: Callable[[str], None]) -> tuple[str, list[Definition]]:
    """The module with the functions of a solution, and the definitions that have one."""
    served, why = [], ""
    for name in solution.manifest.entries:
        try:
            module(solution, [definition(name).definition])
            served.append(definition(name).definition)
        except SpecError as error:
            why = str(error)
            left_out(f"left out of {solution.name}: {why}")
    if not served:
        raise SpecError(f"{solution.name} serves no definition that a function can: {why}")
    return module(solution, served, folder="sources"), served


def _module(solution: Solution) -> str:
    return solution.name.replace(":", "_")


def _write_solution(folder: Path, solution: Solution, text: str) -> None:
    for source in solution.manifest.sources:
        place = folder / "sources" / source
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((solution.folder / source).read_bytes())
    (folder / "__init__.py").write_text(text, encoding="utf-8")


def _package(name: str, functions: dict[str, str], modules: Iterable[str]) -> str:
    lines = [f'"""{name}: kernels from gdnspec."""', "", f"from . import {', '.join(modules)}"]
    lines += [f"from .{place} import {function}" for function, place in functions.items()]
    return "\n".join([*lines, "", f"__all__ = {[*functions]!r}", ""])


def _conditions(entry: Entry) -> str:
    return ", ".join(entry.supports).replace("|", " ") or "everything"


def _metadata(name: str, backend: str, serving: list[Solution], needs: list[str]) -> str:
    least = [solution.manifest.requires.compute_capability for solution in serving]
    archs = min((tuple(map(int, one.split("."))) for one in least if one is not None), default=None)
    about: dict[str, object] = {"type": backend}
    if backend == "cuda" and archs is not None and None not in least:
        about["archs"] = [f"{archs[0]}.{archs[1]}+PTX"]  # that and all newer ones
    digest = hashlib.sha256()
    for solution in serving:
        for source in solution.manifest.sources:
            digest.update((solution.folder / source).read_bytes())
    metadata = {
        "id": f"_{name.replace('-', '_')}_{backend}_{digest.hexdigest()[:12]}", "name": name, "version": 1,
        "license": _license(serving), "python-depends": needs, "backend": about,
    }  # fmt: skip
    return json.dumps(metadata, indent=2) + "\n"


def _license(chosen: list[Solution]) -> str:
    return " AND ".join(dict.fromkeys(solution.manifest.license for solution in chosen))
