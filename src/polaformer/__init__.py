"""Polarity-aware linear attention: operator, layers and timm backbones."""

from .layers import PolaAttention as PolaAttention
from .layers import PolaLinearAttention as PolaLinearAttention
from .ops import pola_attention as pola_attention

__version__ = "0.1.0"
