"""Backbones, registered with timm on import, and their files."""

from .atomic import atomic_write as atomic_write
from .checkpoint import LoadReport as LoadReport
from .checkpoint import load_checkpoint as load_checkpoint
from .checkpoint import read_state_dict as read_state_dict
from .pola_deit import PolaDeiT as PolaDeiT
from .pola_pvt import PolaPVT as PolaPVT
from .pola_swin import PolaSwin as PolaSwin
from .weights import WeightsInfo as WeightsInfo
from .weights import load_weights as load_weights
from .weights import save_weights as save_weights
