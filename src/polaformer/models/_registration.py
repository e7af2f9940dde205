"""How the variants of a family become timm's models: their configurations and the way they are built."""

from typing import Any, Dict

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models._builder import _resolve_pretrained_source, build_model_with_cfg, resolve_pretrained_cfg

from ._backbone import Backbone
from .checkpoint import checkpoint_filter_fn, read_state_dict


def build_backbone(cls: type[Backbone], variant: str, pretrained: bool, defaults: Dict[str, Any], **kwargs: Any) -> Any:
    """Build a registered model through timm, reading a checkpoint named in `pretrained_cfg_overlay` with our own safe reader.

    Raises:
        RuntimeError: pretrained=True without a checkpoint: no weights are published for download (the type timm raises too).
    """
    out_indices = kwargs.pop("out_indices", cls.out_indices)
    if pretrained:
        overlay = dict(kwargs.pop("pretrained_cfg_overlay", None) or {})
        cfg = resolve_pretrained_cfg(variant, kwargs.get("pretrained_cfg"), overlay)
        source, _ = _resolve_pretrained_source(cfg.to_dict())
        if not source:
            raise RuntimeError(
                f"no weights of {variant} can be downloaded: get the checkpoint from the authors of PolaFormer "
                f"(arXiv 2501.15061), then model = timm.create_model({variant!r}) and "
                "polaformer.load_checkpoint(model, 'checkpoint.pth')"
            )
        if cfg.file:
            # timm's own reader stops at the pickled training config beside the weights of released checkpoints.
            overlay = overlay | {"file": None, "state_dict": read_state_dict(cfg.file)}
        kwargs["pretrained_cfg_overlay"] = overlay
    model: Any = build_model_with_cfg(
        cls,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"feature_cls": "getter", "out_indices": out_indices},
        **{**defaults, **kwargs},
    )
    model.pretrained_cfg.pop("state_dict", None)
    return model


def default_cfg(first_conv: str, size: int = 224, stride: int = 32, crop_pct: float = 224 / 256) -> Dict[str, Any]:
    """Return a timm pretrained_cfg: ImageNet classes and statistics, no weights to download."""
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, size, size),
        "pool_size": (size // stride, size // stride),
        "crop_pct": crop_pct,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": first_conv,
        "classifier": "head",
        "paper_ids": "arXiv:2501.15061",
    }
