"""The order-free loss for language models that write lists.

Some lists have no meaningful order: tags, entities, ingredients. Cross-entropy requires one order and penalises all
others. The loss here compares each next token with all labels that are still missing (`list_oracle`), including
repetitions, and with the end token when nothing is missing.

- `list_loss`, `order_and_content`, `list_oracle`: functions of plain tensors
- `LabelVocabulary`: labels as sequences of tokens, validated and stored as a trie
- `ListCollator`, `ListLoss`: for `transformers.Trainer`, or a custom training loop
- `AllowedTokens`, `generate_lists`, `sample_batch`: generation of lists of known labels, for prediction and roll-in
- `list_scores`, `split_list`: exact match, precision, recall and F1 of generated lists

Only `generate_lists` and `sample_batch` need the extra ``lm``, which installs `transformers`.
"""

from torchmultiset.lm._generation import AllowedTokens, generate_lists, sample_batch
from torchmultiset.lm._loss import OrderAndContent, list_loss, order_and_content
from torchmultiset.lm._oracle import NextTokens, list_oracle
from torchmultiset.lm._scores import ListScores, list_scores, split_list
from torchmultiset.lm._training import ListCollator, ListLoss
from torchmultiset.lm._vocabulary import LabelVocabulary, Reading

__all__ = [
    "AllowedTokens",
    "LabelVocabulary",
    "ListCollator",
    "ListLoss",
    "ListScores",
    "NextTokens",
    "OrderAndContent",
    "Reading",
    "generate_lists",
    "list_loss",
    "list_oracle",
    "list_scores",
    "order_and_content",
    "sample_batch",
    "split_list",
]
