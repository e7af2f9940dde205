"""Times the operator's CPU backends beside the published formula, run by run, and prints docs/performance.md's tables.

    python benchmarks/attention.py --threads 2 --output operator.json

Everything is checked against float64 first; what is wrong is not timed. A ratio is one pair of runs that lie next to each
other in time, so that a busy machine disturbs both. The floor is the least that fused code has to do: both matrix products
into ready buffers, and |x|, log and exp of q and k in place.
"""

import argparse
import json
import sys
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from polaformer import list_backends
from polaformer.bench import (
    Problem,
    Spread,
    describe_machine,
    operator,
    peak_bytes,
    published_formula,
    ratios,
    time_in_turn,
)
from polaformer.bench.checking import check
from polaformer.bench.operators import forward_call, training_call

SUITE = [
    (4, 1, 3136, 64),
    (4, 2, 784, 64),
    (4, 5, 196, 64),
    (4, 8, 49, 64),
    (4, 3, 3136, 32),
    (1, 8, 16384, 64),
    (2, 3, 1025, 48),
    (1, 1, 65536, 64),
]
PUBLISHED, FLOOR, PRODUCTS = "published", "floor", "products"
CPU = torch.device("cpu")


def main() -> int:
    """Run the suite; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads (default: torch's)")
    parser.add_argument("--rounds", type=int, default=7, help="paired runs of each, at least 7 (default: 7)")
    parser.add_argument("--output", type=Path, help="write all ratios and the machine, as JSON")
    args = parser.parse_args()
    if args.rounds < 7:
        parser.error(f"--rounds must be at least 7, got {args.rounds}")
    torch.set_num_threads(args.threads)
    usable = {status.name for status in list_backends() if status.usable}
    backends = [name for name in ("native", "tiled") if name in usable]
    results = [run_problem(Problem(n, b, h, d), backends, args.rounds) for b, h, n, d in SUITE]
    report = {"machine": describe_machine(), "rounds": args.rounds, "results": results}
    print_report(report, backends)
    if args.output is not None:
        args.output.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 0


def run_problem(problem: Problem, backends: list[str], rounds: int) -> dict[str, Any]:
    """Check and time all contenders on one problem."""
    inputs = problem.inputs()
    contenders = {PUBLISHED: published_formula(), **{name: operator(name) for name in backends}}
    for contender in contenders.values():
        check(contender, inputs)
    forward = {name: forward_call(contender, inputs) for name, contender in contenders.items()}
    training = {name: training_call(contender, inputs) for name, contender in contenders.items()}
    seconds = time_in_turn({**forward, **bounds(inputs)}, rounds, CPU)
    trained = time_in_turn(training, rounds, CPU)
    sizes = [problem.batch_size, problem.heads, problem.tokens, problem.channels]
    result: dict[str, Any] = {"B, H, N, D": ", ".join(map(str, sizes)), "tokens": problem.tokens}
    for name in backends:
        result[name] = {
            "forward": spread(ratios(seconds, PUBLISHED, name)),
            "training": spread(ratios(trained, PUBLISHED, name)),
            "floor": spread(ratios(seconds, name, FLOOR)),
            "products": spread(ratios(seconds, name, PRODUCTS)),
            "memory": extra_memory(forward, inputs[2].nbytes, name),
            "training memory": extra_memory(training, sum(x.nbytes for x in inputs), name),
            "milliseconds": Spread.of(seconds[name]).median * 1e3,
        }
    return result


def bounds(inputs: tuple[torch.Tensor, ...]) -> dict[str, Callable[[], object]]:
    """What no implementation can leave out: the two products, and with them the powers' logarithm and exponential."""
    q, k, v, _ = (x.clone() for x in inputs)
    features = [torch.rand(*x.shape[:-1], 2 * x.shape[-1]) for x in (q, k)]
    state, output = torch.empty(*q.shape[:2], 2 * q.shape[-1], v.shape[-1]), torch.empty_like(v)

    def products() -> None:
        torch.matmul(features[1].mT, v, out=state)
        torch.matmul(features[0], state, out=output)

    def floor() -> None:
        for x in (q, k):
            x.abs_().log_().exp_()
        products()

    return {FLOOR: floor, PRODUCTS: products}


def extra_memory(calls: dict[str, Callable[[], object]], results: int, name: str) -> float:
    """Peak memory of a call above its inputs and results, as a share of the published formula's."""
    extra = {each: peak_bytes(calls[each], CPU) - results for each in (PUBLISHED, name)}
    return extra[name] / extra[PUBLISHED]


def spread(values: Spread) -> list[float]:
    """Minimum, median, maximum."""
    return [values.minimum, values.median, values.maximum]


def print_report(report: dict[str, Any], backends: list[str]) -> None:
    """Print one Markdown table a backend, with the geometric means of the medians below."""
    columns = ("forward", "training", "floor", "products", "memory", "training memory")
    titles = (
        "published / {}, forward",
        "published / {}, forward + backward",
        "{} / floor",
        "{} / products alone",
        "extra memory / published's, forward",
        "the same, forward + backward",
    )
    for name in backends:
        print(f"\n| B, H, N, D | {' | '.join(title.format(name) for title in titles)} |")
        print("|---" * (len(columns) + 1) + "|")
        for result in report["results"]:
            print(f"| {result['B, H, N, D']} | {' | '.join(cell(result[name][column]) for column in columns)} |")
        averages = [geometric_mean(report["results"], name, column) for column in columns]
        print(f"| geometric mean | {' | '.join(f'{value:.2f}' for value in averages)} |")
    machine = report["machine"]
    print(f"\n{machine['cpu']} ({machine['instructions']}), {machine['threads']} threads, {machine['date']}")
    print(", ".join(f"{name} {number}" for name, number in machine["versions"].items() if number))


def cell(value: Any) -> str:
    """A share as it is, a spread as its median with minimum and maximum."""
    return f"{value:.3f}" if isinstance(value, float) else f"{value[1]:.2f} ({value[0]:.2f} to {value[2]:.2f})"


def geometric_mean(results: list[dict[str, Any]], name: str, column: str) -> float:
    """Over all problems, of medians; of the products alone from 784 tokens on, where the operator is not all calls."""
    values = [
        result[name][column] if isinstance(result[name][column], float) else result[name][column][1]
        for result in results
        if column not in ("floor", "products") or result["tokens"] >= 784
    ]
    return exp(mean(map(log, values)))


if __name__ == "__main__":
    sys.exit(main())
