"""Training and evaluation of predictors: settings, training loop, predictions for a whole data set."""

from torchmultiset.training.checkpoint import Progress
from torchmultiset.training.evaluation import Evaluation, evaluate
from torchmultiset.training.loop import NotFiniteError, fit, local_fabric, make_fabric

__all__ = ["Evaluation", "NotFiniteError", "Progress", "evaluate", "fit", "local_fabric", "make_fabric"]
