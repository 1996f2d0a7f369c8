"""One request of a log."""

from typing import NamedTuple


class Request(NamedTuple):
    """A request. `arrival`: nanoseconds since the log's first request. `prompt`, `output`: tokens. `blocks`: identities
    of the prompt's first blocks, for a prefix cache. Prompts with the same first n identities share n blocks."""

    arrival: int
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()
