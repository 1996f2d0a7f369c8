"""Workloads that nobody has seen: sizes and values from the seed of each check."""

from typing import Any

from gdnspec.family import Published, Stream, Workload, sizes

NAME = "fresh"
MOST, LONGEST = 6, 40  # rows or stretches, and points of a stretch


class Lines:
    """The fresh line of one definition."""

    def __init__(self, published: Published) -> None:
        self.definition, self.presets = published.definition, sorted(published.presets)

    def names(self, device: str) -> tuple[str, ...]:
        return (NAME,)

    def draw(self, name: str, seed: int, device: str) -> Workload:
        first, second, count, *lengths = (int(x >> 40) for x in Stream(seed, self.definition.name).raw(3 + MOST))
        line: dict[str, Any] = {"name": name, "suite": "fresh", "regime": "even", "seed": first}
        line["preset"] = self.presets[second % len(self.presets)]
        if self.definition.conventions.packing != "ragged":
            return Workload.model_validate({**line, "axes": sizes(self.definition, [1] * (1 + count % MOST), {})})
        drawn = [length % LONGEST for length in lengths[: 1 + count % MOST]]
        axes = sizes(self.definition, drawn, {})
        return Workload.model_validate({**line, "axes": axes, "sequence_lengths": drawn})

    def narrower(self, line: Workload) -> Workload | None:
        return None
