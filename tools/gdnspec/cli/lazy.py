"""Groups of commands. The module of a command is imported when the command runs; the help of a group imports none."""

import contextlib
import textwrap
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gdnspec.cli.console import EPILOG

Listed = dict[str, tuple[str, str]]  # command name -> `module:function` in cli/commands/, and its help in one sentence


@contextlib.contextmanager
def _whole_words() -> Iterator[None]:
    """A line ends at a space alone: an option or `batch-invariant` in two parts is neither found nor copied."""
    before = textwrap.TextWrapper.wordsep_re
    textwrap.TextWrapper.wordsep_re = textwrap.TextWrapper.wordsep_simple_re
    try:
        yield
    finally:
        textwrap.TextWrapper.wordsep_re = before


class _Whole:
    """Help text whose words stay whole: neither typer nor click has an option for that."""

    def get_help(self, ctx: Any) -> str:
        with _whole_words():
            return super().get_help(ctx)  # type: ignore[misc,no-any-return]


class Command(_Whole, TyperCommand):
    """A command whose help keeps words whole."""


def group(listed: Listed) -> type[TyperGroup]:
    """The class of a group with these commands, for `typer.Typer(cls=..)`."""

    class Group(_Whole, TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = _Commands(listed)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, words) for name, (_, words) in listed.items()])

    return Group


class _Commands(MutableMapping[str, Any]):
    """Commands by name. Each is imported when it is looked up."""

    def __init__(self, listed: Listed) -> None:
        self._listed, self._loaded = dict(listed), dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._listed[name][0])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._listed.setdefault(name, ("", ""))
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._listed[name]
        self._loaded.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._listed

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)


def _load(name: str, place: str) -> Any:
    module_name, attribute = place.split(":")
    module = import_module(f"gdnspec.cli.commands.{module_name}")
    target = getattr(module, attribute)
    holder = typer.Typer(rich_markup_mode=None)
    if isinstance(target, typer.Typer):
        holder.add_typer(target, name=name)
    else:  # a module may define an EPILOG with its own exit codes
        holder.command(name, cls=Command, epilog=getattr(module, "EPILOG", EPILOG))(target)
    return typer.main.get_group(holder).commands[name]
