import pytest
import torch

from polaformer.bench import (
    FORWARD,
    TRAINING,
    CheckFailure,
    Contender,
    Problem,
    Spread,
    Timing,
    find_crossovers,
    operator,
    operators,
    published_formula,
    softmax,
    time_contenders,
)

PROBLEM = Problem(13, batch_size=2, heads=3, channels=5)
WRONG = Contender("wrong", lambda q, k, v, power: 2 * operator().attend(q, k, v, power), operator().exact, 1.0)


@pytest.fixture
def run_once(monkeypatch):
    """The n-th function takes n seconds and is run once, so that nothing depends on the machine."""

    def time_in_turn(functions, rounds, device):
        for function in functions.values():
            function()
        return {name: [float(number)] * rounds for number, name in enumerate(functions, start=1)}

    monkeypatch.setattr(operators, "time_in_turn", time_in_turn)


def timing(contender, tokens, milliseconds, pass_name=FORWARD, dtype=torch.float32):
    spread = Spread.of([milliseconds / 1e3])
    return Timing(contender, pass_name, Problem(tokens, dtype=dtype), spread, spread, 1.0, 1, 0.0)


def test_every_contender_and_pass(run_once):
    timings, failures = time_contenders([operator(), published_formula(), softmax()], PROBLEM, rounds=7)
    assert not failures
    names = ["operator", "published formula", "softmax"]
    assert [(each.contender, each.pass_name) for each in timings] == [
        (name, pass_name) for pass_name in (FORWARD, TRAINING) for name in names
    ]
    last = timings[-1]
    assert (last.seconds, last.ratio) == (Spread(3.0, 3.0, 3.0), Spread(3.0, 3.0, 3.0))
    assert last.tokens_per_second == 2 * 13 / 3
    forward, training = timings[0].peak_bytes, timings[3].peak_bytes
    assert 4 * 2 * 3 * 13 * 5 <= forward < training


def test_wrong_rival_is_not_timed(run_once):
    timings, failures = time_contenders([operator(), WRONG, softmax()], PROBLEM)
    assert {each.contender for each in timings} == {"operator", "softmax"}
    assert [str(failure).partition(" ")[0] for failure in failures] == ["wrong"]


def test_nothing_is_timed_where_the_first_is_wrong(monkeypatch):
    monkeypatch.setattr(operators, "time_in_turn", None)
    with pytest.raises(CheckFailure, match="wrong must agree"):
        time_contenders([WRONG, softmax()], PROBLEM)


def crossover_of(*milliseconds):
    timings = []
    for tokens, own, rival in milliseconds:
        timings += [timing("operator", tokens, own), timing("softmax", tokens, rival)]
    (crossover,) = find_crossovers(timings)
    return crossover.tokens, crossover.below_smallest


def test_crossover__between_two_counts_on_a_straight_line_in_log_log():
    # Softmax takes half as long at 100 tokens and twice as long at 400: equal at the geometric mean, 200.
    assert crossover_of((100, 2, 1), (400, 2, 4)) == (200, False)
    # A quarter at 100 and twice at 800: two thirds of the way, 100 · 8^(2/3).
    assert crossover_of((800, 2, 4), (100, 4, 1)) == (400, False)


def test_crossover__after_the_last_count_at_which_the_rival_wins():
    assert crossover_of((10, 2, 4), (20, 4, 2), (80, 2, 4)) == (40, False)


def test_crossover__outside_what_was_measured():
    assert crossover_of((10, 1, 2), (20, 1, 3)) == (10, True)
    assert crossover_of((10, 1, 2), (20, 3, 2)) == (None, False)


def test_crossover__for_each_pass_and_dtype():
    timings = []
    for dtype in (torch.float32, torch.bfloat16):
        for pass_name in (FORWARD, TRAINING):
            timings += [timing(name, 10, 1, pass_name, dtype) for name in ("operator", "softmax")]
    assert [(each.problem.dtype, each.pass_name) for each in find_crossovers(timings)] == [
        (dtype, pass_name) for dtype in (torch.float32, torch.bfloat16) for pass_name in (FORWARD, TRAINING)
    ]
    assert find_crossovers(timings, rival="unknown") == []
