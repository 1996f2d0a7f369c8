"""`--executor ray`: spreads tasks over the devices of a Ray cluster, with one worker per device.

RAY_ADDRESS names the cluster; without it, gdnspec starts one on this machine and ends it afterwards. `ray_worker` says
what every machine needs. If a worker is lost, another one runs its task again.
"""

import os
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from gdnspec.bench.executor import Measured, NothingToRunOn, Settings, Task, Warn, Watch
from gdnspec.bench.measure import untimed
from gdnspec.bench.ray_worker import Said, Worker, order
from gdnspec.build.machine import Device
from gdnspec.check.plan import Job, judge_hash
from gdnspec.model.errors import NotInstalled, SpecError
from gdnspec.model.trace import Trace

TRIES = 3  # lost workers allowed for one task, and in a row before any starts
PATIENCE = 30.0  # seconds before the message that no device is free, and between looks at the cluster
ANSWER = 30.0  # seconds for the cluster to say which of its machines are alive
FAREWELL = 10.0  # seconds for idle workers to end their children
OBJECTS = 100 << 20  # bytes for objects in a cluster of our own: traces are small


def imported() -> Any:
    """The module ray. Raises `NotInstalled` if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise NotInstalled(f"--executor ray needs Ray ({error}): pip install 'gdnspec[ray]'") from None
    return ray


def spread(tasks: list[Task], settings: Settings, watch: Watch, warn: Warn) -> Measured:
    """Yields the traces of each task as they come. Raises `SpecError` if a worker has other sources, and
    `NothingToRunOn` if the cluster has no device of the kind."""
    with _cluster(imported()) as ray:
        resource = "GPU" if settings.device == "cuda" else "CPU"
        count = min(len(tasks), int(ray.cluster_resources().get(resource, 0)))
        if count == 0:
            raise NothingToRunOn(f"the Ray cluster has no {resource}: see ray status")
        crew = _Crew(ray, settings, warn)
        try:
            yield from _run(crew, count, tasks, settings, watch)
        finally:
            crew.dismiss()


@dataclass(eq=False)
class _Member:
    """A worker, and its device once it has started."""

    actor: Any
    device: Device | None = None


def _run(crew: "_Crew", count: int, tasks: list[Task], settings: Settings, watch: Watch) -> Measured:
    waiting, losses, unstarted = deque(tasks), Counter[Task](), 0
    for _ in range(count):
        crew.hire()
    left = len(tasks)
    while left:
        while waiting and crew.idle:
            task = waiting.popleft()
            watch.start(task.job.solution.name, task.job.workload.name)
            crew.give(task)
        member, done, said = crew.next()
        if said is None:
            crew.hire()
            if done is None:
                unstarted += 1
                if unstarted == TRIES:
                    raise SpecError(f"{TRIES} Ray workers in a row were lost before they started: see ray status")
                continue
            losses[done] += 1
            if losses[done] < TRIES:
                waiting.appendleft(done)
                continue
            traces = [_lost(done.job, member, settings)]
        elif done is None:
            unstarted = 0
            continue
        else:
            traces = [Trace.model_validate_json(trace) for trace in said["traces"]]
        left -= 1
        assert done is not None
        yield done, traces


def _lost(job: Job, member: _Member, settings: Settings) -> Trace:
    return untimed(
        job, member.device or job.device, settings.seed, settings.command, "RUNTIME_ERROR",
        f"its worker was lost {TRIES} times",
    )  # fmt: skip


@dataclass(eq=False)
class _Crew:
    """The workers: starting, busy or idle. `lost`: the cluster does not answer, so nothing else is sent to it."""

    ray: Any
    settings: Settings
    warn: Warn
    idle: list[_Member] = field(default_factory=list)
    _busy: dict[Any, tuple[_Member, Task | None]] = field(
        default_factory=dict
    )  # by their pending answer; None: it is starting
    _told: bool = False
    lost: bool = False

    def hire(self) -> None:
        """Starts one more worker. It gets a device and then work as soon as one is free."""
        on_gpu = self.settings.device == "cuda"
        needs = {"num_gpus": 1, "num_cpus": 0} if on_gpu else {"num_cpus": 1}
        member = _Member(self.ray.remote(**needs, max_restarts=0)(Worker).remote())
        self._busy[member.actor.start.remote(asdict(self.settings), judge_hash())] = (member, None)

    def give(self, task: Task) -> None:
        member = self.idle.pop()
        self._busy[member.actor.measure.remote(order(task))] = (member, task)

    def next(self) -> tuple[_Member, Task | None, Said | None]:
        """Waits for a worker. Returns it, its task (None if it has just started), and its answer (None if it is lost).
        Raises `SpecError` if it refuses or cannot be created."""
        while not (ready := self._ready()):
            self._require_cluster()
            if not self._told and not self.idle and all(task is None for _, task in self._busy.values()):
                self._told = True
                self.warn("no device of the Ray cluster is free yet; waiting (see ray status)")
        member, task = self._busy.pop(ready[0])
        errors = self.ray.exceptions
        try:
            said: Said = self.ray.get(ready[0])
        except errors.RayTaskError:
            raise  # an error of the judge itself
        except errors.RayError as error:
            if getattr(error, "actor_init_failed", False):
                raise SpecError(f"cannot create a Ray worker: {_last_line(error)}") from None
            self._kill(member)  # it may still live out of reach, and would keep the device
            return member, task, None
        if "refused" in said:
            raise SpecError(f"a Ray worker refuses: {said['refused']} (every machine needs the same checkout)")
        if task is None:
            member.device = _device(said["device"])
        self.idle.append(member)
        return member, task, said

    def _ready(self) -> list[Any]:
        """An answer of a worker, if one comes within `PATIENCE`. Raises `SpecError` if the daemon is gone."""
        try:
            found: list[Any] = self.ray.wait(list(self._busy), num_returns=1, timeout=PATIENCE)[0]
        except (self.ray.exceptions.RayError, ConnectionError) as error:
            raise self._gone(_last_line(error)) from None
        return found

    def _require_cluster(self) -> None:
        """Raises `SpecError` if the daemon is gone: its workers never answer then, and Ray would wait forever."""
        said: list[Any] = []

        def ask() -> None:
            try:
                said.append([node for node in self.ray.nodes() if node.get("Alive", node.get("alive"))])
            except Exception as error:  # Ray raises different errors if nobody answers
                said.append(error)

        asking = threading.Thread(target=ask, daemon=True)  # Ray may never return
        asking.start()
        asking.join(ANSWER)
        if not said:
            raise self._gone(f"no answer within {ANSWER:g} s")
        if isinstance(said[0], Exception):
            raise self._gone(_last_line(said[0]))
        if not said[0]:
            raise self._gone("none of its machines is alive")

    def _gone(self, why: str) -> SpecError:
        self.lost = True
        return SpecError(f"the Ray daemon is lost ({why}): see ray status, and start the cluster again")

    def dismiss(self) -> None:
        """Tells idle workers to end their children. Kills busy ones, which ends their children too."""
        if self.lost:
            return  # nobody would answer, and each message would wait
        ends = [member.actor.end.remote() for member in self.idle]
        if ends:
            self.ray.wait(ends, num_returns=len(ends), timeout=FAREWELL)
        for member in (*self.idle, *(member for member, _ in self._busy.values())):
            self._kill(member)

    def _kill(self, member: _Member) -> None:
        self.ray.kill(member.actor, no_restart=True)


def _device(said: Said) -> Device:
    capability = said["capability"]
    return Device(said["kind"], said["name"], None if capability is None else tuple(capability))


def _last_line(error: Exception) -> str:
    return ([line for line in str(error).splitlines() if line.strip()] or ["no details"])[-1]


@contextmanager
def _cluster(ray: Any) -> Iterator[Any]:
    """A connection to the cluster; what was started for it ends with it. Raises `SpecError`."""
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray sends usage statistics
    address = os.environ.get("RAY_ADDRESS")
    where: dict[str, Any] = (
        {"address": "auto"}
        if address
        else {"address": "local", "include_dashboard": False, "object_store_memory": OBJECTS}
    )
    on_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        _reach(address)
        ray.init(**where, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        ray.shutdown()
        raise SpecError(f"no Ray cluster at {address or 'this machine'}: {_last_line(error)}") from None
    if on_main:
        signal.signal(signal.SIGTERM, before)  # Ray's handler would end the command before results are saved
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str | None) -> None:
    """Checks that somebody listens at the address: otherwise Ray would try for a minute and end this process. Raises
    `OSError`."""
    host, _, port = (address or "").rpartition(":")
    if port.isdigit() and "://" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=FAREWELL).close()
