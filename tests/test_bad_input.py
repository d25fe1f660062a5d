"""Invalid arguments are refused on entry; the message has the argument, the value and what is expected.

A case has the function, the invalid argument, how the message shows the value, and the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes import FlatPolicy

from torchmultiset import losses, metrics, multiset, oracle, rollout

B, T, C = 2, 3, 4
COUNTS = torch.ones(B, C, dtype=torch.int64)
NEGATIVE = torch.tensor([[0, 1, 2, 0], [0, -3, 0, 0]])
LABELS = torch.zeros(B, T, dtype=torch.int64)
LOGITS = torch.zeros(B, T, C)
MASK = torch.ones(B, T, dtype=torch.bool)
HIGH, LOW = LABELS + C, LABELS - 7
STOP = torch.zeros(B, T)
MEMORY = torch.zeros(B, 1)


def step_of(choose: rollout.Choose, t: int = 0, logits: torch.Tensor = LOGITS[:, 0]) -> torch.Tensor:
    return choose(t, logits, torch.zeros(logits.shape, dtype=torch.int64))


def algebra_cases(name: str, call: Callable[..., Any]) -> list[tuple[str, str, str, Callable[[], Any]]]:
    """Cases for functions of two multisets, which must have the same number of classes."""
    return [
        (name, "a", "float32", lambda: call(COUNTS.float(), COUNTS)),
        (name, "b", "int32", lambda: call(COUNTS, COUNTS.int())),
        (name, "b", "shape (2, 3)", lambda: call(COUNTS, COUNTS[:, 1:])),
        (name, "b", "shape (2, 1)", lambda: call(COUNTS, COUNTS[:, :1])),
    ]


def trajectory_cases(name: str, call: Callable[..., Any]) -> list[tuple[str, str, str, Callable[[], Any]]]:
    """Cases for functions of (target, labels)."""
    return [
        (name, "target", "shape (4,)", lambda: call(COUNTS[0], LABELS)),
        (name, "target", "float32", lambda: call(COUNTS.float(), LABELS)),
        (name, "target", "-3", lambda: call(NEGATIVE, LABELS)),
        (name, "labels", "shape (1, 3)", lambda: call(COUNTS, LABELS[:1])),
        (name, "labels", "int32", lambda: call(COUNTS, LABELS.int())),
        (name, "labels", "4", lambda: call(COUNTS, HIGH)),
        (name, "labels", "-7", lambda: call(COUNTS, LOW)),
        (f"{name} END", "labels", "5", lambda: call(COUNTS, HIGH + 1, end=True)),
    ]


def loss_cases(name: str, call: Callable[..., Any]) -> list[tuple[str, str, str, Callable[[], Any]]]:
    """Cases for functions of (logits (B, T, C), labels, target)."""
    return [
        (name, "logits", "shape (2, 4)", lambda: call(LOGITS[:, 0], LABELS, COUNTS)),
        (name, "logits", "shape (2, 3, 3)", lambda: call(LOGITS[..., 1:], LABELS, COUNTS)),
        (name, "logits", "shape (2, 3, 4)", lambda: call(LOGITS, LABELS, COUNTS, end=True)),
        (name, "logits", "int64", lambda: call(LOGITS.long(), LABELS, COUNTS)),
        (name, "labels", "shape (2, 2)", lambda: call(LOGITS, LABELS[:, 1:], COUNTS)),
        (name, "labels", "float32", lambda: call(LOGITS, LABELS.float(), COUNTS)),
        (name, "labels", "4", lambda: call(LOGITS, HIGH, COUNTS)),
        (name, "labels", "-7", lambda: call(LOGITS, LOW, COUNTS)),
        (name, "target", "shape (2, 3, 4)", lambda: call(LOGITS, LABELS, LOGITS.long())),
        (name, "target", "int32", lambda: call(LOGITS, LABELS, COUNTS.int())),
        (name, "target", "-3", lambda: call(LOGITS, LABELS, NEGATIVE)),
        (name, "reduction", "'max'", lambda: call(LOGITS, LABELS, COUNTS, reduction="max")),
    ]


def pair_cases(name: str, call: Callable[..., Any]) -> list[tuple[str, str, str, Callable[[], Any]]]:
    """Cases for functions of (counts, target)."""
    return [
        (name, "counts", "shape (1, 4)", lambda: call(COUNTS[:1], COUNTS)),
        (name, "counts", "float32", lambda: call(COUNTS.float(), COUNTS)),
        (name, "counts", "-3", lambda: call(NEGATIVE, COUNTS)),
        (name, "target", "shape (4,)", lambda: call(COUNTS, COUNTS[0])),
        (name, "target", "bool", lambda: call(COUNTS, COUNTS.bool())),
        (name, "target", "-3", lambda: call(COUNTS, NEGATIVE)),
    ]


MULTISET = [
    ("from_labels", "labels", "4", lambda: multiset.from_labels(HIGH, C)),
    ("from_labels", "labels", "4", lambda: multiset.from_labels([[0], [4]], C)),
    ("from_labels", "labels", "float32", lambda: multiset.from_labels(LABELS.float(), C)),
    ("from_labels", "labels", "0.5", lambda: multiset.from_labels([[0.5]], C)),
    ("from_labels", "labels", "[0, 1]", lambda: multiset.from_labels([0, 1], C)),
    ("from_labels", "labels", "shape ()", lambda: multiset.from_labels(torch.tensor(1), C)),
    ("from_labels", "num_classes", "0", lambda: multiset.from_labels(LABELS, 0)),
    ("from_labels", "where", "shape (2, 2)", lambda: multiset.from_labels(LABELS, C, where=MASK[:, 1:])),
    ("from_labels", "where", "int64", lambda: multiset.from_labels(LABELS, C, where=MASK.long())),
    ("to_labels", "counts", "float32", lambda: multiset.to_labels(COUNTS.float())),
    ("to_labels", "counts", "-3", lambda: multiset.to_labels(NEGATIVE)),
    ("cardinality", "counts", "float32", lambda: multiset.cardinality(COUNTS.float())),
    *algebra_cases("difference", multiset.difference),
    *algebra_cases("intersection", multiset.intersection),
    *algebra_cases("union", multiset.union),
    *algebra_cases("equal", multiset.equal),
    *trajectory_cases("free_labels", multiset.free_labels),
    *trajectory_cases("hits", multiset.hits),
    *trajectory_cases("unfinished", multiset.unfinished),
    ("how_many", "num_classes", "0", lambda: multiset.how_many(0, 3)),
    ("how_many", "min_size", "-1", lambda: multiset.how_many(3, 3, min_size=-1)),
    ("how_many", "max_size", "0", lambda: multiset.how_many(3, 0)),
    ("oracle", "free", "float32", lambda: oracle.oracle(COUNTS.float())),
    ("oracle_entropy", "free", "float32", lambda: oracle.oracle_entropy(COUNTS.float())),
    ("oracle_entropy", "of", "'labels'", lambda: oracle.oracle_entropy(COUNTS, of="labels")),
]

ROLLOUT = [
    ("rollout", "steps", "0", lambda: rollout.rollout(FlatPolicy(C), MEMORY, rollout.greedy, 0)),
    ("rollout", "steps", "-1", lambda: rollout.rollout(FlatPolicy(C), MEMORY, rollout.greedy, -1)),
    ("follow_oracle", "target", "float32", lambda: rollout.follow_oracle(COUNTS.float())),
    ("follow_oracle", "target", "-3", lambda: rollout.follow_oracle(NEGATIVE)),
    ("follow_oracle", "target", "shape (4,)", lambda: rollout.follow_oracle(COUNTS[0])),
    ("follow_oracle", "target", "shape (1, 4)", lambda: step_of(rollout.follow_oracle(COUNTS[:1]))),
    ("follow_oracle", "target", "shape (2, 4)", lambda: step_of(rollout.follow_oracle(COUNTS, end=True))),
    ("forced", "labels", "float32", lambda: rollout.forced(LABELS.float())),
    ("forced", "labels", "shape (3,)", lambda: rollout.forced(LABELS[0])),
    ("forced", "labels", "4", lambda: step_of(rollout.forced(HIGH))),
    ("forced", "labels", "shape (1, 3)", lambda: step_of(rollout.forced(LABELS[:1]))),
    ("forced", "labels", "shape (2, 3)", lambda: step_of(rollout.forced(LABELS), t=T)),
    (
        "forced",
        "labels",
        "shape (2, 3)",
        lambda: rollout.rollout(FlatPolicy(C), MEMORY, rollout.forced(LABELS), T + 1),
    ),
]

LOSSES = [
    *loss_cases("multiset_loss", losses.multiset_loss),
    *loss_cases("reinforce_loss", losses.reinforce_loss),
    (
        "multiset_loss",
        "divergence",
        "'l1'",
        lambda: losses.multiset_loss(LOGITS, LABELS, COUNTS, divergence="l1"),
    ),
    (
        "multiset_loss",
        "over_steps",
        "'max'",
        lambda: losses.multiset_loss(LOGITS, LABELS, COUNTS, over_steps="max"),
    ),
    (
        "reinforce_loss",
        "baseline",
        "shape (2, 3, 1)",
        lambda: losses.reinforce_loss(LOGITS, LABELS, COUNTS, LOGITS[..., :1]),
    ),
    (
        "reinforce_loss",
        "baseline",
        "int64",
        lambda: losses.reinforce_loss(LOGITS, LABELS, COUNTS, LABELS),
    ),
    (
        "reinforce_loss",
        "where",
        "shape (1, 3)",
        lambda: losses.reinforce_loss(LOGITS, LABELS, COUNTS, where=MASK[:1]),
    ),
    ("sequence_loss", "logits", "shape (2, 4)", lambda: losses.sequence_loss(LOGITS[:, 0], LABELS)),
    ("sequence_loss", "logits", "int64", lambda: losses.sequence_loss(LOGITS.long(), LABELS)),
    ("sequence_loss", "sequence", "shape (2, 2)", lambda: losses.sequence_loss(LOGITS, LABELS[:, 1:])),
    ("sequence_loss", "sequence", "int32", lambda: losses.sequence_loss(LOGITS, LABELS.int())),
    ("sequence_loss", "sequence", "4", lambda: losses.sequence_loss(LOGITS, HIGH)),
    ("sequence_loss", "where", "float32", lambda: losses.sequence_loss(LOGITS, LABELS, where=STOP)),
    ("sequence_loss", "reduction", "'max'", lambda: losses.sequence_loss(LOGITS, LABELS, reduction="max")),
    *(
        ("distribution_matching_loss", argument, shown, call)
        for argument, shown, call in [
            ("logits", "shape (2, 4)", lambda: losses.distribution_matching_loss(LOGITS[:, 0], COUNTS)),
            ("logits", "int64", lambda: losses.distribution_matching_loss(LOGITS.long(), COUNTS)),
            ("logits", "shape (2, 3, 3)", lambda: losses.distribution_matching_loss(LOGITS[..., 1:], COUNTS)),
            ("target", "float32", lambda: losses.distribution_matching_loss(LOGITS, COUNTS.float())),
            ("target", "-3", lambda: losses.distribution_matching_loss(LOGITS, NEGATIVE)),
            ("where", "int64", lambda: losses.distribution_matching_loss(LOGITS, COUNTS, where=LABELS)),
            ("where", "shape (2, 2)", lambda: losses.distribution_matching_loss(LOGITS, COUNTS, where=MASK[:, 1:])),
            ("divergence", "'js'", lambda: losses.distribution_matching_loss(LOGITS, COUNTS, divergence="js")),
            ("divergence", "0.5", lambda: losses.distribution_matching_loss(LOGITS, COUNTS, divergence=0.5)),
            ("divergence", "nan", lambda: losses.distribution_matching_loss(LOGITS, COUNTS, divergence=torch.nan)),
            ("reduction", "'max'", lambda: losses.distribution_matching_loss(LOGITS, COUNTS, reduction="max")),
        ]
    ),
    ("one_step_loss", "logits", "shape (2, 3, 4)", lambda: losses.one_step_loss(LOGITS, STOP[:, 0], COUNTS)),
    ("one_step_loss", "size", "shape (2, 3)", lambda: losses.one_step_loss(LOGITS[:, 0], STOP, COUNTS)),
    ("one_step_loss", "size", "int64", lambda: losses.one_step_loss(LOGITS[:, 0], LABELS[:, 0], COUNTS)),
    ("one_step_loss", "target", "-3", lambda: losses.one_step_loss(LOGITS[:, 0], STOP[:, 0], NEGATIVE)),
    (
        "one_step_loss",
        "reduction",
        "'max'",
        lambda: losses.one_step_loss(LOGITS[:, 0], STOP[:, 0], COUNTS, reduction="max"),
    ),
    ("count_regression_loss", "rates", "shape (2, 3, 4)", lambda: losses.count_regression_loss(LOGITS, COUNTS)),
    ("count_regression_loss", "rates", "int64", lambda: losses.count_regression_loss(COUNTS, COUNTS)),
    ("count_regression_loss", "target", "-3", lambda: losses.count_regression_loss(LOGITS[:, 0], NEGATIVE)),
    (
        "count_regression_loss",
        "reduction",
        "'max'",
        lambda: losses.count_regression_loss(LOGITS[:, 0], COUNTS, reduction="max"),
    ),
    ("stop_loss", "stop_logits", "shape (2, 3, 4)", lambda: losses.stop_loss(LOGITS, COUNTS)),
    ("stop_loss", "stop_logits", "int64", lambda: losses.stop_loss(LABELS, COUNTS)),
    ("stop_loss", "stop_logits", "shape (1, 3)", lambda: losses.stop_loss(STOP[:1], COUNTS)),
    ("stop_loss", "target", "-3", lambda: losses.stop_loss(STOP, NEGATIVE)),
    ("stop_loss", "reduction", "'max'", lambda: losses.stop_loss(STOP, COUNTS, reduction="max")),
]

TERMINATION = [
    ("until_size", "steps", "0", lambda: rollout.until_size(LABELS[:, 0], 0)),
    ("until_size", "size", "float32", lambda: rollout.until_size(STOP[:, 0], T)),
    ("until_size", "size", "shape (2, 3)", lambda: rollout.until_size(LABELS, T)),
    ("until_stop", "stop_logits", "shape (2, 3, 4)", lambda: rollout.until_stop(LOGITS)),
    ("until_stop", "stop_logits", "int64", lambda: rollout.until_stop(LABELS)),
    ("until_stop", "threshold", "1.5", lambda: rollout.until_stop(STOP, threshold=1.5)),
    ("until_end", "labels", "shape (3,)", lambda: rollout.until_end(LABELS[0], C)),
    ("until_end", "labels", "float32", lambda: rollout.until_end(LABELS.float(), C)),
    ("append_end", "sequence", "shape (3,)", lambda: rollout.append_end(LABELS[0], C)),
    ("append_end", "sequence", "int32", lambda: rollout.append_end(LABELS.int(), C)),
]

METRICS = [
    *pair_cases("exact_match", metrics.exact_match),
    *pair_cases("precision", metrics.precision),
    *pair_cases("recall", metrics.recall),
    *pair_cases("f1", metrics.f1),
    *pair_cases("class_f1", metrics.class_f1),
    *pair_cases("F1", lambda counts, target: metrics.F1().update(counts, target)),
    *pair_cases("ClassF1", lambda counts, target: metrics.ClassF1(C).update(counts, target)),
    ("ClassF1", "num_classes", "0", lambda: metrics.ClassF1(0)),
    ("ClassF1", "target", "shape (2, 4)", lambda: metrics.ClassF1(5).update(COUNTS, COUNTS)),
    *pair_cases("count_mae", metrics.count_mae),
    *pair_cases("count_rmse", metrics.count_rmse),
    *pair_cases("CountMAE", lambda counts, target: metrics.CountMAE().update(counts, target)),
    *pair_cases("CountRMSE", lambda counts, target: metrics.CountRMSE(C).update(counts, target)),
    ("CountRMSE", "num_classes", "0", lambda: metrics.CountRMSE(0)),
    ("CountRMSE", "target", "shape (2, 4)", lambda: metrics.CountRMSE(5).update(COUNTS, COUNTS)),
    ("step_entropy", "logits", "int64", lambda: metrics.step_entropy(LABELS)),
    ("step_entropy", "logits", "shape ()", lambda: metrics.step_entropy(torch.tensor(0.0))),
    ("StepEntropy", "steps", "0", lambda: metrics.StepEntropy(0)),
    ("StepEntropy", "logits", "shape (2, 3, 4)", lambda: metrics.StepEntropy(5).update(LOGITS)),
    ("StepEntropy", "where", "int64", lambda: metrics.StepEntropy(T).update(LOGITS, LABELS)),
    ("StepEntropy", "where", "shape (1, 3)", lambda: metrics.StepEntropy(T).update(LOGITS, MASK[:1])),
]

CASES = [*MULTISET, *ROLLOUT, *LOSSES, *TERMINATION, *METRICS]


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("argument", "shown", "call"),
    [case[1:] for case in CASES],
    ids=[f"{function}: {argument} {shown}" for function, argument, shown, _ in CASES],
)
def test_the_message_has_the_argument_the_value_and_what_is_expected(argument, shown, call):
    with pytest.raises(ValueError, match=rf"^{argument} must ") as raised:
        call()
    message = str(raised.value)
    expected, but, given = re.split(r", but (is|its smallest is|holds) ", message)
    assert but
    assert shown in given
    assert len(expected) > len(f"{argument} must ")


def test_the_import_hook_enforces_shapes_in_tests():
    """Without the hook, the fixture `without_shape_hook` would have nothing to switch off."""
    with pytest.raises(Exception, match="Type-check error"):
        multiset.free_labels(COUNTS[0], LABELS)
