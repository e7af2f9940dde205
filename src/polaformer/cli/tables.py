"""Numbers in columns, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Lay out cells in columns as wide as they need, two spaces apart.

    Args:
        header: names of the columns.
        rows: cells, as many a row as there are columns.
        left: how many columns, from the first, are set flush left; the others, of numbers, are flush right.

    Returns:
        The lines, without spaces at their ends.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    return [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in (header, *rows)
    ]


def short(number: float | None, unit: str = "") -> str:
    """Write a count with three digits and its thousands as a letter, as '1.31 G'; 'withheld' for None."""
    if number is None:
        return "withheld"
    for letter, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            return f"{three_digits(number / size)} {letter}{unit}"
    return f"{number:.0f} {unit}".rstrip()


def three_digits(number: float) -> str:
    """Write a number of at least 0.01 with three digits, without exponent, as '1,234', '12.3' or '0.123'."""
    digits = next((digits for digits, limit in ((3, 0.9995), (2, 9.995), (1, 99.95)) if number < limit), 0)
    return f"{number:,.{digits}f}"
