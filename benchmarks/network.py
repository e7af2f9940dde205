"""Times pola_pvt_tiny beside itself with the published layer in its blocks, written in eager PyTorch operations.

    python benchmarks/network.py --threads 2 --output network.json

Both have the same weights; their logits are compared before anything is timed.
"""

import argparse
import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polaformer import PolaAttention
from polaformer.bench import describe_machine, peak_bytes, ratios, time_in_turn
from polaformer.bench.contenders import published_attention

CPU = torch.device("cpu")
OURS, PUBLISHED = "ours", "published"


class PublishedLayer(nn.Module):
    """The published layer over the modules of one of ours, without spatial reduction: every step a pass of its own."""

    def __init__(self, ours: PolaAttention) -> None:
        super().__init__()
        self.ours = ours

    def forward(self, x: Tensor, size: list[int]) -> Tensor:
        """Attend over x (B, N, C) of a map of `size`."""
        ours = self.ours
        batch, tokens, channels = x.shape
        q, gate = ours.qg(x).reshape(batch, tokens, 2, channels).unbind(2)
        k, v = ours.kv(x).reshape(batch, tokens, 2, channels).permute(2, 0, 1, 3).unbind(0)
        k = k + ours.positional_encoding
        scale = F.softplus(ours.scale)
        q, k, v = (self.split_heads(each) for each in (q / scale, k / scale, v))
        y = published_attention(q, k, v, (1 + ours.alpha * torch.sigmoid(ours.power))[0, :, 0])
        y = y.transpose(1, 2).reshape(batch, tokens, channels)
        maps = v.flatten(0, 1).transpose(1, 2).reshape(-1, ours.head_dim, *size)
        mixed = F.conv2d(maps, ours.dwc.weight, ours.dwc.bias, padding=ours.dwc.padding, groups=ours.head_dim)
        y = y + mixed.reshape(batch, channels, tokens).permute(0, 2, 1)
        return ours.proj(y * gate)

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, N, heads · h) to (B, heads, N, h), in a memory of its own."""
        return x.reshape(*x.shape[:2], self.ours.num_heads, -1).permute(0, 2, 1, 3).contiguous()


def main() -> int:
    """Compare, time and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads (default: torch's)")
    parser.add_argument("--rounds", type=int, default=7, help="paired runs of each, at least 7 (default: 7)")
    parser.add_argument("--output", type=Path, help="write all ratios and the machine, as JSON")
    args = parser.parse_args()
    if args.rounds < 7:
        parser.error(f"--rounds must be at least 7, got {args.rounds}")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ours = timm.create_model("pola_pvt_tiny")
    networks = {OURS: ours, PUBLISHED: with_published_layers(ours)}
    images, targets = torch.randn(4, 3, 224, 224), torch.randint(0, 1000, (4,))
    compare(networks, images)
    steps: dict[str, Callable[[nn.Module], Callable[[], object]]] = {
        "inference": lambda network: inference(network, images),
        "training step": lambda network: training_step(network, images, targets),
    }
    report: dict[str, Any] = {"machine": describe_machine(), "model": "pola_pvt_tiny", "images": list(images.shape)}
    for name, make in steps.items():
        calls = {each: make(network) for each, network in networks.items()}
        seconds = time_in_turn(calls, args.rounds, CPU)
        peak = {each: peak_bytes(call, CPU) for each, call in calls.items()}
        ratio = ratios(seconds, PUBLISHED, OURS)
        report[name] = {"ratio": [ratio.minimum, ratio.median, ratio.maximum], "peak_bytes": peak}
        report[name]["seconds"] = {each: sorted(values) for each, values in seconds.items()}
        print(
            f"{name}: published / ours {ratio.median:.2f} ({ratio.minimum:.2f} to {ratio.maximum:.2f}), "
            f"peak memory ours / published {peak[OURS] / peak[PUBLISHED]:.2f} ({peak[OURS] / 2**20:.0f} MiB)"
        )
    if args.output is not None:
        args.output.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 0


def with_published_layers(network: nn.Module) -> nn.Module:
    """Copy a network, its attention replaced by the published layer with the same weights."""
    network = copy.deepcopy(network)
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, PolaAttention):
                setattr(parent, name, PublishedLayer(child))
    return network


def compare(networks: dict[str, nn.Module], images: Tensor) -> None:
    """Raise unless both give the same logits."""
    with torch.no_grad():
        ours, published = (networks[name].eval()(images) for name in (OURS, PUBLISHED))
    torch.testing.assert_close(ours, published, rtol=1e-3, atol=1e-3 * ours.abs().max().item())


def inference(network: nn.Module, images: Tensor) -> Callable[[], object]:
    """Return a call of the network as it is used."""

    def run() -> Tensor:
        network.eval()
        with torch.inference_mode():
            return network(images)

    return run


def training_step(network: nn.Module, images: Tensor, targets: Tensor) -> Callable[[], object]:
    """Return a call of one step of AdamW."""
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4)

    def run() -> None:
        network.train()
        optimizer.zero_grad()
        F.cross_entropy(network(images), targets).backward()
        optimizer.step()

    return run


if __name__ == "__main__":
    sys.exit(main())
