r"""The paper's loss functions, as pure functions of tensors.

B examples, T steps, C classes. A target is a multiset as counts (B, C), int64; see `torchmultiset.multiset`.
Every loss has ``reduction="mean" | "sum" | "none"`` over the batch; ``"none"`` gives (B,). Half-precision input is
computed in float32, and so is the result. Empty targets and finished steps contribute exactly 0.
"""

from torchmultiset.losses._imitation import multiset_loss, sequence_loss
from torchmultiset.losses._matching import (
    count_regression_loss,
    distribution_matching_loss,
    one_step_loss,
)
from torchmultiset.losses._reinforce import reinforce_loss
from torchmultiset.losses._stop import stop_loss

__all__ = [
    "count_regression_loss",
    "distribution_matching_loss",
    "multiset_loss",
    "one_step_loss",
    "reinforce_loss",
    "sequence_loss",
    "stop_loss",
]
