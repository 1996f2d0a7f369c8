"""The wrong kernels that the judge is tested with, as a table."""

from collections import Counter

from gdnspec import paths
from gdnspec.catalog.faults import rejections
from gdnspec.model.fault import FaultTable, KnownBad
from gdnspec.model.loading import load

from docs.page import Page, code, table


def pages() -> list[Page]:
    counts = Counter(one.kind for one in rejections().values())
    text = (
        "# The wrong kernels\n\nThis table is made from the files in `tests/known_bad`. Each row is a kernel that is "
        f"wrong in one thing ({counts['wrong']} of them) or that cheats ({counts['cheat']}). "
        "[How they are run](../../tests/known_bad/README.md).\n\n"
        "`make matrix` runs every one of them on every workload. It takes an hour, and writes `build/kill_matrix.md`, "
        "which says which workload rejects which kernel.\n\n"
    )
    for file in sorted(paths.known_bad_dir().glob("*/faults.json")):
        rows = [
            (code(fault.name), fault.fault, fault.source, ", ".join(map(code, fault.statuses)))
            for fault in load(FaultTable, file).faults
        ]
        text += f"## Faults of {file.parent.name}\n\n"
        text += table(["name", "what is wrong", "source", "status"], rows)
    files = sorted(paths.known_bad_dir().glob("*/*/known_bad.json"))
    text += "## Whole solutions\n\nCheats, and faults that no short edit can express.\n\n"
    text += table(
        ["name", "kind", "what is wrong", "status"],
        [
            (code(file.parent.name), bad.kind, bad.fault, ", ".join(map(code, bad.statuses)))
            for file in files
            for bad in [load(KnownBad, file)]
        ],
    )
    return [Page("explanation/faults.md", text)]
