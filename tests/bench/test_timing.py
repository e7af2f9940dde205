import time

import pytest
import torch

from polaformer.bench import Spread, ratios, time_in_turn
from polaformer.bench.timing import MOST_REPEATS

CPU = torch.device("cpu")


class Clock:
    """A clock that only functions move on, each by what it is said to take; keeps who was called."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.calls = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def takes(self, name, *seconds):
        remaining = list(seconds)

        def run():
            self.calls.append(name)
            self.now += remaining.pop(0) if len(remaining) > 1 else remaining[0]

        return run


def test_spread():
    assert Spread.of([5.0, 1.0, 2.0]) == Spread(1.0, 2.0, 5.0)
    assert Spread.of([4.0, 1.0, 2.0, 3.0]).median == 2.5


def test_in_turn_and_every_other_round_in_reverse(monkeypatch):
    clock = Clock(monkeypatch)
    functions = {name: clock.takes(name, 1.0) for name in "abc"}
    time_in_turn(functions, 3, CPU)
    assert "".join(clock.calls) == "aabbcc" + "abc" + "cba" + "abc"  # two calls each find out how often to repeat


def test_seconds_a_call__short_ones_repeated(monkeypatch):
    clock = Clock(monkeypatch)
    seconds = time_in_turn({"short": clock.takes("short", 0.002), "long": clock.takes("long", 3.0)}, 2, CPU)
    assert seconds == {"short": pytest.approx([0.002, 0.002]), "long": pytest.approx([3.0, 3.0])}
    assert (clock.calls.count("short"), clock.calls.count("long")) == (2 + 2 * 3, 2 + 2)


def test_function_too_short_for_the_clock(monkeypatch):
    clock = Clock(monkeypatch)
    time_in_turn({"none": clock.takes("none", 0.0)}, 1, CPU)
    assert len(clock.calls) == 2 + MOST_REPEATS


def test_first_call_does_not_count(monkeypatch):
    clock = Clock(monkeypatch)
    assert time_in_turn({"compiles": clock.takes("compiles", 100.0, 1.0)}, 2, CPU) == {"compiles": [1.0, 1.0]}


def test_ratios_are_taken_round_by_round():
    # The second round was disturbed for both: the ratio does not show it.
    assert ratios({"a": [1.0, 10.0, 1.0], "b": [2.0, 20.0, 3.0]}, "b", "a") == Spread(2.0, 2.0, 3.0)
