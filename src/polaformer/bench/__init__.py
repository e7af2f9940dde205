"""What the operator and networks cost: counted from shapes, and measured on a machine."""

from .checking import CheckFailure as CheckFailure
from .contenders import Contender as Contender
from .contenders import operator as operator
from .contenders import published_formula as published_formula
from .contenders import softmax as softmax
from .cost import Cost as Cost
from .cost import Part as Part
from .cost import count_cost as count_cost
from .machine import describe_machine as describe_machine
from .memory import peak_bytes as peak_bytes
from .network import NetworkProblem as NetworkProblem
from .network import NetworkTiming as NetworkTiming
from .network import time_networks as time_networks
from .operators import FORWARD as FORWARD
from .operators import TRAINING as TRAINING
from .operators import Crossover as Crossover
from .operators import Problem as Problem
from .operators import Timing as Timing
from .operators import find_crossovers as find_crossovers
from .operators import time_contenders as time_contenders
from .timing import Spread as Spread
from .timing import ratios as ratios
from .timing import time_in_turn as time_in_turn
