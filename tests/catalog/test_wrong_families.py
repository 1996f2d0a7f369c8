"""What can be wrong with a family from outside: an error with the file and the place in it, exit code 2, no traceback.

That there is none, the fixture `gdnspec` asserts of every command.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run
from helpers_toy import SOLUTIONS, STRETCH, SUM, TOY, copied, edit

FAMILY, FRESH = "reference/toy/family.py", "reference/toy/fresh.py"
SUMS, STRETCHES = "reference/toy/running_sum.py", "reference/toy/by_matrix.py"
ABOUT, OF_SUM = "definitions/toy/family.json", f"definitions/toy/{SUM}/definition.json"
OF_STRETCH = f"definitions/toy/{STRETCH}/definition.json"

SOLVED = ("--solution", "toy_python", "--solutions-dir", SOLUTIONS, "--device", "cpu")
CHECK = ("check", SUM, *SOLVED, "--workload", "smoke_1")
LONG = ("check", STRETCH, *SOLVED, "--workload", "conformance_3")
FREEZE = ("workloads", "freeze", SUM, "--workload", "smoke_1", "--device", "cpu")
WRITE = ("workloads", "materialize", SUM, "--workload", "smoke_1")

Row = tuple[tuple[str | Path, ...], str, str, str, str]

CODE: dict[str, Row] = {
    # the command, the file, what stands there once, what takes its place, what is said
    "no Python": (CHECK, FAMILY, "class Painter:", "class Painter", "family.py: line {line}: SyntaxError: expected"),
    "fails to import": (
        CHECK, FAMILY, "import numpy as np", "import no_such_numpy as np",
        "family.py: line {line}: ModuleNotFoundError: No module named 'no_such_numpy' (while importing",
    ),
    "a neighbour fails to import": (CHECK, FRESH, "MOST, LONGEST = 6, 40", "1 / 0", "fresh.py: line {line}: Zero"),
    "ends the process": (
        CHECK, FAMILY, "import numpy as np", "import numpy as np\nraise SystemExit(0)",
        "SystemExit: 0 (while importing family.py)",
    ),
    "no family": (CHECK, FAMILY, "FAMILY = Family(", "Family(", "family.py: it does not define FAMILY"),
    "another FAMILY": (
        CHECK, FAMILY, "FAMILY = Family(Painter, problems, emulators, fresh=Lines, ops=ops)", "FAMILY = 3",
        "family.py: FAMILY has no function 'painter': it is a int",
    ),
    "no emulators": (
        CHECK, FAMILY, "Family(Painter, problems, emulators, fresh=Lines, ops=ops)", "Family(Painter, problems)",
        "missing 1 required positional argument: 'emulators' (while importing family.py)",
    ),
    "emulators that yield nothing": (
        FREEZE, FAMILY, '    yield "element_by_element"', '    return\n    yield "element_by_element"',
        f"family.py: no emulators for {SUM}: budgets follow from the errors of honest emulators",
    ),
    "a painter that cannot be made": (
        CHECK, FAMILY, "        self.definition, self.workload", "        raise OSError(5, 'away')  #",
        f"family.py: line {{line}}: OSError: [Errno 5] away (while drawing the inputs of {SUM})",
    ),
    "a painter that raises": (
        CHECK, FAMILY, "self.definition.shape(tensor, self.scope)", 'self.scope["nowhere"]',
        f"family.py: line {{line}}: KeyError: 'nowhere' (while drawing the inputs of {SUM})",
    ),
    "problems that raise": (
        CHECK, FAMILY, 'float(workload.scalars.get("decay", 0.5))', 'float("small")',
        "ValueError: could not convert string to float: 'small' (while checking the inputs of",
    ),
    "emulators that raise": (
        FREEZE, FAMILY, "call.second(**call.arguments)", "call.second()",
        f"missing 2 required positional arguments: 'x' and 'decay' (while running the emulators of {SUM})",
    ),
    "an emulator of another shape": (
        FREEZE, FAMILY, "call.second(**call.arguments)", "call.second(**call.arguments)[1:]",
        f"family.py: the emulator 'by_matrix' of {SUM} returned y with shape [2, 100] instead of [3, 100]",
    ),
    "an emulator of nothing": (
        FREEZE, FAMILY, "call.second(**call.arguments)", "None",
        "family.py: the emulator 'by_matrix' of toy_running_sum returned a NoneType for y, not a tensor",
    ),
    "fresh lines that raise": (
        ("check", SUM, *SOLVED), FRESH, "raw(3 + MOST)", "raw(3 + MOSTLY)",
        "fresh.py: line {line}: NameError: name 'MOSTLY' is not defined (while drawing fresh lines)",
    ),
    "a fresh line of another definition": (
        ("check", SUM, *SOLVED), FRESH, '"axes": sizes(self.definition, [1] * (1 + count % MOST), {})', '"axes": {}',
        f"family.py: draws a fresh line 'fresh' that is not valid for {SUM}: /axes: axis 'lines' has no value",
    ),
    "a generator of another shape": (
        CHECK, FAMILY, "normal(lines, width)", "normal(lines, width + 1)",
        f"family.py: draws x of {SUM} as bfloat16 [3, 101], not as bfloat16 [3, 100]",
    ),
    "a generator of another type": (
        CHECK, FAMILY, "Array(tensor.dtype, encode(values, tensor.dtype))", 'Array("float64", values)',
        f"family.py: draws x of {SUM} as float64 [3, 100], not as bfloat16 [3, 100]",
    ),
    "a generator of another memory": (
        CHECK, FAMILY, "Array(tensor.dtype, encode(values, tensor.dtype))", "Array(tensor.dtype, values)",
        f"family.py: draws x of {SUM} as bfloat16 held in float64, not in uint16",
    ),
    "a generator of no array": (
        CHECK, FAMILY, "Array(tensor.dtype, encode(values, tensor.dtype))", "encode(values, tensor.dtype)",
        f"family.py: draws x of {SUM} as a ndarray, not a gdnspec.family.Array",
    ),
    "a generator of infinities": (
        CHECK, FAMILY, "encode(values, tensor.dtype)", "encode(values * np.inf, tensor.dtype)",
        f"family.py: draws x of {SUM} with values that are not finite, in workload 'smoke_1'",
    ),
    "the same while they are frozen": (
        FREEZE, FAMILY, "encode(values, tensor.dtype)", "encode(values * np.nan, tensor.dtype)",
        f"family.py: draws x of {SUM} with values that are not finite",
    ),
    "a reference of another shape": (
        CHECK, SUMS, "return y.to(x.dtype)", "return y.to(x.dtype)[1:]",
        "definition.json: /reference: running_sum.py::running_sum returned y with shape [2, 100] instead of [3, 100]",
    ),
    "a reference of another type": (
        CHECK, SUMS, "return y.to(x.dtype)", "return y.float()",
        "definition.json: /reference: running_sum.py::running_sum returned y in torch.float32, but its inputs are in",
    ),
    "a reference of other values": (
        CHECK, SUMS, "return y.to(x.dtype)", "return y.to(x.dtype), total",
        "definition.json: /reference: running_sum.py::running_sum returned 2 values instead of y",
    ),
    "a second reference of another shape": (
        LONG, STRETCHES, "return x * (", "return x[:, :1] * (",
        "/second_reference/function: by_matrix.py::unit_stretch returned y with shape [131, 1] instead of [131, 32]",
    ),
    "a reference that raises": (
        CHECK, SUMS, "decay * total +", "decay * totals +",
        f"running_sum.py: line {{line}}: NameError: name 'totals' is not defined (while computing "
        f"expected values of {SUM} with {SUMS.split('/')[-1]}::running_sum)",
    ),
    "a reference that fails to import": (
        CHECK, SUMS, "from torch import Tensor", "from torch import Tensors",
        "running_sum.py: line {line}: ImportError: cannot import name 'Tensors' from 'torch'",
    ),
    "a reference that is no Python": (
        ("list",), SUMS, "def running_sum(", "def running_sum(:", "running_sum.py: line {line}: not Python: invalid",
    ),
}  # fmt: skip

DATA: dict[str, Row] = {
    "no JSON": (("list",), ABOUT, '"regimes": {', '"regimes" {', "family.json: line {line}"),
    "no list of emulators": (
        ("workloads", "generate", SUM, "--preset", "toy-32", "-o", "-"), ABOUT,
        ',\n  "emulators": {\n    "sums": [\n      "element_by_element",\n      "by_matrix"\n    ]\n  }', "",
        "family.json: /emulators: no list consists of the emulators element_by_element, by_matrix",
    ),
    "a list that lines name": (
        ("validate", "definitions"), ABOUT, '"sums": [', '"sum": [',
        "workloads.jsonl: line 1: /emulators/names: family.json has no list of emulators 'sums' (did you mean 'sum'?)",
    ),
    "an unknown role": (("list",), OF_SUM, '"role": "rows"', '"role": "row"', "definition.json: /axes/1/role: "),
    "two axes with role tokens": (
        ("list",), OF_STRETCH, '"role": "sequences"', '"role": "tokens"',
        "definition.json: /axes/2/role: axis 'points' already has the role tokens",
    ),
    "blocks of an empty sequence": (
        ("list",), OF_STRETCH, '"min(length, 1)"', '"1"',
        "definition.json: /blocks: it must be 0 at length 0, not 1: an empty sequence has no pieces "
        "(such as min(length, 1))",
    ),
    "a pattern that names no size": (
        ("workloads", "generate", SUM, "--preset", "wide-x", "-o", "-"), ABOUT, '"emulators": {',
        '"preset_patterns": [{"pattern": "wide-(?P<width>.)"}], "emulators": {',
        "family.json: /preset_patterns/0: the pattern cannot make a preset of 'wide-x': invalid literal for int()",
    ),
    "a pattern of an unknown axis": (
        ("workloads", "generate", SUM, "--preset", "wide-2", "-o", "-"), ABOUT, '"emulators": {',
        '"preset_patterns": [{"pattern": "wide-(?P<width>.)", "axes": {"width": "2 * size"}}], "emulators": {',
        "family.json: /preset_patterns/0: the pattern cannot make a preset of 'wide-2': ",
    ),
    "a reference that is not there": (
        ("list",), OF_SUM, '"running_sum.py::running_sum"', '"running_sum.py::running_sums"',
        "definition.json: /reference: no function 'running_sums' in running_sum.py (did you mean 'running_sum'?)",
    ),
    "a variant that no manifest declares": (
        ("check", SUM, "--solution", "toy_python:fast", "--solutions-dir", SOLUTIONS), ABOUT, "Running", "Running",
        "solution.json: /variants: no variant 'fast'",
    ),
    "a fault whose text is missing": (
        ("selftest", "toy_decay_of_the_sum"), "tests/known_bad/toy/faults.json",
        '"correct": ["        total = decay * total + x[:, i]"]', '"correct": ["        total += x[:, i]"]',
        "faults.json: /faults/0/edits/0/correct: the text is not in kernel.py of the base 'toy_right'",
    ),
    "a fault whose text stands twice": (
        ("validate", "tests/known_bad"), "tests/known_bad/toy/faults.json",
        '"correct": ["        total = decay * total + x[:, i]"]', '"correct": [""]',
        "faults.json: /faults/0/edits/0/correct: the text occurs 6 times in kernel.py of the base 'toy_right'",
    ),
}  # fmt: skip


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return copied(tmp_path / "toy")


HALF = [
    pytest.param(row, id=what, marks=[pytest.mark.thorough] * (i % 2))
    for rows in (CODE, DATA)
    for i, (what, row) in enumerate(rows.items())
]


@pytest.mark.parametrize("row", HALF)
def test_what_is_wrong_has_its_place(gdnspec: Run, toy: Path, row: Row) -> None:
    command, file, old, new, says = row
    line = 1 + (toy / file).read_text().split(old)[0].count("\n")
    edit(toy / file, old, new)
    done = gdnspec(*command, "--definitions-dir", toy / "definitions", cwd=toy)
    assert done.returncode == 2, done.stdout
    assert says.format(line=line) in done.stderr


def test_drawn_into_a_file_it_is_the_same_error(gdnspec: Run, toy: Path) -> None:
    edit(toy / FAMILY, "encode(values, tensor.dtype)", "encode(values * np.inf, tensor.dtype)")
    done = gdnspec(*WRITE, "--definitions-dir", toy / "definitions", "-o", toy / "out")
    assert done.returncode == 2
    assert "with values that are not finite" in done.stderr
    assert list((toy / "out").iterdir()) == []


def test_a_regime_that_a_definition_cannot_express_is_an_answer(gdnspec: Run, toy: Path, tmp_path: Path) -> None:
    """No fault of the code: the workload is invalid, and others are judged."""
    edit(toy / FAMILY, '        if tensor.name != "x":', '        if self.workload.name == "smoke_1":')
    given = ("--suite", "smoke", "--json", tmp_path / "out.jsonl", "--definitions-dir", toy / "definitions")
    done = gdnspec("check", SUM, *SOLVED, *given)
    assert done.returncode == 1, done.stderr
    status = {r["workload"]: r["status"] for r in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    assert status == {"smoke_0": "PASSED", "smoke_1": "INVALID_WORKLOAD", "smoke_2": "PASSED", "fresh": "PASSED"}


def test_what_is_wrong_is_told_by_the_selftest_as_well(gdnspec: Run, toy: Path) -> None:
    """Another process finds it."""
    edit(toy / SUMS, "decay * total +", "decay * totals +")
    done = gdnspec("selftest", "toy_right", "--jobs", "1", "--definitions-dir", toy / "definitions")
    assert done.returncode == 2
    assert "NameError: name 'totals' is not defined (while computing expected values" in done.stderr


# --- packages with the entry point ------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """An installed package whose entry point names this one: what a process needs to see it."""

    def make(named: str) -> dict[str, str]:
        about = tmp_path / "site" / "toy_ops-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-ops\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[gdnspec.families]\nmine = {named}\n")
        return {"PYTHONPATH": str(tmp_path / "site")}

    return make


def test_an_installed_package_adds_its_families(
    gdnspec: Run, site: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    env = site("toy_ops")
    shutil.copytree(TOY, tmp_path / "site" / "toy_ops", ignore=shutil.ignore_patterns("__pycache__", "solutions"))
    (tmp_path / "site" / "toy_ops" / "__init__.py").touch()
    done = gdnspec("list", env=env)
    assert done.returncode == 0, done.stderr
    assert SUM in done.stdout


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("nowhere_at_all", "the entry point 'mine' of gdnspec.families names 'nowhere_at_all', which is not a package"),
        (
            "nowhere.at_all",
            "the entry point 'mine' of gdnspec.families names 'nowhere.at_all', which cannot be imported: "
            "ModuleNotFoundError",
        ),
        ("json.decoder", "the entry point 'mine' of gdnspec.families names 'json.decoder', which is not a package"),
        (
            "email",
            "email/definitions: contains no family (the entry point 'mine' of gdnspec.families needs a family here",
        ),
    ],
)
def test_an_entry_point_that_names_no_families_is_told(
    gdnspec: Run, site: Callable[[str], dict[str, str]], named: str, says: str
) -> None:
    done = gdnspec("list", env=site(named))
    assert done.returncode == 2
    assert says in done.stderr
