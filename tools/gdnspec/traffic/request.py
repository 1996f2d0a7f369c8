"""What a log says of one request."""

from typing import NamedTuple


class Request(NamedTuple):
    """`arrival` in nanoseconds since the log's first request; lengths in tokens. `blocks` names the prompt's leading
    blocks by content, for a cache of prefixes: two requests that agree in the first n have the same first n blocks."""

    arrival: int
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()
