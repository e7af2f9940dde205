"""Polarity-aware linear attention as an operator."""

from . import flops as flops  # tells torch's counter what the operator costs
from .api import pola_attention as pola_attention
from .backends import BackendStatus as BackendStatus
from .backends import list_backends as list_backends
from .streaming import PolaAttentionStream as PolaAttentionStream
from .varlen import pola_attention_varlen as pola_attention_varlen
