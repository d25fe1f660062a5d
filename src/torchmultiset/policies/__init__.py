"""Policies: modules that read a memory and emit labels one at a time (`torchmultiset.rollout.Policy`).

| policy              | memory              | state                 |
| ------------------- | ------------------- | --------------------- |
| `ConvLSTMPolicy`    | map (B, D, h, w)    | recurrent, maps       |
| `LSTMPolicy`        | any, pooled         | recurrent, vectors    |
| `FeedForwardPolicy` | any                 | counts only           |
| `TransformerPolicy` | any                 | counts only           |

A memory is a vector (B, D), a map (B, D, h, w) or `Tokens` (B, N, D) with a mask.

If `counts_only` is True, all orders of the same labels lead to the same state. `select(state, index)` selects and
repeats the examples of a state, as `torchmultiset.search` requires.

One-shot heads, which output the whole multiset in one pass, are in `torchmultiset.heads`.
"""

from torchmultiset.policies.conv_lstm import ConvLSTMPolicy
from torchmultiset.policies.feed_forward import CountState, FeedForwardPolicy
from torchmultiset.policies.lstm import LSTMPolicy
from torchmultiset.policies.transformer import TransformerPolicy

__all__ = ["ConvLSTMPolicy", "CountState", "FeedForwardPolicy", "LSTMPolicy", "TransformerPolicy"]
