"""What the scheduler of sessions needs from a family: which tensor of a definition has which role, how the tensors of a
call are made of tokens, and the recurrence over tokens that is the truth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from gdnspec.inputs.contract import Emulated

# The name, among the tensors of tokens, of what the convolution made of them.
MIXED = "mixed"


@dataclass(frozen=True)
class Source:
    """The definition whose generators draw a request's tokens, one row or sequence of them. `tokens`: its inputs with a
    value for each token. `weights`: those that all tokens share. `scalars`: of the call that is drawn."""

    definition: str
    tokens: tuple[str, ...]
    weights: tuple[str, ...]
    scalars: Mapping[str, bool | int | float]


class Memory(NamedTuple):
    """What a request remembers of its tokens, in float64: the recurrent state, and the convolution's or None. None as a
    whole means that there was no token."""

    state: "torch.Tensor"
    past: "torch.Tensor | None"


@dataclass(frozen=True)
class SessionWords:
    """How the definitions of a family serve the calls of a session. Tokens are tensors by name, [tokens, ..].

    - `roles`: for each kind of call, the input or output that has a role: `before` and `after` (states going in and
    coming out), `kept` (states on the way), `interval`, `starts` (tokens before the call), `pool`, `read` and `write`
    (slots), `steps` (the buffer of states that are set aside), `counts` (tokens of each row), `parents`, `accepted`,
    `flags` (whether a state is there), `output`.
    - `sources`: what draws tokens, with a convolution before the rule or without.
    - `inputs`: the tensors of a call by name, from its tokens and the weights: kind, tokens, weights, the axes of the
    preset, and how many tokens a row has. The scheduler adds states, slots and counts.
    - `scalars`: those of a call, by kind and by whether there is a convolution.
    - `recent`: the convolution's state after some tokens, from the state before them or None, in the type of the
    tokens.
    - `advance`: the truth, in float64. From a memory, or None, and tokens: the outputs of the rule, those of the
    convolution or None, and the memories after so many tokens as `keep` lists; 0 is the memory before them.
    - `emulate`: what the emulator of this name makes of one call, in the types of the definition.
    """

    roles: Mapping[str, Mapping[str, str]]
    sources: Callable[[bool], Sequence[Source]]
    inputs: Callable[
        [str, "Mapping[str, torch.Tensor]", "Mapping[str, torch.Tensor]", Mapping[str, int], int],
        "dict[str, torch.Tensor]",
    ]
    scalars: Callable[[str, bool], Mapping[str, bool]]
    recent: "Callable[[torch.Tensor | None, Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]], torch.Tensor]"
    advance: Callable[
        [
            "Mapping[str, torch.Tensor]", "Mapping[str, torch.Tensor]", Mapping[str, int], Memory | None, Sequence[int],
        ],
        "tuple[torch.Tensor, torch.Tensor | None, dict[int, Memory]]",
    ]  # fmt: skip
    emulate: "Callable[[Emulated, str], Any]"
