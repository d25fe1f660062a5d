r"""The paper's loss functions and later ones, as pure functions of tensors.

B examples, T steps, C classes. A target is a multiset as int64 counts (B, C); see `torchmultiset.multiset`. Every
loss takes ``reduction="mean" | "sum" | "none"`` over the batch; ``"none"`` returns (B,). Half-precision inputs are
computed and returned in float32. In losses over steps, empty targets and finished steps contribute exactly 0.
"""

from torchmultiset.losses._counts import (
    cell_count_loss,
    cell_joint_loss,
    count_mixture_loss,
    count_table_loss,
    poisson_count_loss,
    sized_count_loss,
)
from torchmultiset.losses._hungarian import hungarian_loss
from torchmultiset.losses._imitation import multiset_loss, multiset_loss_as_defined, sequence_loss
from torchmultiset.losses._marginal import marginal_estimate_loss, marginal_loss, parts_of
from torchmultiset.losses._matching import (
    count_regression_loss,
    distribution_matching_loss,
    one_step_loss,
)
from torchmultiset.losses._power import power_loss
from torchmultiset.losses._reinforce import reinforce_loss
from torchmultiset.losses._stop import stop_loss

__all__ = [
    "cell_count_loss",
    "cell_joint_loss",
    "count_mixture_loss",
    "count_regression_loss",
    "count_table_loss",
    "distribution_matching_loss",
    "hungarian_loss",
    "marginal_estimate_loss",
    "marginal_loss",
    "multiset_loss",
    "multiset_loss_as_defined",
    "one_step_loss",
    "parts_of",
    "poisson_count_loss",
    "power_loss",
    "reinforce_loss",
    "sequence_loss",
    "sized_count_loss",
    "stop_loss",
]
