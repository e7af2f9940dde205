"""What the operator and networks cost: counted from shapes, and measured on a machine."""

from .cost import Cost as Cost
from .cost import Part as Part
from .cost import count_cost as count_cost
