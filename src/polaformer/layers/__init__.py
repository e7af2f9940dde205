"""Attention layers built on the operator."""

from .attention import PolaAttention as PolaAttention
from .attention import PolaLinearAttention as PolaLinearAttention
