"""LightningModules: loss, metrics and optimiser of each task, and nothing else."""

from .classification import ClassificationTask as ClassificationTask
