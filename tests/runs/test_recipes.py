from dataclasses import replace

import pytest

from polaformer.recipe import DataConfig, OptimConfig, Recipe, TrainConfig
from polaformer.runs.recipes import (
    changed_keys,
    read_recipe,
    recipe_from_dict,
    recipe_to_dict,
    write_recipe,
)


def test_a_recipe_survives_its_file(tmp_path):
    recipe = Recipe(
        data=DataConfig(path="images/é", scale=(0.25, 0.75), mean=[0.1, 0.2, 0.3], auto_augment=None),
        optim=OptimConfig(lr=1e-6, eps=1e-12, warmup_epochs=0.0),
        train=TrainConfig(precision="16", max_steps=11, ema_decay=0.99),
    )
    write_recipe(tmp_path / "recipe.yaml", recipe)
    assert read_recipe(tmp_path / "recipe.yaml") == recipe


def test_keys_that_are_absent_take_their_defaults():
    assert recipe_from_dict({"train": {"seed": 5}}) == Recipe(train=TrainConfig(seed=5))


def test_unknown_names_are_errors():
    with pytest.raises(ValueError, match=r"no key train\.sed"):
        recipe_from_dict({"train": {"sed": 5}})
    with pytest.raises(ValueError, match="sections model, data, optim, train, run, got 'trian'"):
        recipe_from_dict({"trian": {}})


def test_dictionaries_hold_plain_values():
    values = recipe_to_dict(Recipe())
    assert values["data"]["scale"] == [0.08, 1.0]
    plain = (str, int, float, bool, list, dict, type(None))
    assert all(isinstance(value, plain) for keys in values.values() for value in keys.values())


def test_changes_are_named_except_where_they_are_allowed():
    old = Recipe()
    new = replace(old, train=TrainConfig(epochs=99, max_steps=7, seed=3), data=DataConfig(num_workers=0, hflip=0.25))
    assert changed_keys(old, new) == [("data.hflip", 0.5, 0.25), ("train.seed", 0, 3)]


@pytest.mark.parametrize("content", ["", "[1, 2]", "data: 3", "data: {path", "\x00"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "recipe.yaml").write_text(content)
    with pytest.raises(ValueError, match=r"recipe\.yaml must be a recipe .* empty or damaged"):
        read_recipe(tmp_path / "recipe.yaml")
