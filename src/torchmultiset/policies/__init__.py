"""Policies: what reads a memory and names labels one at a time (`torchmultiset.rollout.Policy`).

| policy              | memory              | remembers             |
| ------------------- | ------------------- | --------------------- |
| `ConvLSTMPolicy`    | map (B, D, h, w)    | the sequence, in maps |
| `LSTMPolicy`        | vector (B, D)       | the sequence          |
| `FeedForwardPolicy` | either              | counts only           |
| `TransformerPolicy` | either              | counts only           |

Each says so itself, `counts_only`: where it is True, two prefixes with the same labels lead to the same state, whatever
their order. `select(state, index)` picks and repeats the examples of a state, which `torchmultiset.search` needs.

Models that answer in one go are in `torchmultiset.heads`.
"""

from torchmultiset.policies.conv_lstm import ConvLSTMPolicy
from torchmultiset.policies.feed_forward import CountState, FeedForwardPolicy
from torchmultiset.policies.lstm import LSTMPolicy
from torchmultiset.policies.transformer import TransformerPolicy

__all__ = ["ConvLSTMPolicy", "CountState", "FeedForwardPolicy", "LSTMPolicy", "TransformerPolicy"]
