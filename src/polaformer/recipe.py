"""What one training run is made of: the typed keys of a recipe file, with their defaults.

A recipe is a YAML file with these sections; every key can also be given on the command line (`--optim.lr 1e-3`).
The text under a field is its documentation and is shown by `polaformer fit --print-recipe`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass
class ModelConfig:
    """The network: any timm model name, ours or not."""

    name: str = "pola_pvt_nano"
    """timm model name; `import polaformer` adds the pola_* ones."""
    checkpoint: str | None = None
    """File with weights to start from (ours, a released PolaFormer checkpoint, or a plain state dict)."""
    pretrained: bool = False
    """Ask timm for published weights of this name (needs network)."""
    drop_path_rate: float | None = None
    """Stochastic depth of the last block; null keeps the model's own default."""
    freeze: list[str] = field(default_factory=list)
    """Patterns (fnmatch, on full parameter names) of parameters that are not trained, e.g. ['patch_embed*', 'block1.*']."""
    grad_checkpointing: bool = False
    """Recompute blocks in the backward pass: less memory, about a third more time."""
    args: dict[str, Any] = field(default_factory=dict)
    """Further constructor arguments of the model, e.g. {attn_type: LLSS}."""


@dataclass
class DataConfig:
    """The images and what is done to them."""

    path: str = "digits"
    """A folder with one sub-folder a class (or train/ and val/ of such), or 'digits': scikit-learn's handwritten digits."""
    val_fraction: float = 0.2
    """Share of each class held out when the folder has no val/ of its own."""
    split_seed: int = 0
    """Seed of that split; the same seed and files give the same split on every machine."""
    img_size: int = 224
    """Side in pixels of the square the network sees."""
    in_chans: int = 3
    """Channels the network sees: 3 (RGB) or 1 (grey)."""
    batch_size: int = 64
    """Images a step on each process."""
    num_workers: int = 2
    """Loader processes; 0 loads in the training process."""
    mean: list[float] | None = None
    """Per-channel mean in [0, 1]; null takes the model's."""
    std: list[float] | None = None
    """Per-channel standard deviation; null takes the model's."""
    interpolation: str = "bicubic"
    """Resize filter: bicubic, bilinear, nearest."""
    crop_pct: float = 0.875
    """Evaluation resizes to img_size / crop_pct, then crops the centre; 1.0 squashes nothing and crops nothing off the short side."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Training crop: area range."""
    ratio: tuple[float, float] = (0.75, 1.3333)
    """Training crop: aspect range."""
    hflip: float = 0.5
    """Probability of a left-right flip in training."""
    vflip: float = 0.0
    """Probability of an upside-down flip in training."""
    color_jitter: float | None = 0.4
    """Strength of colour jitter; null for none. timm leaves it out where auto_augment is set."""
    auto_augment: str | None = None
    """timm policy, e.g. rand-m9-mstd0.5-inc1; null for none."""
    reprob: float = 0.0
    """Probability of random erasing."""
    remode: Literal["const", "rand", "pixel"] = "pixel"
    """Filling of random erasing."""
    max_bad_fraction: float = 0.1
    """Share of unreadable files above which training stops; below it they are named, and another image of the class stands in."""


@dataclass
class OptimConfig:
    """Optimiser and schedule, by timm's factories."""

    opt: str = "adamw"
    """timm optimiser name."""
    lr: float = 5e-4
    """Peak learning rate for lr_batch images a step."""
    lr_batch: int | None = None
    """Reference batch: the rate is lr · total batch / lr_batch. null uses lr as it is."""
    weight_decay: float = 0.05
    """Decay of matrices; biases, 1-D tensors and the model's no_weight_decay list are exempt."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW moments."""
    eps: float = 1e-8
    """AdamW epsilon."""
    layer_decay: float | None = None
    """Rate factor a layer from the head down (fine-tuning); null for none."""
    clip_grad: float | None = None
    """Largest gradient norm; null for no clipping."""
    sched: Literal["cosine", "constant"] = "cosine"
    """Schedule after the warm-up, stepped at every update."""
    warmup_epochs: float | None = None
    """Epochs of linear warm-up; inside epochs, not added to them. null takes a sixth of train.epochs, at most 5."""
    warmup_lr: float = 1e-6
    """Rate at the first step (scaled like lr)."""
    min_lr: float = 1e-5
    """Rate at the end of the cosine (scaled like lr)."""
    cooldown_epochs: float = 0.0
    """Epochs at min_lr after the cosine, added to train.epochs."""


@dataclass
class TrainConfig:
    """Length, precision, regularisation and machine."""

    epochs: int = 30
    """Passes over the training images, warm-up included, cool-down not."""
    max_steps: int | None = None
    """Stop after this many updates; null for no limit."""
    seed: int = 0
    """Seed of weights, order and augmentation."""
    precision: Literal["32", "bf16", "16", "64"] = "32"
    """32, or mixed precision bf16 or 16 (weights stay float32), or 64."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    devices: str = "auto"
    """Number of processes on this machine (or a list of GPU ids); torchrun sets its own."""
    strategy: Literal["auto", "ddp"] = "auto"
    """How several processes train together: ddp averages their gradients; auto takes it where there are several."""
    accumulate: int = 1
    """Batches to an update."""
    mixup: float = 0.0
    """Mixup alpha; 0 is off."""
    cutmix: float = 0.0
    """CutMix alpha; 0 is off."""
    mixup_switch_prob: float = 0.5
    """Probability of CutMix where both are on."""
    smoothing: float = 0.1
    """Label smoothing."""
    ema_decay: float | None = None
    """Decay of an exponential moving average of the weights, evaluated and saved as best; null for none."""
    checkpoint_every: int | None = None
    """Also save last.ckpt every so many updates; null only at the end of each epoch."""
    deterministic: bool = True
    """Ask torch for deterministic algorithms; false lets cuDNN choose."""


@dataclass
class RunConfig:
    """Where the run is kept."""

    dir: str = "runs"
    """Parent folder of runs."""
    name: str | None = None
    """Name of this run's folder; null takes model, data and the next free number."""


@dataclass
class Recipe:
    """One training run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    run: RunConfig = field(default_factory=RunConfig)
