"""Who may import whom, and what importing the package costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "polaformer"
LEVELS = {
    "ops": 0, "layers": 1, "models": 2, "convert": 3, "analysis": 3, "bench": 3, "heads": 3, "recipe": 3,
    "tasks": 4, "data": 4, "runs": 5, "export": 5, "cli": 6,
}  # fmt: skip
EXTRAS = [
    "pytorch_lightning",
    "torchmetrics",
    "jsonargparse",
    "sklearn",
    "matplotlib",
    "segmentation_models_pytorch",
    "onnx",
]


def imported_parts(file):
    """Names of the polaformer parts (first level) that a file imports, at any depth of nesting."""
    package = ["polaformer", *file.relative_to(SOURCE).parent.parts]
    for node in ast.walk(ast.parse(file.read_text())):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            modules = [f"{stem}.{alias.name}" for alias in node.names]
        for module in modules:
            parts = module.split(".")
            if parts[0] == "polaformer" and len(parts) > 1 and parts[1] in LEVELS:
                yield parts[1]


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda f: str(f.relative_to(SOURCE)))
def test_imports_point_one_way(file):
    own = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own in LEVELS:
        upward = {part for part in imported_parts(file) if LEVELS[part] > LEVELS[own]}
        sideways = {part for part in imported_parts(file) if LEVELS[part] == LEVELS[own] and part != own}
        assert not upward
        assert not sideways - ({"recipe"} if own != "recipe" else set())


def run_fresh(code):
    return subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True)


def test_importing_needs_no_extra():
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in EXTRAS)
    result = run_fresh(f"import sys\n{blocked}import polaformer, timm\nassert timm.is_model('pola_pvt_tiny')")
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""


def test_operator_compiles_in_a_cold_process():
    code = (
        "import torch, polaformer\n"
        "f = torch.compile(lambda q, p: polaformer.pola_attention(q, q, q, p), fullgraph=True, backend='eager')\n"
        "q = torch.randn(1, 2, 7, 5)\n"
        "print(f(q, torch.full((2, 5), 2.0)).shape)"
    )
    result = run_fresh(code)
    assert result.stdout.strip() == "torch.Size([1, 2, 7, 5])", result.stderr
