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
    time. `upload_limit`: bytes, to come within `upload_seconds`; `uploads`: of a user that may be on their way at a
    time. `pages`: that a user may wait for at a time. `connections`: open ones in all, `address_connections` of one
    address; `request_seconds`: in which a request must have come, and within which whoever is sent an answer must have
    read some of it. `minutes`: that a job may take; `timeout`: seconds of one call. `keep_bundles`: days after its
    job's end. `trusted`: run bundles where this kernel cannot isolate them in full. `runner`: the process of a job."""

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
    uploads: int = 4
    pages: int = 4
    connections: int = 1000
    address_connections: int = 256
    request_seconds: float = 10.0
    minutes: float = 60.0
    timeout: float = 120.0
    trusted: bool = False
    keep_bundles: float = 30.0
    # -P: a folder that a job writes to is no place to import from.
    runner: tuple[str, ...] = (sys.executable, "-P", "-m", "gdnspec.server.job")

    @property
    def database(self) -> Path:
        return self.data / "service.db"

    @property
    def work(self) -> Path:
        """Of running jobs and of pages being made; nothing in it is needed after a restart."""
        return self.data / "work"
