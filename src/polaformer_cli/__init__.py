"""The `polaformer` command: help, version and usage errors at once, the work in `polaformer.cli`.

This package stands beside `polaformer` and uses the standard library alone, because importing `polaformer` loads
torch, which takes seconds; nobody should wait for that to read a help page or to learn of a mistyped option.
"""

from .main import main as main
