"""Polarity-aware linear attention: operator, layers and timm backbones."""

from .ops import pola_attention as pola_attention

__version__ = "0.1.0"
