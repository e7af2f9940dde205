"""Polarity-aware linear attention: operator, layers and timm backbones. Importing it registers the pola_* models with timm."""

from .layers import PolaAttention as PolaAttention
from .layers import PolaLinearAttention as PolaLinearAttention
from .models import LoadReport as LoadReport
from .models import WeightsInfo as WeightsInfo
from .models import load_checkpoint as load_checkpoint
from .models import load_weights as load_weights
from .models import save_weights as save_weights
from .ops import BackendStatus as BackendStatus
from .ops import PolaAttentionStream as PolaAttentionStream
from .ops import list_backends as list_backends
from .ops import pola_attention as pola_attention
from .ops import pola_attention_varlen as pola_attention_varlen

__version__ = "0.1.0"
