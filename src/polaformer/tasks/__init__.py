"""LightningModules: loss, metrics and optimiser of each task, and nothing else."""

try:
    import pytorch_lightning  # noqa: F401
    import torchmetrics  # noqa: F401
except ImportError as error:
    raise ImportError("training needs Lightning and torchmetrics: pip install 'polaformer[train]'") from error

from .classification import ClassificationTask as ClassificationTask
