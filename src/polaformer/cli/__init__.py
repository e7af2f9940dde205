"""The commands' work. `polaformer_cli` has read the command line already and calls `run_command` with the result."""

from __future__ import annotations

import argparse
from importlib import import_module

from .messages import plain_messages


def run_command(args: argparse.Namespace) -> int:
    """Carry out one command and return its exit status.

    Args:
        args: the options of the command, and `command`, its name; see `polaformer_cli.commands`.
    """
    modules = {"validate": "score", "test": "score", "check-data": "check_data"}
    module = modules.get(args.command, args.command)
    # One module at a time: check-data and predict do not wait for what only training imports.
    with plain_messages(f"polaformer {args.command}"):
        return import_module(f"{__name__}.{module}").run(args)
