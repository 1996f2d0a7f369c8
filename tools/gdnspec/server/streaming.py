"""A job's events as text/event-stream. Each has its number, so that a reader can continue after an interruption."""

import asyncio
import time
from collections.abc import AsyncIterator

from fastapi.concurrency import run_in_threadpool

from gdnspec.server.api import Event
from gdnspec.server.database import StorageError
from gdnspec.server.jobs import Jobs
from gdnspec.server.limits import Streams

LOOK = 0.3  # seconds between queries
SILENCE = 10.0  # seconds after which a comment shows that the stream is alive


async def stream(jobs: Jobs, streams: Streams, user: str, job: str, after: int) -> AsyncIterator[str]:
    """The events after the number `after`, until the job ends. If the database cannot be read, the stream ends early,
    and the reader connects again."""
    with streams.one(user):
        spoken = time.monotonic()
        yield "retry: 1000\n\n"
        while True:
            try:
                found, ended = await run_in_threadpool(_look, jobs, user, job, after)
            except StorageError:
                return
            for event in found:
                yield _shown(event)
                after, spoken = event.id, time.monotonic()
                if event.kind == "ended":
                    return
            if ended and not found:
                return  # the reader has already seen the last event
            if time.monotonic() - spoken > SILENCE:
                yield ": still here\n\n"
                spoken = time.monotonic()
            if not found:
                await asyncio.sleep(LOOK)


def _look(jobs: Jobs, user: str, job: str, after: int) -> tuple[list[Event], bool]:
    """New events, and whether the job had ended before they were read."""
    now = jobs.get(user, job)
    return jobs.events(job, after), now is None or now.ended is not None


def _shown(event: Event) -> str:
    return f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"
