"""Training: the loop, its settings, and what a model predicts for a data set."""

from torchmultiset.training.config import OptimConfig
from torchmultiset.training.evaluation import Evaluation, evaluate
from torchmultiset.training.loop import NotFiniteError, Progress, fit, local_fabric, make_fabric

__all__ = ["Evaluation", "NotFiniteError", "OptimConfig", "Progress", "evaluate", "fit", "local_fabric", "make_fabric"]
