"""One page per definition: its contract as tables, its equations, and its reference in code."""

import ast
import re
from collections import Counter
from functools import cache

from gdnspec.catalog.definitions import Found, definitions
from gdnspec.catalog.families import families
from gdnspec.catalog.solutions import Solution, solutions
from gdnspec.catalog.workloads import by_name
from gdnspec.model.definition import Definition
from gdnspec.model.elements import DerivedAxis, Tensor, VarAxis

from docs.page import Page, code, shape, table

CONVENTIONS = re.compile(r"^## (\d+)\. Conventions$", re.MULTILINE)
FIRST_SENTENCE_END = re.compile(r"(?<=\.) ")
SECTION = re.compile(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)


def pages() -> list[Page]:
    return [
        Page(f"reference/definitions/{name}.md", _page(found), base=f"definitions/{found.family.name}/README.md")
        for name, found in definitions().items()
    ]


def overview() -> str:
    """A table of all definitions for each family. Its links start from definitions/."""
    parts = ["## All definitions\n\n"]
    for family in families().values():
        mine = [found.definition for found in definitions().values() if found.family.name == family.name]
        rows = [
            (
                f"[{d.name}](../docs/reference/definitions/{d.name}.md)",
                d.stage,
                FIRST_SENTENCE_END.split(d.description)[0],
            )
            for d in mine
        ]
        parts.append(f"### {family.name}\n\n{table(['definition', 'stage', 'what it computes'], rows)}")
    return "".join(parts)


def _page(found: Found) -> str:
    d = found.definition
    named, equations = section(found)
    parts = [
        f"# {d.name}\n\n{d.description}\n\n",
        f"Stage: {d.stage}. Version: {d.version}. Family: [{d.family}](README.md).\n\n",
        "## Equations\n\n" + (f"This section is about {named}.\n\n" if named != d.name else "") + equations,
        f"\n\n## Conventions\n\n[What each value means]({_meaning(found)}).\n\n",
        table(["choice", "value"], [(key, code(value)) for key, value in d.conventions.model_dump().items()]),
        "## Axes\n\n",
        table(["axis", "role", "kind", "bound by", "meaning"], [_axis(axis) for axis in d.axes]),
        "## Inputs\n\n" + _tensors(d.inputs),
        "## Outputs\n\n" + _tensors(d.outputs),
        _updated(d),
        "## Constraints\n\n",
        table(["must hold", "message"], [(code(c.expression), c.message) for c in d.constraints]),
        "## Symmetries\n\nExact changes of the inputs, whose effect on the outputs is known.\n\n",
        table(["symmetry", "of", "what it does"], [_symmetry(d, i) for i in range(len(d.symmetries))]),
        f"## Cost\n\nOperations: {code(d.flops)}. Bytes: every input once and every output once.\n\n",
        _served(d.name),
        _suites(found),
        "## Reference\n\n" + _reference(found),
    ]
    return "".join(parts)


def section(found: Found) -> tuple[str, str]:
    """The section of the family's page that is about this definition: its heading, and its text. Raises `ValueError`
    if none is."""
    name = found.definition.name
    best, words = "", ("", "")
    for heading, body in SECTION.findall((found.family.folder / "README.md").read_text(encoding="utf-8")):
        for named in re.findall(r"\w+", heading):
            if (name == named or name.startswith(f"{named}_")) and len(named) > len(best):
                best, words = named, (heading, body.strip())
    if not best:
        raise ValueError(f"{found.family.folder}/README.md has no section `### {name}` with the equations")
    return words


def _meaning(found: Found) -> str:
    """The link to the conventions in words: on the page of the family, or on the first page that has them."""
    for family in (found.family, *families().values()):
        heading = CONVENTIONS.search((family.folder / "README.md").read_text(encoding="utf-8"))
        if heading:
            return f"../{family.name}/README.md#{heading[1]}-conventions"
    raise ValueError("no page of a family has a section `## N. Conventions`")


def _axis(axis: object) -> tuple[object, ...]:
    how = "preset"
    if isinstance(axis, VarAxis):
        how = f"workload, at least {axis.minimum}"
    elif isinstance(axis, DerivedAxis):
        how = code(axis.expression)
    role, kind, name, words = (getattr(axis, key) for key in ("role", "kind", "name", "description"))
    parts = getattr(axis, "parts", None) or []
    if parts:
        words += "; side by side: " + ", ".join(f"{part.name} {shape(part.shape)}" for part in parts)
    return code(name), role or "", kind, how, words


def _tensors(tensors: list[Tensor]) -> str:
    return table(["tensor", "shape", "type", "values", "meaning"], [_tensor(tensor) for tensor in tensors])


def _tensor(t: Tensor) -> tuple[object, ...]:
    values = []
    if t.optional:
        values.append(f"optional: {code(t.default)}")
    if t.domain is not None:
        low, high = ("" if bound is None else f"{bound:g}" for bound in t.domain)
        values.append(f"{low or '-inf'} to {high or 'inf'}")
    if t.indexes is not None:
        values.append(f"slots of {code(t.indexes)}{', written' if t.writes else ''}")
    if t.mutates:
        values.append("updated in place")
    if t.strides is not None:
        values.append(f"{t.strides} may stand apart")
    words = t.description
    if t.parts:
        words += "; side by side: " + ", ".join(f"{part.name} {shape(part.shape)}" for part in t.parts)
    return code(t.name), shape(t.shape), t.dtype, "; ".join(values), words


def _updated(d: Definition) -> str:
    names = [code(tensor.name) for tensor in d.inputs if tensor.mutates]
    return f"Updated in place, and judged as outputs are: {', '.join(names)}.\n\n" if names else ""


def _symmetry(d: Definition, place: int) -> tuple[object, ...]:
    symmetry = d.symmetries[place]
    but = "" if symmetry.exact else " It changes the order of sums, so it holds within the budget."
    return code(symmetry.name), ", ".join(map(code, symmetry.dimension)), symmetry.description + but


def _served(name: str) -> str:
    serving = {one.manifest.name: one for one in _solutions() if name in one.manifest.entries}
    links = [f"[{one}](../../{item.folder.parent.name}/{one}/README.md)" for one, item in serving.items()]
    return f"## Solutions\n\n{', '.join(links) or 'None yet.'}\n\n"


@cache
def _solutions() -> list[Solution]:
    """Read once for all pages."""
    return [*solutions()[0].values()]


def _suites(found: Found) -> str:
    counts = Counter(line.suite for line in by_name(found).values())
    return "## Workloads\n\n" + table(["suite", "workloads"], counts.items())


def _reference(found: Found) -> str:
    d = found.definition
    text = f"`reference/{found.family.name}/{d.reference.split('::')[0]}`:\n\n"
    text += f"```python\n{_source(found, d.reference)}\n```\n\n"
    if d.second_reference is not None:
        second = d.second_reference
        text += f"Above {second.above_tokens} tokens the judge uses `{second.function}`, a derivation of its own.\n"
    return text


def _source(found: Found, named: str) -> str:
    """The text of `file.py::function`, without running it."""
    file, function = named.split("::")
    text = (found.family.reference / file).read_text(encoding="utf-8")
    node = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == function)
    return ast.get_source_segment(text, node) or ""
