"""Entropy of a policy and of the oracle at each step: the paper's figure (section 5.6, "Entropy Evolution")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor
from torch.nn.functional import pad

from torchmultiset._checks import check
from torchmultiset.data import Examples
from torchmultiset.model.predictor import Predictor
from torchmultiset.multiset import free_labels
from torchmultiset.oracle import oracle_entropy

__all__ = ["LEVELS", "curve", "entropy_curves"]

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def entropy_curves(
    predictor: Predictor,
    examples: Examples,
    *,
    seed: int = 0,
    batch_size: int = 256,
    watch: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Compute the entropy at each step, in nats, over steps whose label is part of the prediction.

    Args:
        predictor: Model with a policy; decoded greedily.
        examples: Inputs and targets.
        seed: Seed of the labels that the oracle draws.
        batch_size: Batch size.
        watch: Called after each batch with its number of examples.

    Returns:
        A curve for the ``policy``; for the ``oracle`` along its own labels, which is the paper's curve; and for the
        ``oracle_on_policy_path``, along the policy's labels, which is the target of the multiset loss. The oracle has
        two curves each: over ``instances``, as in Remark 4, and over ``classes``, like the policy's.
    """
    device, rng = next(predictor.parameters()).device, np.random.default_rng(seed)
    steps = predictor.max_size
    # Curve -> (values, mask) of each batch.
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for batch in examples.batches(batch_size):
        with torch.inference_mode(), predictor.evaluating():
            prediction = predictor.decode(batch.x.to(device))
        check(prediction.sequence is not None, "predictor", "one with a policy", predictor.kind)
        assert prediction.sequence is not None
        entropies = prediction.entropy.cpu()
        emitted, drawn = _fit(prediction.sequence.cpu(), steps), _fit(_shuffle(batch.labels, rng), steps)
        parts.setdefault("policy", []).append((_fit(entropies, steps), emitted >= 0))
        for path, labels in (("oracle", drawn), ("oracle_on_policy_path", emitted)):
            free = free_labels(batch.target, labels.clamp(min=0))
            parts.setdefault(f"{path} instances", []).append((oracle_entropy(free, of="instances"), labels >= 0))
            parts.setdefault(f"{path} classes", []).append((oracle_entropy(free, of="classes"), labels >= 0))
        watch(len(batch.x))
    curves = {name: curve(*(torch.cat(part) for part in zip(*pairs, strict=True))) for name, pairs in parts.items()}
    both = ("instances", "classes")
    return {
        "unit": "nats",
        "examples": len(examples),
        "levels": list(LEVELS),
        "policy": curves["policy"],
        "oracle": {of: curves[f"oracle {of}"] for of in both},
        "oracle_on_policy_path": {of: curves[f"oracle_on_policy_path {of}"] for of in both},
    }


def curve(values: Float[Tensor, "n t"], there: Bool[Tensor, "n t"]) -> dict[str, list[Any]]:
    """Return mean, standard deviation and quantiles at each step, over the examples that reach it.

    Example:
        >>> curve(torch.tensor([[1.0, 5.0], [3.0, 0.0]]), torch.tensor([[True, True], [True, False]]))["mean"]
        [2.0, 5.0]
    """
    steps = [values[there[:, t], t].double() for t in range(values.shape[1]) if there[:, t].any()]
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    return {
        "examples": [len(step) for step in steps],
        "mean": [float(step.mean()) for step in steps],
        "std": [float(step.std(correction=0)) for step in steps],
        "quantiles": [step.quantile(levels).tolist() for step in steps],
    }


def _shuffle(labels: Int64[Tensor, "b m"], rng: np.random.Generator) -> Int64[Tensor, "b m"]:
    """Return labels in the order in which the oracle draws them: a uniformly random one; padding stays last."""
    keys = torch.from_numpy(rng.random(labels.shape)) + 1.0 * (labels < 0)
    return labels.gather(1, keys.argsort(1))


def _fit(values: Shaped[Tensor, "b t"], steps: int) -> Shaped[Tensor, "b steps"]:
    """Truncate to `steps` columns, or pad with -1."""
    return pad(values, (0, steps - values.shape[1]), value=-1)
