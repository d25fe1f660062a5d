"""The examples run and give the documented results."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchmultiset.data import Examples
from torchmultiset.data.tokens import TokenRows
from torchmultiset.multiset import to_labels

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_training_loop_learns(without_shape_hook, capsys):
    assert load("training_loop").main(steps=400) > 0.9
    assert "exact match" in capsys.readouterr().out


def test_mnist_multi_trains_evaluates_and_draws(tmp_path, capsys):
    load("mnist_multi").main(number=3, folder=tmp_path, tested=60)
    with Image.open(tmp_path / "predictions.png") as picture:
        assert picture.width > 800
    shown = capsys.readouterr().out.replace("\n", "")  # a long path is broken over lines
    for word in ("60 test images", "majority baseline", "4 digits", "predictions.png"):
        assert word in shown


def test_a_predictor_is_trained_saved_and_loaded(capsys):
    assert load("predictor").main() == [["cat", "cat", "dog"], ["dog"], []]


def test_every_loss_is_finite(capsys):
    values = load("losses").main()
    assert all(math.isfinite(value) for value in values.values())
    assert len(capsys.readouterr().out.splitlines()) == len(values)


def test_metrics_do_not_depend_on_the_order_of_labels(capsys):
    exact, total = load("metrics").main()
    assert exact == [1, 0, 1]
    assert total == pytest.approx((1 + 2 / 3 + 1) / 3)


def test_a_model_is_trained_on_own_data(capsys):
    assert load("own_data").main() == [["sandwich", "ticket", "ticket", "ticket"], ["ticket"]]
    assert "epochs: " in capsys.readouterr().out


def test_the_estimator_works_in_a_pipeline(capsys):
    pytest.importorskip("sklearn", reason="the extra 'sklearn' brings scikit-learn")
    assert load("estimator").main(epochs=15) > 0.5


def test_a_language_model_writes_lists_of_known_labels(capsys):
    pytest.importorskip("transformers")
    scores = load("language_model").main(steps=3, tested=4)
    assert {*scores} == {"exact_match", "precision", "recall", "f1"}
    assert "which is irreducible" in capsys.readouterr().out


def test_deep_sets_are_trained_on_generated_collisions():
    collisions = load("collisions")
    rng = np.random.default_rng(1)
    events = [collisions.make_event(rng) for _ in range(60)]
    assert len({len(hits) for hits, _ in events}) > 5
    assert all(len(hit) == 4 for hits, _ in events for hit in hits)
    labels = to_labels(torch.tensor([[*counts.values()] for _, counts in events])).numpy()
    rows = TokenRows([np.array(hits).reshape(-1, 4) for hits, _ in events])
    model = collisions.train_deep_sets(Examples(rows, labels, collisions.KINDS, tokens="set"), epochs=2, size=16)
    assert model(torch.from_numpy(rows[np.arange(2)])).shape == (2, 3)


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXAMPLES.glob("*.py"))])
def test_every_example_has_a_test(name):
    assert f'load("{name}")' in Path(__file__).read_text()
