"""Runs: train by a recipe, resume, evaluate, predict, and everything a run writes."""

from .evaluate import evaluate as evaluate
from .fit import RunResult as RunResult
from .fit import fit as fit
from .guard import NonFiniteError as NonFiniteError
from .predict import Prediction as Prediction
from .predict import predict_images as predict_images
