from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
import reference
import torch
import torch.distributed
import torch.multiprocessing
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import to_counters
from torchmetrics import Metric

from torchmultiset import metrics
from torchmultiset.metrics import F1, ClassF1, CountMAE, CountRMSE, ExactMatch, Precision, Recall, StepEntropy

C, T = 4, 3
MEANS = {"exact_match": ExactMatch, "precision": Precision, "recall": Recall, "f1": F1}
RMSE = {
    "rmse": {"nonzero": False, "relative": False},
    "rmse_nonzero": {"nonzero": True, "relative": False},
    "relative_rmse": {"nonzero": False, "relative": True},
    "relative_rmse_nonzero": {"nonzero": True, "relative": True},
}


class Data:
    """Random predictions and logits for some examples."""

    def __init__(self, examples: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.target = torch.randint(0, 3, (examples, C), generator=generator)
        self.target[:, 3] = 0  # a class that never occurs
        changed = torch.randint(0, 3, (examples, C), generator=generator)
        right = torch.rand(examples, 1, generator=generator) < 0.4
        self.counts = torch.where(right, self.target, changed)
        self.logits = torch.randn(examples, T, C, generator=generator)
        self.where = torch.rand(examples, T, generator=generator) < 0.7
        self.where[0] = True

    def wanted(self) -> dict[str, float | list[float]]:
        """Values of all metrics over all examples, by their definitions."""
        pairs = list(zip(to_counters(self.counts), to_counters(self.target), strict=True))
        entropies = [
            [reference.entropy(reference.softmax(row)) for row in self.logits[self.where[:, t], t].tolist()]
            for t in range(T)
        ]
        return {
            **{name: statistics.fmean(getattr(reference, name)(*pair) for pair in pairs) for name in MEANS},
            "class_f1": reference.class_f1(*map(list, zip(*pairs, strict=True))),
            "count_mae": statistics.fmean(reference.count_mae(*pair, C) for pair in pairs),
            **{
                name: reference.count_rmse(*map(list, zip(*pairs, strict=True)), C, **form)
                for name, form in RMSE.items()
            },
            "mean": [statistics.fmean(step) for step in entropies],
            "std": [statistics.pstdev(step) for step in entropies],
        }


def new() -> dict[str, Metric]:
    return {
        **{name: metric() for name, metric in MEANS.items()},
        "class_f1": ClassF1(num_classes=C),
        "count_mae": CountMAE(),
        **{name: CountRMSE(num_classes=C, **form) for name, form in RMSE.items()},
        "entropy": StepEntropy(steps=T),
    }


def update(all_metrics: dict[str, Metric], data: Data, chosen: slice) -> None:
    for name, metric in all_metrics.items():
        if name == "entropy":
            metric.update(data.logits[chosen], data.where[chosen])
        else:
            metric.update(data.counts[chosen], data.target[chosen])


def compute(all_metrics: dict[str, Metric]) -> dict[str, list[float]]:
    found = {name: metric.compute() for name, metric in all_metrics.items()}
    mean, std = found.pop("entropy")
    return {**{name: value.tolist() for name, value in found.items()}, "mean": mean.tolist(), "std": std.tolist()}


def check(found: dict[str, list[float]], data: Data) -> None:
    wanted = data.wanted()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name


@settings(max_examples=15)
@given(st.integers(0, 999), st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_metrics_do_not_depend_on_batch_sizes(seed, sizes):
    data, all_metrics, start = Data(sum(sizes), seed), new(), 0
    for size in sizes:
        update(all_metrics, data, slice(start, start + size))
        start += size
    check(compute(all_metrics), data)


def test_an_empty_batch_changes_nothing():
    data, all_metrics = Data(5), new()
    update(all_metrics, data, slice(0, 5))
    update(all_metrics, data, slice(5, 5))
    check(compute(all_metrics), data)


def test_reset_discards_earlier_batches():
    data, all_metrics = Data(5), new()
    update(all_metrics, Data(3, seed=9), slice(0, 3))
    for metric in all_metrics.values():
        metric.reset()
    update(all_metrics, data, slice(0, 5))
    check(compute(all_metrics), data)


def test_forward_returns_the_batch_value_and_accumulates():
    data = Data(7)
    metric = ExactMatch()
    parts = [metric(data.counts[part], data.target[part]).item() for part in (slice(0, 5), slice(5, 7))]
    each = metrics.exact_match(data.counts, data.target)
    assert parts == pytest.approx([each[:5].mean().item(), each[5:].mean().item()])
    assert metric.compute().item() == pytest.approx(each.mean().item())


def test_a_step_masked_in_all_examples_has_entropy_nan():
    metric = StepEntropy(steps=2)
    metric.update(torch.zeros(3, 2, 4), torch.tensor([[True, False]] * 3))
    curve = metric.compute()
    assert curve.mean[0].item() == pytest.approx(math.log(4))
    assert curve.std[0].item() == pytest.approx(0, abs=1e-6)
    assert curve.mean[1].isnan()


def test_all_steps_count_by_default():
    data = Data(4)
    with_mask, without = StepEntropy(steps=T), StepEntropy(steps=T)
    with_mask.update(data.logits, torch.ones(4, T, dtype=torch.bool))
    without.update(data.logits)
    assert all(torch.equal(a, b) for a, b in zip(with_mask.compute(), without.compute(), strict=True))


SHARES = [slice(0, 5), slice(5, 7)]
"""Uneven shares of the examples of two processes, for which a mean of means would be wrong."""


def one_process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=len(SHARES)
    )
    assert torch.distributed.get_world_size() == len(SHARES)
    all_metrics = new()
    update(all_metrics, Data(7), SHARES[rank])
    Path(folder, f"{rank}.json").write_text(json.dumps(compute(all_metrics)))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_metrics_are_synchronised_across_processes(tmp_path: Path):
    torch.multiprocessing.spawn(one_process, args=(str(tmp_path),), nprocs=len(SHARES))
    for rank in range(len(SHARES)):
        check(json.loads((tmp_path / f"{rank}.json").read_text()), Data(7))


def test_the_mean_of_the_values_of_processes_differs_from_the_metric():
    """This shows that the test above can fail."""
    data = Data(7)
    each = metrics.f1(data.counts, data.target)
    mean_of_means = statistics.fmean(each[share].mean().item() for share in SHARES)
    assert mean_of_means != pytest.approx(data.wanted()["f1"], abs=1e-3)
    for name, form in RMSE.items():
        parts = [metrics.count_rmse(data.counts[share], data.target[share], **form).item() for share in SHARES]
        assert statistics.fmean(parts) != pytest.approx(data.wanted()[name], abs=1e-3)


def test_metrics_are_attributes_of_the_module():
    assert set(metrics.__all__) <= set(dir(metrics))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = metrics.nothing
