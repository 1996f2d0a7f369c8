"""Find what a solution's sources use outside of their task, by reading them without running them.

The audit shows a reviewer where to look. It protects nothing: Python code can hide anything from a reader. The
protection is the sandbox in which the code runs.
"""

from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement

from gdnspec.model.solution import Manifest
from gdnspec.submission.cuda_audit import audit_cuda
from gdnspec.submission.finding import Finding
from gdnspec.submission.python_audit import audit_python

# Characters that make a text look like another one: marks of direction, and characters without width.
HIDDEN = {
    *map(
        chr,
        (0xAD, 0x61C, 0x180E, 0x2060, 0xFEFF, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A)),
    )
}
PYTHON, CUDA, WORDS = (".py",), (".cu", ".cuh", ".h", ".hpp"), (".md", ".txt", ".json")


def audited(manifest: Manifest, files: Mapping[str, bytes]) -> list[Finding]:
    """All findings in a solution's files, by place. The code may import modules with the names of required packages."""
    required = (Requirement(text).name for text in manifest.requires.packages)
    return audit(files, frozenset(name.replace("-", "_").lower() for name in required))


def audit(files: Mapping[str, bytes], packages: frozenset[str] = frozenset()) -> list[Finding]:
    """As `audited`, for files that may import `packages`."""
    found: list[Finding] = []
    for name, data in files.items():
        suffix = Path(name).suffix
        if suffix not in (*PYTHON, *CUDA, *WORDS):
            found.append(
                Finding(
                    name, 1, "native code", f"{suffix or 'no suffix'}: not a source file that the audit can read", True
                )
            )
            continue
        try:
            text = data.decode()
        except UnicodeDecodeError:
            found.append(Finding(name, 1, "hidden text", "not UTF-8, so the audit cannot read it", True))
            continue
        found += _hidden(name, text)
        if suffix in PYTHON:
            found += audit_python(name, data, frozenset(Path(n).stem for n in files if n.endswith(PYTHON)) | packages)
        elif suffix in CUDA:
            found += audit_cuda(name, text, frozenset(files))
    return sorted(set(found))


def _hidden(name: str, text: str) -> list[Finding]:
    return [
        Finding(name, number, "hidden text", f"U+{ord(c):04X} makes the line look different from what it does", True)
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1)
        for c in sorted({*line} & HIDDEN | {c for c in line if ord(c) < 32 and c not in "\t\r\f"})
    ]
