"""Policies: what reads a memory and names labels one at a time (`torchmultiset.rollout.Policy`).

| policy              | memory              | remembers             |
| ------------------- | ------------------- | --------------------- |
| `ConvLSTMPolicy`    | map (B, D, h, w)    | the sequence, in maps |
| `LSTMPolicy`        | vector (B, D)       | the sequence          |
| `FeedForwardPolicy` | either              | counts only           |
| `TransformerPolicy` | either              | counts only           |

Each says so itself, `counts_only`: where it is True, two prefixes with the same labels lead to the same state, whatever
their order. `select(state, index)` picks and repeats the examples of a state, which `torchmultiset.search` needs.

`OneStep` is no policy: it says in one go what share each class has.
"""

from torchmultiset.policies.conv_lstm import ConvLSTMPolicy
from torchmultiset.policies.feed_forward import FeedForwardPolicy
from torchmultiset.policies.lstm import LSTMPolicy
from torchmultiset.policies.one_step import OneStep, round_counts
from torchmultiset.policies.transformer import TransformerPolicy

__all__ = ["ConvLSTMPolicy", "FeedForwardPolicy", "LSTMPolicy", "OneStep", "TransformerPolicy", "round_counts"]
