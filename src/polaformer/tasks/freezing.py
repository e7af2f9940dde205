"""Parameters that a fine-tuning run leaves alone."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn


def freeze_parameters(model: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    """Stop training every parameter whose full name matches one of the patterns.

    A frozen layer norm behaves as before, for it has no state but its parameters. A batch norm whose parameters are
    all frozen must not go on updating its running statistics either: such modules are returned, for the caller to keep
    them in evaluation mode. Dropout and stochastic depth inside frozen blocks stay active.

    Args:
        model: the network; changed in place.
        patterns: shell patterns on full parameter names, e.g. 'patch_embed*'.

    Returns:
        The normalisation layers with running statistics that are frozen.

    Raises:
        ValueError: a pattern matches no parameter, or no parameter is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"model.freeze must match parameter names, got {pattern!r}{_nearest(pattern, names)}")
    for name, parameter in model.named_parameters():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"model.freeze must leave something to train, got {list(patterns)}, which match everything")
    return [
        module
        for module in model.modules()
        if getattr(module, "running_mean", None) is not None
        and list(module.parameters())
        and not any(parameter.requires_grad for parameter in module.parameters())
    ]


def _nearest(pattern: str, names: list[str]) -> str:
    """The closest name or module prefix, as the end of an error message."""
    prefixes = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}
    stem = pattern.rstrip("*").rstrip(".")
    close = difflib.get_close_matches(stem, sorted(prefixes), n=1, cutoff=0.4)
    if not close:
        return f"; the names start with {', '.join(sorted({name.split('.')[0] for name in names}))}"
    nearest = close[0] if close[0] in names else f"{close[0]}.*"
    return f"; the nearest that would match is {nearest!r}"
