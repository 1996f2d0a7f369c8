"""The names of devices, as traces have them."""

import platform


def slug(name: str) -> str:
    """`nvidia-h200`: the name of a trace file."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def cpu_name() -> str:
    """The name of this machine's processor, as people write it: `x86-64`, which is also its slug."""
    return (platform.processor() or platform.machine()).replace("_", "-")
