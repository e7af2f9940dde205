import pytest

from polaformer.cli.tables import render_table, short


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (999.6, "1.00 k"),
        (1000, "1.00 k"),
        (12_345, "12.3 k"),
        (99_960, "100 k"),
        (2.26e9, "2.26 G"),
    ],
)
def test_short(number: float, text: str) -> None:
    assert short(number) == text


def test_short__units_and_what_is_withheld() -> None:
    assert (short(46_700_000, "B"), short(7, "B"), short(None, "B")) == ("46.7 MB", "7 B", "withheld")


def test_render_table() -> None:
    assert render_table(["part", "tokens"], [["a", "1,234"], ["long name", ""]]) == [
        "part       tokens",
        "a           1,234",
        "long name",
    ]
