import dataclasses
from pathlib import Path

import pytest

from polaformer.cli.recipes import (
    CONFIGS,
    LINE_LENGTH,
    Setting,
    documentation,
    dump_recipe,
    field_types,
    find_recipe,
    load_recipe,
    section_types,
    shipped_recipes,
    suggest_key,
)
from polaformer.recipe import Recipe


def setting(key: str, text: str) -> Setting:
    return Setting(key, text, shown=key)


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_load_recipe__nothing_given_is_the_defaults() -> None:
    assert load_recipe() == Recipe()


def test_load_recipe__empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, "# nothing\n")) == Recipe()


def test_load_recipe__file_then_settings_the_last_wins(tmp_path: Path) -> None:
    path = write(tmp_path, "optim:\n  lr: 7e-3\n  betas:\n  - 0.7\n  - 0.97\ntrain:\n  epochs: 5\n")
    recipe = load_recipe(path, [setting("train.epochs", "11"), setting("train.epochs", "13")])
    assert recipe.optim.lr == 7e-3  # plain YAML 1.1 would read 7e-3 as text
    assert recipe.optim.betas == (0.7, 0.97)
    assert recipe.train.epochs == 13
    assert recipe.data == Recipe().data


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("optim.lr", "5e-4", 5e-4),
        ("optim.lr", "1", 1.0),
        ("optim.clip_grad", "null", None),
        ("optim.clip_grad", "3", 3.0),
        ("train.precision", "32", "32"),
        ("train.precision", "bf16", "bf16"),
        ("train.devices", "2", "2"),
        ("train.deterministic", "false", False),
        ("data.mean", "[0.5, 0.25, 1]", [0.5, 0.25, 1.0]),
        ("data.scale", "[0.3, 1]", (0.3, 1.0)),
        ("model.freeze", "[patch_embed*, 'block1.*']", ["patch_embed*", "block1.*"]),
        ("model.args", "{attn_type: LLSS, la_sr_ratios: '8421', depth: 3}", None),
        ("data.path", "a folder: with [odd] name", "a folder: with [odd] name"),
        ("run.name", "12", "12"),
    ],
)
def test_values_are_typed_alike_in_a_file_and_as_an_option(key: str, text: str, value: object, tmp_path: Path) -> None:
    if key == "model.args":
        value = {"attn_type": "LLSS", "la_sr_ratios": "8421", "depth": 3}
    section, name = key.split(".")
    quoted = f'"{text}"' if key == "data.path" else text
    from_file = load_recipe(write(tmp_path, f"{section}:\n  {name}: {quoted}\n"))
    from_option = load_recipe(None, [setting(key, text)])
    assert from_file == from_option
    assert getattr(getattr(from_option, section), name) == value
    assert type(getattr(getattr(from_option, section), name)) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("optim.lr", "fast", 'optim.lr must be a float, got "fast"'),
        ("train.epochs", "1.5", 'train.epochs must be an int, got "1.5"'),
        ("train.max_steps", "few", 'train.max_steps must be an int or null, got "few"'),
        ("train.deterministic", "7", 'train.deterministic must be true or false, got "7"'),
        ("train.precision", "fp16", 'train.precision must be one of 32, bf16, 16, 64, got "fp16"; did you mean bf16?'),
        ("data.scale", "0.3", 'data.scale must be a list of 2 floats, got "0.3"'),
        ("data.mean", "grey", 'data.mean must be a list of floats or null, got "grey"'),
        ("model.freeze", "block1", 'model.freeze must be a list of strings, got "block1"'),
        ("model.args", "[1]", 'model.args must be a mapping such as {key: value}, got "[1]"'),
        ("model.args", "{a: 1", 'model.args must be a mapping such as {key: value}, got "{a: 1"'),
        ("optim.lrr", "1", "unknown recipe key optim.lrr; did you mean optim.lr?"),
        ("optm.lr", "1", "unknown recipe key optm.lr; did you mean optim.lr?"),
        ("train.nam", "x", "unknown recipe key train.nam; did you mean model.name?"),
        ("run.nam", "x", "unknown recipe key run.nam; did you mean run.name?"),
        ("data.wieght_decay", "1", "unknown recipe key data.wieght_decay; did you mean optim.weight_decay?"),
        ("qqq.zzz", "1", "unknown recipe key qqq.zzz"),
    ],
)
def test_wrong_setting_is_named_with_the_nearest_right_one(key: str, text: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared below
        load_recipe(None, [setting(key, text)])
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("optim:\n  lr: fast\n", '{} line 2: optim.lr must be a float, got "fast"'),
        ("optim:\n  # slow\n  lrr: 1\n", "{} line 3: unknown recipe key optim.lrr; did you mean optim.lr?"),
        ("\noptimm:\n  lr: 1\n", "{} line 2: unknown section optimm; did you mean optim?"),
        ("optim: 3\n", '{} line 1: optim must be a mapping of keys, got "3"'),
        ("- 1\n", '{} must be a mapping of the sections model, data, optim, train and run, got "[1]"'),
        ("optim:\n  lr: 1\n  lr: 2\n", "{} line 1: optim has lr twice, the second time in line 3"),
        ("optim: [1\n", "{} line 2: not valid YAML: expected ',' or ']', but got '<stream end>'"),
    ],
)
def test_wrong_file_is_named_with_its_line(text: str, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared below
        load_recipe(path)
    assert str(caught.value) == problem.format(path)


def test_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "weights.yaml"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match=r"weights\.yaml is not a YAML text file"):
        load_recipe(path)


def test_find_recipe__file_before_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_recipe("digits") == CONFIGS / "digits.yaml"
    monkeypatch.chdir(tmp_path)
    Path("digits").write_text("train:\n  epochs: 3\n")
    assert find_recipe("digits") == Path("digits")


def test_find_recipe__unknown_name() -> None:
    with pytest.raises(FileNotFoundError, match=r"no shipped recipe of that name; did you mean digits\?"):
        find_recipe("digts")
    with pytest.raises(FileNotFoundError, match=r"shipped: digits, finetune, imagenet/pola_deit_small"):
        find_recipe("/q/w/e/r/t/y")


def test_shipped_recipes() -> None:
    assert {"digits", "finetune", "imagenet/pola_pvt_tiny"} <= set(shipped_recipes())


@pytest.mark.parametrize("name", shipped_recipes())
def test_dump_recipe__reads_back(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name, [setting("model.args", "{a: '07', b: [1, x]}"), setting("model.freeze", "[block1.*]")])
    recipe.data.path = "#1: it's [odd] 'n' \"so\", ä"
    text = dump_recipe(recipe)
    assert load_recipe(write(tmp_path, text)) == recipe
    assert load_recipe(write(tmp_path, dump_recipe(load_recipe(write(tmp_path, text))))) == recipe


def test_dump_recipe__explains_every_key() -> None:
    text = dump_recipe(Recipe())
    prose = " ".join(line.strip().removeprefix("# ") for line in text.splitlines() if line.strip().startswith("#"))
    for config in section_types().values():
        for field in dataclasses.fields(config):
            explanation = documentation(config)[field.name]
            assert len(explanation) > 10, f"{config.__name__}.{field.name} has no documentation"
            assert explanation in prose
    assert max(map(len, text.splitlines())) <= LINE_LENGTH
    assert all(f"  {key.partition('.')[2]}:" in text for key in field_types())


def test_suggest_key__section_left_out_and_dashes() -> None:
    assert suggest_key("--img-size") == "; did you mean data.img_size?"
    assert suggest_key("--weight-decay") == "; did you mean optim.weight_decay?"
    assert suggest_key("--zzzzzz") == ""


def test_suggestions_prefer_the_section_that_was_written():
    assert suggest_key("optim.lrate").startswith("; did you mean optim.lr")
