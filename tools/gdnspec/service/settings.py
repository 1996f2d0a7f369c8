"""How a service was set up."""

import sys
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True)
class Settings:
    """`data`: the folder that holds everything. `devices`: one slot each; what CUDA_VISIBLE_DEVICES is to be, empty on
    a CPU. `lease`: seconds after which a job whose server is silent is anybody's. `rate`: requests of a user a minute,
    `burst` at once. `queue_limit`: jobs of a user that wait or run; `streams`: of events that a user may follow at a
    time. `upload_limit`: bytes, to come within `upload_seconds`. `minutes`: that a job may take; `timeout`: seconds of
    one call. `keep_bundles`: days after its job's end. `trusted`: run bundles where this kernel cannot isolate them in
    full. `runner`: the process of a job."""

    data: Path
    device: str = "cpu"
    devices: tuple[str, ...] = ("",)
    lease: float = 10.0
    rate: float = 600.0
    burst: int = 60
    queue_limit: int = 8
    streams: int = 16
    upload_limit: int = 64 * MIB
    upload_seconds: float = 120.0
    minutes: float = 60.0
    timeout: float = 120.0
    trusted: bool = False
    keep_bundles: float = 30.0
    # -P: a folder that a job writes to is no place to import from.
    runner: tuple[str, ...] = (sys.executable, "-P", "-m", "gdnspec.service.job")

    @property
    def database(self) -> Path:
        return self.data / "service.db"

    @property
    def work(self) -> Path:
        """Of running jobs and of pages being made; nothing in it is needed after a restart."""
        return self.data / "work"
