"""The settings of a server."""

import sys
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True)
class Settings:
    """The settings of a server.

    Args:
        data: The folder that holds everything.
        devices: The value of CUDA_VISIBLE_DEVICES for each slot; empty on a CPU.
        lease: Seconds after which another server may take a job whose server is silent.
        rate, burst: Requests of a user per minute, and at once.
        queue_limit: Jobs of a user that may wait or run.
        streams: Streams of events that a user may follow at a time.
        upload_limit, upload_seconds: Most bytes of a bundle, and the time in which it must arrive.
        uploads, pages: Uploads and pages that a user may have in progress.
        connections, address_connections: Open connections in all, and from one address.
        request_seconds: Time in which a request must arrive, and in which a client must read a part of its answer.
        minutes, timeout: Most minutes of a job, and most seconds of one call.
        keep_bundles: Days that a bundle is kept after the end of its job.
        trusted: Run bundles even if this kernel cannot isolate them fully.
        runner: The command of a job's process.
    """

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
    # -P: Python must not import from the working folder, to which a job writes.
    runner: tuple[str, ...] = (sys.executable, "-P", "-m", "gdnspec.server.job")

    @property
    def database(self) -> Path:
        return self.data / "service.db"

    @property
    def work(self) -> Path:
        """The folder for running jobs and for pages in progress. Nothing in it is needed after a restart."""
        return self.data / "work"
