from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from tiny_runs import images, vectors

from torchmultiset.data import Examples
from torchmultiset.encoders import ConvEncoder, MLPEncoder
from torchmultiset.heads import OneStep
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import LSTMPolicy
from torchmultiset.viz.entropy import LEVELS, curve, entropy_curves
from torchmultiset.viz.entropy_figure import draw_oracle, draw_path, draw_policy


def same_size(count: int, size: int) -> Examples:
    labels = np.random.default_rng(0).integers(0, 3, (count, size))
    counts = (labels[:, :, None] == np.arange(3)).sum(1)
    return Examples(counts.astype(np.float32), labels, ("a", "b", "c"))


def model(*, size: int, stop: str) -> Predictor:
    torch.manual_seed(0)
    return Predictor(MLPEncoder(3, (16,)), LSTMPolicy(3, 16, hidden=16), ["a", "b", "c"], max_size=size, stop=stop)


def entropy(weights) -> float:
    total = sum(weights)
    return -sum(w / total * math.log(w / total) for w in weights if w)


def free_after(target: list[int], emitted: list[int]) -> Counter:
    free = Counter(target)
    for label in emitted:
        free -= Counter([label])  # never below 0
    return free


@pytest.mark.parametrize("stop", ["fixed", "policy"])
def test_curves_equal_the_definitions_in_plain_loops(stop):
    examples = same_size(40, 4) if stop == "fixed" else vectors(40)
    predictor = model(size=4 if stop == "fixed" else 3, stop=stop)
    entropies = entropy_curves(predictor, examples, batch_size=7)
    policy, classes, instances = {}, {}, {}
    for i in range(len(examples)):
        prediction = predictor.explain(examples.batch([i]).x)
        emitted = [label for label in prediction.sequence[0].tolist() if label >= 0]
        target = [int(label) for label in examples.labels[i] if label >= 0]
        for t in range(len(emitted)):
            free = free_after(target, emitted[:t])
            policy.setdefault(t, []).append(entropy(prediction.probabilities[0, t].tolist()))
            classes.setdefault(t, []).append(entropy(free.values()) if free else 0.0)
            instances.setdefault(t, []).append(math.log(free.total()) if free else 0.0)
    path = entropies["oracle_on_policy_path"]
    for ours, reference in ((entropies["policy"], policy), (path["classes"], classes), (path["instances"], instances)):
        assert ours["examples"] == [len(values) for values in reference.values()]
        for t, values in reference.items():
            assert ours["mean"][t] == pytest.approx(np.mean(values), abs=1e-5)
            assert ours["std"][t] == pytest.approx(np.std(values), abs=1e-5)
            assert ours["quantiles"][t] == pytest.approx(np.quantile(values, LEVELS), abs=1e-5)
    if stop == "policy":
        assert entropies["policy"]["examples"][0] > entropies["policy"]["examples"][-1]


def test_the_entropy_of_the_oracle_falls_as_in_remark_4():
    entropies = entropy_curves(model(size=4, stop="fixed"), same_size(300, 4))["oracle"]
    assert entropies["instances"]["mean"] == pytest.approx([math.log(4), math.log(3), math.log(2), 0])
    assert entropies["instances"]["std"] == pytest.approx([0] * 4)
    # Before the last step one item is left, hence one class. Before the first step the whole target is left.
    assert entropies["classes"]["mean"][-1] == 0
    counts = same_size(300, 4).counts
    assert entropies["classes"]["mean"][0] == pytest.approx(
        np.mean([entropy(row.tolist()) for row in counts]), abs=1e-5
    )
    assert entropies["classes"]["mean"][0] < math.log(4)


def test_the_oracle_draws_all_orders_equally_often():
    # From {a, a, b}, b is drawn first in one of three cases, which leaves only class a.
    examples = Examples(np.zeros((6000, 3), np.float32), np.array([[0, 0, 1]] * 6000), ("a", "b", "c"))
    entropies = entropy_curves(model(size=3, stop="fixed"), examples)["oracle"]["classes"]
    third = entropy([2, 1])
    assert entropies["mean"][0] == pytest.approx(third, abs=1e-6)
    # In the other two cases {a, b} is left.
    assert entropies["mean"][1] == pytest.approx(2 / 3 * math.log(2), abs=0.03)


def test_a_one_step_model_is_refused():
    encoder = ConvEncoder(1, (4, 8))
    one_step = Predictor(encoder, OneStep(3, encoder.memory_shape(24, 24)[0]), ["a", "b", "c"], max_size=3)
    with pytest.raises(ValueError, match="one with a policy"):
        entropy_curves(one_step, images(4))


def test_a_step_that_no_example_reaches_is_omitted():
    entropies = curve(torch.ones(2, 3), torch.tensor([[True, True, False], [True, False, False]]))
    assert entropies["examples"] == [2, 1]


def test_the_figure_shows_the_policy_and_both_oracles_with_bands_of_90_percent():
    entropies = entropy_curves(model(size=4, stop="fixed"), same_size(40, 4))
    axes = Figure().subplots()
    draw_oracle(axes, entropies, spread=True)
    draw_policy(axes, entropies, spread=True, label="policy", color="blue")
    curves = {
        "oracle, instances": entropies["oracle"]["instances"],
        "oracle, classes": entropies["oracle"]["classes"],
        "policy": entropies["policy"],
    }
    assert {line.get_label(): line.get_ydata().tolist() for line in axes.lines} == {
        name: of["mean"] for name, of in curves.items()
    }
    assert [LEVELS[0], LEVELS[-1]] == pytest.approx([0.05, 0.95])
    draw_path(axes, entropies)
    assert axes.lines[-1].get_ydata().tolist() == entropies["oracle_on_policy_path"]["classes"]["mean"]
    for band, of in zip(axes.collections, curves.values(), strict=True):
        corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
        assert corners >= {(t + 1, row[i]) for t, row in enumerate(of["quantiles"]) for i in (0, -1)}
