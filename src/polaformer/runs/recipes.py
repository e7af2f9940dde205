"""Recipes as plain values: kept in files and checkpoints, and compared when a run is resumed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from polaformer.models.atomic import write_text
from polaformer.recipe import Recipe

CHANGEABLE = (
    "train.epochs",
    "train.max_steps",
    "train.checkpoint_every",
    "train.accelerator",
    "train.devices",
    "train.strategy",
    "data.path",
    "data.num_workers",
    "run.dir",
    "run.name",
)
"""Keys a resumed run may change: how long, on what machine and where, not what is computed."""


def recipe_to_dict(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The sections of a recipe as nested dictionaries of plain values; tuples become lists."""
    return {
        section: {key: list(value) if isinstance(value, tuple) else value for key, value in keys.items()}
        for section, keys in dataclasses.asdict(recipe).items()
    }


def recipe_from_dict(values: dict[str, dict[str, Any]]) -> Recipe:
    """Rebuild a recipe from `recipe_to_dict`; keys that are absent take their defaults.

    Raises:
        ValueError: a section or key is unknown.
    """
    recipe = Recipe()
    for section, keys in values.items():
        if not hasattr(recipe, section):
            raise ValueError(f"recipe must have the sections {', '.join(recipe_to_dict(recipe))}, got {section!r}")
        defaults = getattr(recipe, section)
        for key, value in keys.items():
            if not hasattr(defaults, key):
                raise ValueError(f"recipe has no key {section}.{key}")
            setattr(defaults, key, tuple(value) if isinstance(getattr(defaults, key), tuple) else value)
    return recipe


def write_recipe(path: Path, recipe: Recipe) -> None:
    """Write a recipe as YAML, every key with its value; whatever happens, the file is whole."""
    write_text(path, yaml.safe_dump(recipe_to_dict(recipe), sort_keys=False, allow_unicode=True))


def read_recipe(path: Path) -> Recipe:
    """Read a recipe file that `write_recipe` wrote.

    Raises:
        ValueError: the file is no recipe, or a section or key is unknown.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        values = None
    if not isinstance(values, dict) or not all(isinstance(keys, dict) for keys in values.values()):
        raise ValueError(f"{path} must be a recipe with sections of keys, but it is empty or damaged")
    return recipe_from_dict(values)


def changed_keys(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """Keys, outside CHANGEABLE, that differ between two recipes: (name, old value, new value) each."""
    before, after = recipe_to_dict(old), recipe_to_dict(new)
    return [
        (f"{section}.{key}", value, after[section][key])
        for section, keys in before.items()
        for key, value in keys.items()
        if f"{section}.{key}" not in CHANGEABLE and after[section][key] != value
    ]
