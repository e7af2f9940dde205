import argparse

import pytest

from polaformer_cli.parser import UsageError, split_recipe_keys, whole_number


def test_split_recipe_keys__both_spellings_in_order() -> None:
    ordinary, keys = split_recipe_keys(
        ["--data", "a.b/c", "--optim.lr", "-1", "--epochs=3", "--model.args={a: 'x=y'}", "--name=v1.2", "--optim.lr=2"]
    )
    assert ordinary == ["--data", "a.b/c", "--epochs=3", "--name=v1.2"]
    assert keys == [("optim.lr", "-1"), ("model.args", "{a: 'x=y'}"), ("optim.lr", "2")]


def test_split_recipe_keys__missing_value() -> None:
    with pytest.raises(UsageError, match=r"^--data\.mean needs a value$"):
        split_recipe_keys(["--data.mean"])


def test_whole_number() -> None:
    assert whole_number("17") == 17


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "", "ten"])
def test_whole_number__refuses(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="at least 1"):
        whole_number(text)
