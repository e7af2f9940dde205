"""argparse with one-line errors, help pages of 80 columns, and recipe keys set apart from ordinary options."""

from __future__ import annotations

import argparse
from typing import NoReturn

from .console import complain


class UsageError(Exception):
    """A command line that does not say what is wanted; its text is the line shown."""


class CommandFailure(Exception):
    """A command that could not finish for a reason that is no mistake of the user's; its text is the line shown."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help at a fixed width of 80 columns, so that a page is the same, and one screen, on every terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=80)


class Parser(argparse.ArgumentParser):
    """An argument parser without abbreviations that says in one line what is wrong."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=HelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise the message instead of printing the usage and leaving."""
        message = message.removeprefix("argument ").replace(": expected one argument", " needs a value")
        raise UsageError(message.replace(": must be", " must be"))

    def option_names(self) -> list[str]:
        """Every long option of this command."""
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]


def split_recipe_keys(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Separate `--section.key VALUE` and `--section.key=VALUE` from the ordinary arguments.

    Args:
        argv: arguments after the command's name.

    Returns:
        The ordinary arguments, and (key, value) pairs in the order given.

    Raises:
        UsageError: a key without a value.
    """
    ordinary: list[str] = []
    keys: list[tuple[str, str]] = []
    rest = iter(argv)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if not (name.startswith("--") and "." in name):
            ordinary.append(argument)
            continue
        if not equals:
            following = next(rest, None)
            if following is None:
                raise UsageError(f"{name} needs a value")
            value = following
        keys.append((name.removeprefix("--"), value))
    return ordinary, keys


def whole_number(text: str) -> int:
    """Read an int of at least 1, for argparse's `type`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'must be a whole number of at least 1, got "{text}"')
    return int(text)


def report(program: str, error: BaseException) -> int:
    """Show a user's mistake as one line and return the exit status that says so."""
    message = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.strerror}: {error.filename}"
    complain(program, f"error: {message}")
    return 2
