"""Kernel limits for each process of a confined child."""

import resource
from pathlib import Path
from typing import Any

DESCRIPTORS = 4096
THREADS = 4096


def limit(limits: dict[str, Any], device: str, alone: bool) -> None:
    """Sets the limits for good. `limits`: bytes of `memory`, and of one `file`. `alone`: other processes do not
    count."""
    others = 0 if alone else int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits["file"],
        resource.RLIMIT_NOFILE: DESCRIPTORS,
        resource.RLIMIT_NPROC: THREADS + others,
    }
    if device == "cpu":
        # Not the address space: libraries reserve far more than they use, and CUDA hundreds of gigabytes.
        wanted[resource.RLIMIT_DATA] = limits["memory"]
    for which, value in wanted.items():
        hard = resource.getrlimit(which)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (least, least))
