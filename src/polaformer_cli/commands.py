"""The commands and their options: the one place that says what each takes and how its help page reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .parser import Parser, whole_number

CHECKPOINT_HELP = "run folder (takes its best weights), or a weights or checkpoint file"


@dataclass(frozen=True)
class Command:
    """One command of `polaformer`."""

    name: str
    summary: str
    """One line for the list of commands."""
    build: Callable[[str], Parser]
    """Makes its parser from the line that opens its help page."""
    takes_recipe_keys: bool = False

    def parser(self) -> Parser:
        """The command's parser, which also writes its help page."""
        parser = self.build(f"polaformer {self.name}")
        if not self.takes_recipe_keys:
            add_common(parser)
        return parser


def add_common(parser: Parser) -> None:
    """Add the two options every command has, at the end of its list."""
    parser.add_argument("--traceback", action="store_true", help="on an error, show where in the code it arose")
    parser.add_argument("-h", "--help", action="help", help="show this page")


def fit_parser(prog: str) -> Parser:
    """`polaformer fit`."""
    parser = Parser(
        prog,
        usage=f"{prog} [--data PATH] [options] [--section.key VALUE ...]",
        description="Train an image classifier and keep everything about the run in one folder:\n"
        "recipe, metrics, learning curves, checkpoints and weights.",
        epilog="examples:\n"
        "  polaformer fit --data photos --epochs 20\n"
        "  polaformer fit --config imagenet/pola_pvt_tiny --data imagenet --train.devices 8\n\n"
        "Every key of a recipe is an option, too: --optim.clip_grad 1.0, --data.hflip 0.\n"
        "`polaformer fit --print-recipe` lists them all with their meaning.",
    )
    add = parser.add_argument
    add("--data", metavar="PATH", help="folder with one sub-folder a class, or with train/ and val/ of such; or digits")
    add("--config", metavar="RECIPE", help="recipe file, or a shipped one: digits, finetune, imagenet/pola_pvt_tiny …")
    add("--model", metavar="NAME", help="any timm model, such as pola_swin_tiny")
    add("--checkpoint", metavar="FILE", help="weights of a pola_* model to start from, of any classes")
    add("--epochs", metavar="N", help="passes over the training images")
    add("--batch-size", metavar="N", help="images a step on each process")
    add("--lr", metavar="X", help="peak learning rate")
    add("--precision", metavar="P", help="32, bf16, 16 or 64")
    add("--seed", metavar="N", help="seed of weights, order and augmentation")
    add("--out", metavar="DIR", help="parent folder of runs (default: runs)")
    add("--name", metavar="NAME", help="name of this run's folder (default: model and data)")
    add("--resume", metavar="RUN", help="run folder to go on with, where it stopped")
    add("--print-recipe", action="store_true", help="print the resolved recipe instead of training")
    add_common(parser)
    return parser


def score_parser(prog: str, description: str) -> Parser:
    """The shared options of `validate` and `test`."""
    parser = Parser(
        prog,
        usage=f"{prog} --checkpoint RUN [--data PATH] [options]",
        description=description,
        epilog=f"examples:\n  {prog} --checkpoint runs/flowers\n"
        f"  {prog} --checkpoint runs/flowers/best.safetensors --data other_photos --json",
    )
    add = parser.add_argument
    add("--checkpoint", metavar="RUN", required=True, help=CHECKPOINT_HELP)
    add("--data", metavar="PATH", help="folder with one sub-folder a class (default: that of the run)")
    add("--batch-size", metavar="N", type=whole_number, help="images a step")
    add("--json", action="store_true", help="print the numbers as JSON")
    return parser


def validate_parser(prog: str) -> Parser:
    """`polaformer validate`."""
    return score_parser(
        prog,
        "Score a trained model on validation images: the held-out part of its own data,\n"
        "or that of PATH (its val/, or the share split off in training).",
    )


def test_parser(prog: str) -> Parser:
    """`polaformer test`."""
    return score_parser(
        prog,
        "Score a trained model on test images: the test/ folder of its own data, or of PATH.\n"
        "Without such a folder the held-out images are taken, as validate does.",
    )


def predict_parser(prog: str) -> Parser:
    """`polaformer predict`."""
    parser = Parser(
        prog,
        usage=f"{prog} IMAGE_OR_FOLDER ... --checkpoint RUN [options]",
        description="Name what is on images: the most probable classes of each, in the order given.\n"
        "Files that cannot be read are named on stderr, and the exit status is then 1.",
        epilog="examples:\n"
        "  polaformer predict photo.jpg --checkpoint runs/flowers\n"
        "  polaformer predict holiday/ --checkpoint runs/flowers --csv --output holiday.csv",
    )
    add = parser.add_argument
    add("images", metavar="IMAGE_OR_FOLDER", nargs="+", help="image files, and folders searched for them")
    add("--checkpoint", metavar="RUN", required=True, help=CHECKPOINT_HELP)
    add("--top", metavar="K", type=whole_number, default=5, help="classes an image (default: 5)")
    add("--batch-size", metavar="N", type=whole_number, default=32, help="images a step (default: 32)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of a table")
    form.add_argument("--csv", action="store_true", help="print CSV: path, rank, class, probability")
    add("--output", metavar="FILE", help="write there instead of to the screen")
    add("--picture", metavar="FILE", help="also draw, as PNG, what the model saw of the first 64 images")
    return parser


def check_data_parser(prog: str) -> Parser:
    """`polaformer check-data`."""
    parser = Parser(
        prog,
        usage=f"{prog} PATH [options]",
        description="Look through a folder of images before training on it: its classes with their\n"
        "counts, and each file or folder that would cause trouble, with the reason.\n"
        "The exit status is 1 where something must be repaired.",
        epilog="examples:\n  polaformer check-data photos\n  polaformer check-data photos --json > report.json",
    )
    add = parser.add_argument
    add("path", metavar="PATH", help="folder with one sub-folder a class, or train/ and val/; or digits")
    add("--json", action="store_true", help="print the report as JSON")
    return parser


def describe_parser(prog: str) -> Parser:
    """`polaformer describe`."""
    parser = Parser(
        prog,
        usage=f"{prog} MODEL [options]",
        description="Show what a model costs, part by part: attention, tokens, parameters,\n"
        "multiply-adds, and the memory that training keeps. Nothing is computed.\n"
        "The exit status is 1 where an operator keeps the total from being known.",
        epilog="examples:\n"
        "  polaformer describe pola_pvt_tiny --image-size 512 1024\n"
        "  polaformer describe pola_swin_tiny --model-args '{attn_type: LLLS}' --json",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="any timm model, or a run folder or a file of one")
    add("--image-size", metavar="PX", type=whole_number, nargs="+", help="side, or height and width (default: its own)")
    add("--batch-size", metavar="N", type=whole_number, default=1, help="images (default: 1)")
    add("--model-args", metavar="YAML", help="constructor arguments, such as '{attn_type: LLSS}'")
    add("--json", action="store_true", help="print JSON instead of a table")
    return parser


def bench_parser(prog: str) -> Parser:
    """`polaformer bench`."""
    parser = Parser(
        prog,
        usage=f"{prog} [options]",
        description="Time the operator beside the published formula and softmax, or whole models,\n"
        "in turn on this machine, after checking their numbers against float64.\n"
        "The exit status is 1 where something fails its check; it is not timed.",
        epilog="examples:\n"
        "  polaformer bench --output bench.json --picture bench.png\n"
        "  polaformer bench --model pola_pvt_tiny pvt_v2_b1 --batch-size 32",
    )
    add = parser.add_argument
    add("--tokens", metavar="N", type=whole_number, nargs="+", help="token counts (default: 16 64 256 1024 4096)")
    add("--heads", metavar="N", type=whole_number, default=2, help="attention heads (default: 2)")
    add("--channels", metavar="N", type=whole_number, default=64, help="channels a head (default: 64)")
    add("--model", metavar="NAME", nargs="+", default=[], help="timm models, instead of the operator")
    add("--image-size", metavar="PX", type=whole_number, nargs="+", help="side, or height and width")
    add("--batch-size", metavar="N", type=whole_number, help="problems or images (default: 1, models 8)")
    add("--dtype", nargs="+", default=["float32"], choices=("float32", "bfloat16", "float16"), help="default: float32")
    add("--device", metavar="D", nargs="+", help="cpu, cuda (default: cuda if there is one)")
    add("--backend", metavar="B", nargs="+", default=["auto"], help="of the operator (default: auto)")
    add("--rounds", metavar="N", type=whole_number, default=7, help="timed runs of each, at least 7 (default: 7)")
    add("--threads", metavar="N", type=whole_number, help="CPU threads (default: torch's)")
    add("--output", metavar="FILE", help="also write all numbers and the machine, as JSON")
    add("--picture", metavar="FILE", help="also draw time against tokens, as PNG")
    return parser


def demo_parser(prog: str) -> Parser:
    """`polaformer demo`."""
    parser = Parser(
        prog,
        usage=f"{prog} [--out DIR]",
        description="Train a small classifier of handwritten digits (1,797 real scans that\n"
        "scikit-learn ships), score it on a fifth held out, and draw what it predicts.\n"
        "Takes a little over a minute on two idle cores, and needs no network.",
        epilog="examples:\n  polaformer demo\n  polaformer demo --out /tmp/digits",
    )
    parser.add_argument("--out", metavar="DIR", default="demo", help="folder of run and picture (default: demo)")
    return parser


COMMANDS = {
    command.name: command
    for command in (
        Command("fit", "train a classifier on a folder of images", fit_parser, takes_recipe_keys=True),
        Command("validate", "score it on the validation images", validate_parser),
        Command("test", "score it on the test images", test_parser),
        Command("predict", "name what is on images", predict_parser),
        Command("check-data", "look for trouble in a folder of images", check_data_parser),
        Command("describe", "show what a model costs, part by part", describe_parser),
        Command("bench", "time the operator or models on this machine", bench_parser),
        Command("demo", "train on handwritten digits and draw the result", demo_parser),
    )
}


def overview() -> str:
    """The page `polaformer --help` shows."""
    width = max(map(len, COMMANDS))
    lines = [
        "usage: polaformer COMMAND [options]",
        "",
        "Image classification with polarity-aware linear attention (PolaFormer).",
        "",
        "commands:",
        *(f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS.values()),
        "",
        "options:",
        f"  {'--version':<{width}}  show the version",
        f"  {'--help':<{width}}  show this page; `polaformer COMMAND --help` shows a command's own",
        "",
        "examples:",
        "  polaformer demo",
        "  polaformer fit --data photos --epochs 20",
    ]
    return "\n".join(lines)
