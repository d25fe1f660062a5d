"""Checks that must pass with the oldest versions that pyproject.toml allows; run by `oldest.py`.

Prints one line of JSON: the outcome, the result of each check, and the environment.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

import torchmultiset
from torchmultiset import losses, metrics, multiset
from torchmultiset.cli import main as command_line
from torchmultiset.data.examples import Examples
from torchmultiset.encoders import MLPEncoder
from torchmultiset.model.objectives import MultisetObjective
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.sequential import SequentialPredictor
from torchmultiset.pipeline.record import environment
from torchmultiset.policies import LSTMPolicy
from torchmultiset.training import fit, local_fabric
from torchmultiset.training.config import OptimConfig

B, T, C = 4, 3, 5
LABELS = torch.tensor([[0, 0, 2], [1, 3, 4], [4, 4, 4], [2, 1, 0]])
TARGET = multiset.from_labels(LABELS, num_classes=C)
OTHERS = {"torchmultiset.__main__", "torchmultiset.page", "torchmultiset.cli.demo"}
"""Modules that start a program or need an extra that is not installed."""


def scores(*shape: int) -> Tensor:
    """Return random scores that require gradients."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


LOSSES: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "cell_count_loss": ((B, 6, C + 1), lambda x: losses.cell_count_loss(x, TARGET)),
    "cell_joint_loss": ((B, 6, C + 1), lambda x: losses.cell_joint_loss(x, TARGET)),
    "count_mixture_loss": ((B, 2, C, T + 1), lambda x: losses.count_mixture_loss(x, x[..., 0, 0], TARGET)),
    "count_regression_loss": ((B, C), lambda x: losses.count_regression_loss(x, TARGET)),
    "count_table_loss": ((B, C, T + 1), lambda x: losses.count_table_loss(x, TARGET)),
    "distribution_matching_loss": ((B, T, C), lambda x: losses.distribution_matching_loss(x, TARGET)),
    "hungarian_loss": ((B, T, C + 1), lambda x: losses.hungarian_loss(x, TARGET)),
    "marginal_estimate_loss": (
        (B, 1, T, C),
        lambda x: losses.marginal_estimate_loss(x, multiset.to_labels(TARGET)[:, None], TARGET, max_size=T),
    ),
    "marginal_loss": ((B, 2**T, C), lambda x: losses.marginal_loss(x, TARGET)),
    "multiset_loss": ((B, T, C), lambda x: losses.multiset_loss(x, LABELS, TARGET)),
    "one_step_loss": ((B, C), lambda x: losses.one_step_loss(x, x.sum(1), TARGET)),
    "poisson_count_loss": ((B, C), lambda x: losses.poisson_count_loss(x, TARGET)),
    "power_loss": ((B, multiset.how_many(C, T, min_size=0)), lambda x: losses.power_loss(x, TARGET, max_size=T)),
    "reinforce_loss": ((B, T, C), lambda x: losses.reinforce_loss(x, LABELS, TARGET)),
    "sequence_loss": ((B, T, C), lambda x: losses.sequence_loss(x, LABELS)),
    "sized_count_loss": ((B, C, T + 1), lambda x: losses.sized_count_loss(x.log_softmax(-1), TARGET)),
    "stop_loss": ((B, T + 1), lambda x: losses.stop_loss(x, TARGET)),
}
"""Loss -> shape of its first argument, and a call with that argument."""


def check_imports() -> None:
    """Import every module that needs no other extras."""
    for found in pkgutil.walk_packages(torchmultiset.__path__, "torchmultiset."):
        if not any(found.name == name or found.name.startswith(f"{name}.") for name in OTHERS):
            importlib.import_module(found.name)


def check_losses() -> None:
    """Check that every loss has a finite value and finite gradients."""
    assert {*LOSSES} == {name for name in losses.__all__ if name.endswith("_loss")}
    for name, (shape, loss) in LOSSES.items():
        x = scores(*shape)
        value = loss(x)
        value.backward()
        assert value.isfinite(), name
        assert x.grad is not None, name
        assert x.grad.isfinite().all(), name


def check_metrics() -> None:
    """Check every metric, as a function and as a class."""
    other = TARGET.roll(1, 0)
    for name, metric in {
        "exact_match": metrics.ExactMatch(),
        "precision": metrics.Precision(),
        "recall": metrics.Recall(),
        "f1": metrics.F1(),
        "class_f1": metrics.ClassF1(C),
    }.items():
        function = getattr(metrics, name)
        for predicted, right in ((TARGET, True), (other, False)):
            metric.reset()
            metric.update(predicted, TARGET)
            value = metric.compute()
            assert torch.allclose(value, function(predicted, TARGET).mean().to(value.dtype)), name
            assert (value == 1) == right, name
    logits = scores(B, T, C).detach()
    steps = metrics.StepEntropy(T)
    steps.update(logits)
    assert torch.allclose(steps.compute().mean, metrics.step_entropy(logits).mean(0))


def check_fit_predict_save_load() -> None:
    """Fit a predictor on vectors, predict, save, load, and predict the same."""
    torch.manual_seed(0)
    labels = np.array([[i % 3, -1 if i % 2 else 3] for i in range(96)])
    inputs = np.eye(6, dtype=np.float32)[[i % 6 for i in range(96)]]
    examples = Examples(inputs, labels, tuple("abcd"))
    predictor = SequentialPredictor(
        MLPEncoder(6, (32,)), LSTMPolicy(4, 32, hidden=32), tuple("abcd"), max_size=2, stop="policy"
    )
    optim = OptimConfig(epochs=30, batch_size=16, lr=0.01)
    fit(predictor, MultisetObjective(), examples, examples, optim, Path("fitted"), seed=0, fabric=local_fabric())
    batch = examples.batch(np.arange(6))
    predicted = predictor.eval().predict(batch.x)
    assert float(metrics.exact_match(predicted, batch.target).mean()) == 1
    predictor.save("saved")
    assert torch.equal(Predictor.load("saved").predict(batch.x), predicted)


def check_shipped_models() -> None:
    """Predict with shipped models, one with a policy and one with a count head, also for an empty batch."""
    for name in ("mnist-multi-4", "mnist-multi-4-counts"):
        predictor = Predictor.load(name)
        for number in (2, 0):
            counts = predictor.predict(torch.zeros(number, 1, 100, 100, dtype=torch.uint8))
            assert counts.shape == (number, 10), name


def check_table() -> None:
    """Run the command line on a table of numbers, with a count head and with the multiset loss."""
    lines = [f"{1 + i % 3},{i % 2},{1 + i % 3},{i % 2}" for i in range(60)]
    Path("trip.csv").write_text("\n".join(["people,far,count:ticket,count:sandwich", *lines]))
    for objective in ("counts", "multi"):
        run = f"runs/{objective}"
        multiset_command("train", "trip.csv", "--objective", objective, "--epochs", "2", "--out", run)
        multiset_command("evaluate", run, "trip.csv")
        multiset_command("predict", run, "trip.csv", "--json")
    multiset_command("compare", "trip.csv", "runs/counts", "runs/multi")


def check_digits() -> None:
    """Run the command line on images of the bundled digits, with figures."""
    small = ("--train", "64", "--validation", "16", "--test", "16", "--canvas", "60", "--digit-px", "20", "28")
    multiset_command("data", "build", "mnist-multi", "digits", "--variant", "1-4", "--mnist", "bundled", *small)
    multiset_command("data", "preview", "digits", "digits.png")
    multiset_command("train", "--data", "digits", "--objective", "multi", "--epochs", "1", "--out", "runs/digits")
    multiset_command(
        "predict", "runs/digits", "digits", "--split", "test", "--number", "4", "--figure", "predicted.png"
    )
    for picture in ("digits.png", "predicted.png", "runs/digits/curve.png"):
        assert Path(picture).stat().st_size > 1000, picture


def check_estimator() -> None:
    """Fit the scikit-learn estimator."""
    from torchmultiset import MultisetClassifier

    X, Y = [[0, 1], [1, 0], [2, 1]] * 20, [["cat"], ["dog"], ["cat", "dog", "dog"]] * 20
    model = MultisetClassifier(epochs=30, lr=0.01, random_state=0).fit(X, Y)
    assert model.predict([[2, 1]]) == [["cat", "dog", "dog"]]


def multiset_command(*arguments: str) -> None:
    """Run the command line, and check that its exit code is 0."""
    code = command_line([*arguments])
    assert code == 0, f"multiset {' '.join(arguments)} exited with code {code}"


CHECKS = {
    "import": check_imports,
    "losses": check_losses,
    "metrics": check_metrics,
    "fit, predict, save, load": check_fit_predict_save_load,
    "models of the package": check_shipped_models,
    "table of numbers": check_table,
    "pictures of digits": check_digits,
    "scikit-learn": check_estimator,
}


def main() -> int:
    """Run all checks; return 0 if all pass."""
    results = {}
    with TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(sys.stderr):
        for name, check in CHECKS.items():
            try:
                check()
                results[name] = "passed"
            except Exception as error:
                traceback.print_exc()
                results[name] = f"{type(error).__name__}: {error}"
    passed = {*results.values()} == {"passed"}
    print(json.dumps({"outcome": "passed" if passed else "failed", "checks": results, **environment()}))
    return 0 if passed else 1


if __name__ == "__main__":
    os.environ.setdefault("TORCHMULTISET_MNIST", "bundled")
    sys.exit(main())
