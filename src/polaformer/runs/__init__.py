"""Runs: train by a recipe, resume, evaluate, predict, and everything a run writes."""

try:
    import matplotlib  # noqa: F401
    import pytorch_lightning  # noqa: F401
    import torchmetrics  # noqa: F401
except ImportError as error:
    raise ImportError("runs need Lightning, torchmetrics and matplotlib: pip install 'polaformer[train]'") from error

from .evaluate import evaluate as evaluate
from .fit import RunResult as RunResult
from .fit import fit as fit
from .guard import NonFiniteError as NonFiniteError
from .predict import Prediction as Prediction
from .predict import predict_images as predict_images
