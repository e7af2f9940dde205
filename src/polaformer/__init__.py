"""Polarity-aware linear attention: operator, layers and timm backbones."""

__version__ = "0.1.0"
