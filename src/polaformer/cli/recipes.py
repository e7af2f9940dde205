"""Reads, types and prints recipes: a YAML file and the command line become one `Recipe`, or one line of complaint.

A file and an option take the same path: every key arrives as the text of its value with a note of where it was
written, jsonargparse turns the text into the annotated type, and whatever does not fit is named with that note.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import textwrap
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
import yaml
from jsonargparse import ArgumentError, ArgumentParser

from polaformer.recipe import Recipe
from polaformer_cli.console import nearest

CONFIGS = Path(__file__).parent.parent / "configs"
"""Folder of the shipped recipes."""

LINE_LENGTH = 100


@dataclass(frozen=True)
class Setting:
    """One key of a recipe with the text of its value."""

    key: str
    """Full name, such as 'optim.lr'."""
    text: str
    """Value as YAML text; 'null' for none."""
    shown: str
    """What to call it when its value is wrong: 'optim.lr', or '--lr' where it was given so."""
    where: str = ""
    """What to open a complaint with: 'FILE line 3: ', or nothing on the command line."""


def load_recipe(base: str | Path | Recipe | None = None, settings: Iterable[Setting] = ()) -> Recipe:
    """Read a recipe and override some of its keys.

    Args:
        base: a recipe, a YAML file, the name of a shipped recipe ('digits', 'imagenet/pola_pvt_tiny'), or None for
            the defaults of `polaformer.recipe`.
        settings: keys that win over the file's, the last of each key over the ones before.

    Returns:
        The typed recipe.

    Raises:
        FileNotFoundError: there is no such file or shipped recipe.
        ValueError: malformed YAML, an unknown section or key, or a value of the wrong type.
    """
    recipe = copy.deepcopy(base) if isinstance(base, Recipe) else Recipe()
    in_file = read_settings(find_recipe(base)) if isinstance(base, (str, Path)) else ()
    for setting in (*in_file, *settings):
        if setting.key not in field_types():
            raise ValueError(f"{setting.where}unknown recipe key {setting.key}{suggest_key(setting.key)}")
        section, _, name = setting.key.partition(".")
        value = read_value(field_types()[setting.key], setting)
        setattr(getattr(recipe, section), name, value)
    return recipe


def find_recipe(name_or_path: str | Path) -> Path:
    """The file of a recipe given as a path or as a shipped recipe's name."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    if path.is_dir():
        raise ValueError(f"--config must be a recipe file or the name of a shipped recipe, got the folder {path}")
    shipped = CONFIGS / f"{name_or_path}.yaml"
    if shipped.is_file():
        return shipped
    raise FileNotFoundError(
        f"there is no recipe file {name_or_path} and no shipped recipe of that name"
        + (nearest(str(name_or_path), shipped_recipes()) or f" (shipped: {', '.join(shipped_recipes())})")
    )


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with the package, sorted."""
    return sorted(path.relative_to(CONFIGS).with_suffix("").as_posix() for path in CONFIGS.rglob("*.yaml"))


def read_settings(path: Path) -> Iterator[Setting]:
    """Yield the keys a recipe file sets, in its order, with their lines."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{path}{line}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a YAML text file: {error}") from error
    if root is None:  # an empty file sets nothing
        return
    for section, node, line in entries(root, f"{path}", "the sections model, data, optim, train and run"):
        where = f"{path} line {line}:"
        if section not in section_types():
            raise ValueError(f"{where} unknown section {section}{nearest(section, list(section_types()))}")
        for name, value, line in entries(node, f"{where} {section}", "keys"):
            key = f"{section}.{name}"
            yield Setting(key, value_text(value), shown=key, where=f"{path} line {line}: ")


def entries(node: yaml.Node, shown: str, of_what: str) -> Iterator[tuple[str, yaml.Node, int]]:
    """Yield key, value and line (from 1) of each entry of a YAML mapping."""
    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f'{shown} must be a mapping of {of_what}, got "{value_text(node)}"')
    seen: set[str] = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.value in seen:
            raise ValueError(f"{shown} has {key.value} twice, the second time in line {line}")
        seen.add(key.value)
        yield str(key.value), value, line


def value_text(node: yaml.Node) -> str:
    """A YAML value as the text one would give on the command line."""
    if isinstance(node, yaml.ScalarNode):
        return "null" if node.tag == "tag:yaml.org,2002:null" else node.value
    flow = copy.copy(node)
    flow.flow_style = True
    return yaml.serialize(flow, Dumper=yaml.SafeDumper, width=10_000).strip()


@cache
def section_types() -> dict[str, type]:
    """Section name to the dataclass of its keys."""
    return get_type_hints(Recipe)


@cache
def field_types() -> dict[str, Any]:
    """Full key name to annotated type, in the recipe's order."""
    return {
        f"{section}.{name}": kind
        for section, config in section_types().items()
        for name, kind in get_type_hints(config).items()
    }


def suggest_key(word: str) -> str:
    """'; did you mean X?' for a mistyped key, also where its section is missing or wrong."""
    section, _, name = word.removeprefix("--").rpartition(".")
    by_name: dict[str, list[str]] = {}
    for key in field_types():
        by_name.setdefault(key.partition(".")[2], []).append(key)
    name = name.replace("-", "_")
    in_section = [key.partition(".")[2] for key in field_types() if key.startswith(f"{section}.")]
    close = difflib.get_close_matches(name, in_section, n=1, cutoff=0.5) or difflib.get_close_matches(
        name, by_name, n=1
    )
    if not close:
        return ""
    candidates = by_name[close[0]]
    return f"; did you mean {next((key for key in candidates if key.startswith(f'{section}.')), candidates[0])}?"


def read_value(kind: Any, setting: Setting) -> Any:
    """Turn a setting's text into the annotated type of its key."""
    if get_origin(kind) is dict:
        # Not by jsonargparse, which would read the text "8421" inside the mapping as a number in spite of its quotes.
        return read_mapping(setting)
    try:
        return value_parser(kind).parse_args([f"--value={setting.text}"]).value
    except ArgumentError:
        choices = [str(choice) for choice in get_args(kind)] if get_origin(kind) is Literal else []
        hint = nearest(setting.text, choices)
        raise ValueError(
            f'{setting.where}{setting.shown} must be {describe_type(kind)}, got "{setting.text}"{hint}'
        ) from None


@cache
def value_parser(kind: Any) -> ArgumentParser:
    """A parser whose one option has the annotated type of a key."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=kind)
    return parser


def read_mapping(setting: Setting) -> dict[str, Any]:
    """Read a mapping written as YAML, such as {attn_type: LLSS}."""
    problem = f'{setting.where}{setting.shown} must be a mapping such as {{key: value}}, got "{setting.text}"'
    try:
        value = yaml.safe_load(setting.text)
    except yaml.YAMLError:
        raise ValueError(problem) from None
    if not isinstance(value, dict):
        raise ValueError(problem)
    return value


def describe_type(kind: Any) -> str:
    """A type in words: 'a float', 'a list of 2 floats', 'one of 32, bf16, 16, 64', '... or null'."""
    names = {int: "an int", float: "a float", str: "a string", bool: "true or false"}
    if kind in names:
        return names[kind]
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if get_origin(kind) in (Union, types.UnionType):
        parts = [describe_type(part) for part in arguments if part is not type(None)]
        return " or ".join([*parts, "null"] if type(None) in arguments else parts)
    plural = f"{names[arguments[0]].partition(' ')[2]}s"
    return f"a list of {len(arguments)} {plural}" if get_origin(kind) is tuple else f"a list of {plural}"


def dump_recipe(recipe: Recipe) -> str:
    """Write a recipe as YAML, each key under a comment that explains it.

    Args:
        recipe: any recipe.

    Returns:
        The text of a recipe file: `load_recipe` reads the same recipe back from it.
    """
    lines = ["# A whole recipe. Train by it: polaformer fit --config THIS_FILE"]
    for section, config in section_types().items():
        lines += ["", *comment(documentation(config)[""], indent=""), f"{section}:"]
        for field in dataclasses.fields(config):
            lines += comment(documentation(config)[field.name], indent="  ")
            lines.append(f"  {field.name}: {yaml_value(getattr(getattr(recipe, section), field.name))}")
    return "\n".join(lines)


@cache
def documentation(config: type) -> dict[str, str]:
    """The text under each field of a section's dataclass; under '' the section's own."""
    parsed = docstring_parser.parse_from_object(config)
    return {"": parsed.short_description or ""} | {each.arg_name: each.description or "" for each in parsed.params}


def comment(text: str, indent: str) -> list[str]:
    """Text as YAML comment lines."""
    return [f"{indent}# {line}" for line in textwrap.wrap(text, LINE_LENGTH - len(indent) - 2)]


def yaml_value(value: Any) -> str:
    """A value on one line of YAML."""
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
