"""Entry point: answers help, version and usage errors itself, and hands the rest to `polaformer.cli`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .commands import COMMANDS, overview
from .console import complain, nearest, say
from .parser import CommandFailure, UsageError, report, split_recipe_keys

TRAIN_EXTRA = ("pytorch_lightning", "torchmetrics", "jsonargparse", "sklearn", "matplotlib")
"""Modules that come with `pip install "polaformer[train]"`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one `polaformer` command.

    Args:
        argv: arguments after the program's name; None takes those of the process.

    Returns:
        Exit status: 0 done; 1 something asked for is wrong (an unreadable image, a bad data folder, a loss that is
        not finite); 2 a mistake in the command line, the recipe or a file, told in one line; 130
        interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        say(overview())
        return 0
    if arguments[0] == "--version":
        # Imported here: it takes as long as all the rest of a help page.
        from importlib.metadata import version

        say(f"polaformer {version('polaformer')}")
        return 0
    try:
        args = parse(arguments)
    except UsageError as error:
        program = f"polaformer {arguments[0]}" if arguments[0] in COMMANDS else "polaformer"
        return report(program, error)
    except SystemExit:  # argparse leaves so after it has shown a help page
        return 0
    return run(args)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read a command and its options; the result has `command`, `recipe_keys` and `unknown` beside the options."""
    name, *rest = arguments
    if name not in COMMANDS:
        kind = "option" if name.startswith("-") else "command"
        known = ["--help", "--version"] if kind == "option" else list(COMMANDS)
        raise UsageError(f"unknown {kind} {name}{nearest(name, known) or '; polaformer --help lists them'}")
    command = COMMANDS[name]
    recipe_keys: list[tuple[str, str]] = []
    if command.takes_recipe_keys:
        rest, recipe_keys = split_recipe_keys(rest)
    parser = command.parser()
    args, unknown = parser.parse_known_args(rest)
    args.command, args.recipe_keys, args.unknown = name, recipe_keys, [word.partition("=")[0] for word in unknown]
    if unknown:
        refuse_unknown(args.unknown[0], parser.option_names(), command.takes_recipe_keys)
    return args


def refuse_unknown(word: str, known: list[str], takes_recipe_keys: bool) -> None:
    """Raise for an argument the command does not have, unless `polaformer.cli` may find it among the recipe keys."""
    if not word.startswith("-"):
        hint = f"a folder of images is given as --data {word}" if takes_recipe_keys else "options start with --"
        raise UsageError(f'unexpected argument "{word}"; {hint}')
    # A recipe key without its section (--img-size) must not be taken for a vaguely similar option (--batch-size).
    suggestion = nearest(word, known, likeness=0.8 if takes_recipe_keys else 0.5)
    if suggestion or not takes_recipe_keys:
        raise UsageError(f"unknown option {word}{suggestion or '; --help lists the options'}")


def run(args: argparse.Namespace) -> int:
    """Carry out a parsed command, turning a user's mistake into one line."""
    program = f"polaformer {args.command}"
    # torch's threads spin while they wait for one another, and on cores that loader processes share, a step can take ten
    # times as long. Sleeping instead costs little; it has to be said before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from polaformer.cli import run_command

        return run_command(args)
    except CommandFailure as failure:
        if args.traceback:
            raise
        complain(program, str(failure))
        return failure.status
    except KeyboardInterrupt:
        complain(program, "interrupted")
        return 130
    except BrokenPipeError:
        # The reader of our output left (`| head`); what is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        if args.traceback or error.name is None or error.name.partition(".")[0] not in TRAIN_EXTRA:
            raise
        return report(program, ImportError(f'{error.name} is missing: pip install "polaformer[train]"'))
    except (UsageError, ValueError, OSError, ImportError) as error:
        if args.traceback:
            raise
        return report(program, error)
