"""Polarity-aware linear attention as an operator."""

from .api import pola_attention as pola_attention
