"""The examples run, and do what they say."""

import importlib.util
from pathlib import Path

import pytest
from PIL import Image

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
    for word in ("60 test pictures", "best constant answer", "4 digits", "predictions.png"):
        assert word in shown


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXAMPLES.glob("*.py"))])
def test_every_example_has_a_test(name):
    assert f'load("{name}")' in Path(__file__).read_text()
