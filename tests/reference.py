"""The paper's definitions in plain Python: one example, one step, one item at a time.

The code is slow and shares nothing with the package, so that agreement is evidence. A multiset is a
`collections.Counter`, a trajectory a list of labels, logits a list of rows. Only `to_counts` and `to_counters` use
tensors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

Row = Sequence[float]
Multiset = Counter[int]


def to_counts(multisets: Iterable[Multiset], num_classes: int) -> Tensor:
    """Multisets as a tensor of counts (B, C)."""
    rows = [[multiset[label] for label in range(num_classes)] for multiset in multisets]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), num_classes)


def to_counters(counts: Tensor) -> list[Multiset]:
    """Counts (B, C) as multisets."""
    return [Counter({label: n for label, n in enumerate(row) if n}) for row in counts.tolist()]


# Section 4: free labels, oracle, multiset loss


def free_multisets(target: Multiset, labels: Sequence[int], end: int | None = None) -> list[Multiset]:
    """Definition 1, literally: the free multiset before each label; END as in Appendix E."""
    left, ended, free = Counter(target), False, []
    for label in labels:
        now = Counter(left)
        if end is not None and not now and not ended:
            now[end] = 1
        free.append(now)
        if label == end:
            ended = ended or now[end] == 1
        elif left[label] > 0:
            left[label] -= 1
        left = +left  # drops zeros, so that an empty multiset is falsy
    return free


def oracle(free: Multiset) -> dict[int, float]:
    """Definition 2: 1/|Y_t| for each item, added up over the items of one class."""
    probabilities: dict[int, float] = {}
    for item in free.elements():
        probabilities[item] = probabilities.get(item, 0.0) + 1 / free.total()
    return probabilities


def log_softmax(logits: Row) -> list[float]:
    """Logarithms of the policy's probabilities."""
    highest = max(logits)
    log_total = math.log(math.fsum(math.exp(x - highest) for x in logits))
    return [x - highest - log_total for x in logits]


def softmax(logits: Row) -> list[float]:
    """The policy's probabilities."""
    return [math.exp(x) for x in log_softmax(logits)]


def entropy(probabilities: Iterable[float]) -> float:
    """Shannon entropy in nats, with 0 log 0 = 0."""
    return -math.fsum(p * math.log(p) for p in probabilities if p > 0)


def kl(p: Row, q: Row) -> float:
    """Kullback-Leibler divergence KL(p || q)."""
    if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return math.inf
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def divergence(name: str, free: Multiset, logits: Row) -> float:
    """The per-step loss of section 4, or another divergence in its place."""
    if name == "kl":  # without the oracle's entropy, as in the paper
        log_pi = log_softmax(logits)
        return -math.fsum(log_pi[item] for item in free.elements()) / free.total()
    p = [oracle(free).get(label, 0.0) for label in range(len(logits))]
    q = softmax(logits)
    if name == "js":
        middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
        return (kl(p, middle) + kl(q, middle)) / 2
    if name == "tv":
        return math.fsum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    raise AssertionError(name)


def multiset_loss(
    logits: Sequence[Row],
    labels: Sequence[int],
    target: Multiset,
    name: str = "kl",
    over_steps: str = "sum",
    end: int | None = None,
) -> float:
    """Definition 3: the sum of the per-step losses, until nothing is free or no step is left."""
    steps = []
    for row, free in zip(logits, free_multisets(target, labels, end), strict=True):
        if not free:
            break
        steps.append(divergence(name, free, row))
    return math.fsum(steps) / (max(len(steps), 1) if over_steps == "mean" else 1)


# Appendix F: the baselines


def sequence_loss(logits: Sequence[Row], sequence: Sequence[int], where: Sequence[bool]) -> float:
    """L_seq: minus the log-probability of the sequence; negative labels are padding."""
    return -math.fsum(
        log_softmax(row)[label]
        for row, label, counts in zip(logits, sequence, where, strict=True)
        if counts and label >= 0
    )


def target_distribution(target: Multiset, num_classes: int) -> list[float]:
    """The empirical distribution q* of a multiset's items."""
    return [sum(1 for item in target.elements() if item == label) / target.total() for label in range(num_classes)]


def distribution_matching_loss(
    logits: Sequence[Row], target: Multiset, name: str | float = "kl", where: Sequence[bool] | None = None
) -> float:
    """L_dm: a divergence between q* and the mean of the per-step distributions."""
    if not target:
        return 0.0
    if where is None:
        where = [t < target.total() for t in range(len(logits))]
    rows = [softmax(row) for row, counts in zip(logits, where, strict=True) if counts]
    if not rows:  # no step counts, so there is no mean to match
        return 0.0
    wanted = target_distribution(target, len(logits[0]))
    mean = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    if name == "kl":
        if any(p > 0 and q == 0 for p, q in zip(wanted, mean, strict=True)):
            return math.inf
        return -math.fsum(p * math.log(q) for p, q in zip(wanted, mean, strict=True) if p > 0)
    power = 1.0 if name == "l1" else float(name)
    return math.fsum(abs(p - q) ** power for p, q in zip(wanted, mean, strict=True)) ** (1 / power)


def one_step_loss(logits: Row, size: float, target: Multiset, size_weight: float = 1.0) -> float:
    """L_1-step, with the minus sign that is missing in the paper."""
    wanted = target_distribution(target, len(logits)) if target else [0.0] * len(logits)
    matching = -math.fsum(p * x for p, x in zip(wanted, log_softmax(logits), strict=True) if p > 0)
    return matching + size_weight * (size - target.total()) ** 2


def count_regression_loss(rates: Row, target: Multiset) -> float:
    """The un-normalised variant of section 3.2: regress the count of each class."""
    return math.fsum((rate - target[label]) ** 2 for label, rate in enumerate(rates))


def rewards(labels: Sequence[int], target: Multiset, end: int | None = None) -> list[int]:
    """The reward of L_RL: 1 for a label that is free, -1 for any other."""
    free = free_multisets(target, labels, end)
    return [1 if now[label] > 0 else -1 for now, label in zip(free, labels, strict=True)]


def reinforce_loss(
    logits: Sequence[Row],
    labels: Sequence[int],
    target: Multiset,
    baseline: Row | None = None,
    entropy_weight: float = 0.01,
    value_weight: float = 0.5,
    where: Sequence[bool] | None = None,
    end: int | None = None,
) -> float:
    """L_RL's estimate from one trajectory: reward to go, learned baseline, entropy bonus."""
    if where is None:
        where = [bool(free) for free in free_multisets(target, labels, end)]
    reward = rewards(labels, target, end)
    total = 0.0
    for t, row in enumerate(logits):
        if not where[t]:
            continue
        to_go = sum(reward[s] for s in range(t, len(labels)) if where[s])
        advantage = to_go - (baseline[t] if baseline is not None else 0.0)
        total -= advantage * log_softmax(row)[labels[t]]
        total -= entropy_weight * entropy(softmax(row))
        if baseline is not None:
            total += value_weight * (to_go - baseline[t]) ** 2
    return total


def stop_loss(stop_logits: Row, target: Multiset) -> float:
    """Binary cross-entropy of the termination policy: the target of slot t is whether the multiset has t items."""
    total = 0.0
    for t, logit in enumerate(stop_logits):
        if t > target.total():
            break
        signed = logit if t == target.total() else -logit
        # -log sigmoid(signed), from the side on which exp cannot overflow
        total += math.log1p(math.exp(-signed)) if signed > 0 else math.log1p(math.exp(signed)) - signed
    return total


# Ways to end


def kept_until_stop(stop_logits: Row, threshold: float) -> list[bool]:
    """Label t is kept if no slot up to t stops; the last slot always stops."""
    kept, going = [], True
    for t, logit in enumerate(stop_logits):
        stops = 1 / (1 + math.exp(-logit)) > threshold or t == len(stop_logits) - 1
        going = going and not stops
        kept.append(going)
    return kept


def kept_until_end(labels: Sequence[int], end: int) -> list[bool]:
    """Labels before the first END; the last slot is END's and never kept."""
    first = labels.index(end) if end in labels else len(labels) - 1
    return [t < min(first, len(labels) - 1) for t in range(len(labels))]


# Appendix A: metrics


def enumerated(multiset: Multiset) -> set[tuple[int, int]]:
    """Appendix A: turn a multiset into a set by numbering the instances of each class."""
    return {(label, m) for label, n in multiset.items() for m in range(1, n + 1)}


def exact_match(predicted: Multiset, target: Multiset) -> float:
    """1 if both hold the same elements with the same multiplicities."""
    return float(enumerated(predicted) == enumerated(target))


def precision(predicted: Multiset, target: Multiset) -> float:
    """Correctly predicted elements over predicted elements."""
    if not predicted or not target:
        return float(not predicted and not target)
    correct = sum(1 for element in enumerated(predicted) if element in enumerated(target))
    return correct / predicted.total()


def recall(predicted: Multiset, target: Multiset) -> float:
    """Correctly predicted elements over the target's elements."""
    if not predicted or not target:
        return float(not predicted and not target)
    correct = sum(1 for element in enumerated(predicted) if element in enumerated(target))
    return correct / target.total()


def f1(predicted: Multiset, target: Multiset) -> float:
    """Harmonic mean of precision and recall; 0 if both are 0."""
    p, r = precision(predicted, target), recall(predicted, target)
    return 2 * p * r / (p + r) if p + r else 0.0


def class_f1(predicted: Sequence[Multiset], target: Sequence[Multiset]) -> float:
    """The class-averaged F1 of the paper's tables: mean over the classes that occur in a target."""
    scores = []
    for label in sorted({label for multiset in target for label in +multiset}):
        pairs = [(a[label], b[label]) for a, b in zip(predicted, target, strict=True) if b[label] > 0]
        p = math.fsum(min(a, b) / max(a, 1) for a, b in pairs) / len(pairs)
        r = math.fsum(min(a, b) / b for a, b in pairs) / len(pairs)
        scores.append(2 * p * r / (p + r) if p + r else 0.0)
    return math.fsum(scores) / len(scores) if scores else math.nan


def count_mae(predicted: Multiset, target: Multiset, num_classes: int) -> float:
    """Mean absolute error of the counts of one example, over the classes."""
    return math.fsum(abs(predicted[c] - target[c]) for c in range(num_classes)) / num_classes


def count_rmse(
    predicted: Sequence[Multiset], target: Sequence[Multiset], num_classes: int, *, nonzero: bool, relative: bool
) -> float:
    """The four forms of mRMSE of Chattopadhyay et al. (2017), class by class and example by example."""
    errors = []
    for label in range(num_classes):
        squares = []
        for a, b in zip(predicted, target, strict=True):
            if b[label] > 0 or not nonzero:
                squares.append((a[label] - b[label]) ** 2 / (b[label] + 1 if relative else 1))
        if squares:
            errors.append(math.sqrt(math.fsum(squares) / len(squares)))
    return math.fsum(errors) / len(errors) if errors else math.nan
