"""Export of a predictor to one ONNX file: encoder, all steps of greedy decoding, and the stopping rule.

The file runs with any ONNX runtime, without PyTorch and without this package. Its input is `inputs`, a batch of any
size in the format of the training data: uint8 images (B, channels, H, W), float32 vectors, or float32 tokens
(B, N, 1 + D) of any length N for text, sets and sequences: channel 0 is 0 at padding, 1 at a vector, and 257 at the
first position of a text, followed by byte + 1. A backbone is part of the file. Outputs:

- `counts` (B, C), int64: the predicted multisets.
- `sequence` (B, T), int64: the labels in the order in which they were emitted, -1 after the last. A one-shot head has
  no such output.
- `probabilities` (B, T, C), float32: the distribution over the labels at each step. With ``stop="end"`` END is an
  additional last label. For a one-shot head, the probability of at least 1, 2, ... of each class; for `OneStep`, the
  share of each class.

The metadata holds, each as JSON: `classes` (their names), `max_size`, `stop`, `input` (shape and dtype of one input,
and whether images are rotated by their EXIF tag), `torchmultiset` (the version), `weights_sha256` (as in the model's
``predictor.json``); and, where available, `columns` of a table (for each its name, and either the categories of its
one-hot encoding or, for numbers, the mean that replaces empty cells) and `git`, the commit that trained the model.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.export import Dim

from torchmultiset import __version__
from torchmultiset._checks import check
from torchmultiset._files import write_whole
from torchmultiset._install import pip_install
from torchmultiset.data.tokens import START
from torchmultiset.encoders.optional import feature_encoder
from torchmultiset.model.inputs import InputKind, Source, input_kind
from torchmultiset.model.predictor import Predictor

__all__ = [
    "BATCH",
    "Agreement",
    "Speed",
    "batches_of",
    "measure_agreement",
    "open_onnx",
    "random_batches",
    "refuse_existing",
    "save_new",
    "speed",
    "to_onnx",
    "weight_bytes",
]

BATCH = 32
"""Batch size for comparing and timing predictions."""
_PATCH = 4
_LENGTH = 16
"""Number of positions of example inputs of varying length; the exported model accepts any number."""
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class Agreement(NamedTuple):
    """Agreement of PyTorch and ONNX Runtime on the same inputs."""

    inputs: int
    different: int
    """Number of inputs for which the predicted multisets differ."""
    multisets: int
    """Number of distinct multisets that PyTorch predicted; agreement on few of them is weak evidence."""


class Speed(NamedTuple):
    """Duration of predictions."""

    one: float
    """Seconds for a single input."""
    many: float
    """Seconds per input of a batch."""


def to_onnx(predictor: Predictor, *, kind: InputKind | None = None) -> bytes:
    """Convert a predictor to the content of an ONNX file, in single precision.

    Args:
        predictor: Predictor to export; it is not modified.
        kind: Shape and dtype of its inputs; None: as given in its record.

    Raises:
        ImportError: The extra ``onnx`` is not installed.
        ValueError: PyTorch cannot export the model, for example because of a user-defined encoder or policy.
    """
    _need_packages()
    instead = getattr(predictor.encoder, "export_instead", "")
    check(not instead, "encoder", instead, type(predictor.encoder).__name__)
    kind = input_kind(predictor) if kind is None else kind
    decoder = _Decoder(copy.deepcopy(predictor).cpu().float()).eval()
    # At least two: the exporter would treat a batch of one as a constant size.
    dtype = torch.uint8 if kind.dtype == "uint8" else torch.float32
    example = torch.zeros(
        2, *(_LENGTH if kind.of_tokens and i == 0 else n for i, n in enumerate(kind.shape)), dtype=dtype
    )
    example[..., 0] += kind.of_tokens  # a position that is not padding
    names = {0: "batch", 1: "positions"} if kind.of_tokens else {0: "batch"}
    sizes = {axis: Dim(name) for axis, name in names.items()}
    with torch.no_grad(), _quiet():
        outputs = decoder.predictor.graph_outputs(example)
        try:
            exported = torch.export.export(decoder, (example,), dynamic_shapes=(sizes,), strict=False)
            program = torch.onnx.export(
                exported,
                dynamo=True,
                input_names=["inputs"],
                output_names=[*outputs],
                dynamic_shapes=(names,),
                verbose=False,
            )
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"PyTorch cannot export this model: {reason}") from error
    assert program is not None
    model: Any = program.model_proto
    graph = model.graph
    # The exporter records the source file and line of each part: remove them.
    for part in (model, graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        del part.metadata_props[:]
    model.producer_name, model.producer_version, model.doc_string = "torchmultiset", __version__, __doc__
    for name, value in _metadata(predictor, kind).items():
        model.metadata_props.add(key=name, value=json.dumps(value))
    content: bytes = model.SerializeToString()
    return content


def open_onnx(model: bytes | str | Path) -> Any:
    """Open the path or content of an ONNX file in ONNX Runtime, on the CPU, with PyTorch's number of threads."""
    _need_packages()
    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    content = model if isinstance(model, bytes) else str(model)
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def random_batches(kind: InputKind, number: int) -> Iterator[Shaped[np.ndarray, "b ..."]]:
    """Yield batches of random inputs: images of patches of random brightness, or normally distributed vectors."""
    rng = np.random.default_rng(0)
    for start in range(0, number, BATCH):
        b = min(BATCH, number - start)
        if kind.of_tokens:
            yield _random_tokens(kind, b, rng)
            continue
        if len(kind.shape) != 3:
            yield rng.normal(size=(b, *kind.shape)).astype(np.float32)
            continue
        channels, height, width = kind.shape
        shape = b, channels, -(-height // _PATCH), -(-width // _PATCH)
        patches = rng.random(shape) * (rng.random(shape) < rng.random((b, 1, 1, 1)))  # a random share of them is bright
        images = patches.repeat(_PATCH, 2).repeat(_PATCH, 3)[:, :, :height, :width]
        yield (255 * images).astype(np.uint8) if kind.dtype == "uint8" else images.astype(np.float32)


def _random_tokens(kind: InputKind, number: int, rng: np.random.Generator) -> Shaped[np.ndarray, "b n k"]:
    """Return inputs of random length: lower-case letters, or normally distributed vectors."""
    x = rng.normal(size=(number, _LENGTH, kind.shape[1])).astype(np.float32)
    x[..., 0] = rng.integers(98, 124, size=x.shape[:2])
    x[:, 0, 0] = START
    return x * (np.arange(_LENGTH) < rng.integers(1, _LENGTH + 1, size=number)[:, None])[..., None].astype(np.float32)


def batches_of(sources: Iterable[Source], kind: InputKind, number: int) -> Iterator[Shaped[np.ndarray, "b ..."]]:
    """Yield batches of the first inputs of some sources, at most `number` in all, in the dtype of the ONNX file."""
    for _, inputs, _ in sources:
        some = min(number, len(inputs))
        number -= some
        for start in range(0, some, BATCH):
            x = inputs[np.arange(start, min(start + BATCH, some))]
            if kind.dtype == "uint8" and x.dtype != np.uint8:  # floats from 0 to 1
                x = np.rint(255 * x).astype(np.uint8)
            yield np.ascontiguousarray(x, dtype=np.uint8 if kind.dtype == "uint8" else np.float32)


def measure_agreement(predictor: Predictor, session: Any, batches: Iterable[Shaped[np.ndarray, "b ..."]]) -> Agreement:
    """Compare the predictions of PyTorch and of a session from `open_onnx` for the same inputs."""
    predict = predictor.predict
    pairs = [(predict(torch.from_numpy(x)).numpy(), session.run(["counts"], {"inputs": x})[0]) for x in batches]
    check(len(pairs) >= 1, "batches", "at least one", len(pairs))
    expected, found = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return Agreement(
        inputs=len(expected),
        different=int((expected != found).any(1).sum()),
        multisets=len(np.unique(expected, axis=0)),
    )


def speed(predict: Callable[[Shaped[np.ndarray, "b ..."]], object], batch: Shaped[np.ndarray, "b ..."]) -> Speed:
    """Measure the duration of predictions for a batch: the median of several, after one warm-up."""
    return Speed(_seconds(lambda: predict(batch[:1])), _seconds(lambda: predict(batch)) / len(batch))


def weight_bytes(predictor: Predictor) -> int:
    """Return the size of all weights in bytes, including those of a backbone."""
    return sum(value.nbytes for value in _Decoder(predictor).state_dict().values())


def save_new(path: Path, content: bytes) -> None:
    """Write a new file atomically.

    Raises:
        FileExistsError: The file exists.
    """
    refuse_existing(path)
    write_whole(path, content)


def refuse_existing(path: Path) -> None:
    """Raise FileExistsError if the path exists."""
    if path.exists():
        raise FileExistsError(f"{path} already exists: delete it, or choose another name (--out)")


class _Decoder(nn.Module):
    """Module to export: a predictor's forward pass and greedy decoding."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor
        # A backbone is not a submodule of its encoder. Registering it here includes its weights in the file.
        encoder = feature_encoder(predictor.encoder)
        self.backbone = None if encoder is None else encoder.backbone()

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.predictor.graph_outputs(inputs).values())


def _metadata(predictor: Predictor, kind: InputKind) -> dict[str, Any]:
    known = {name: predictor.record[name] for name in ("columns", "git") if predictor.record.get(name)}
    return {
        "classes": predictor.classes,
        "max_size": predictor.max_size,
        "stop": predictor.stop,
        "input": asdict(kind),
        "torchmultiset": __version__,
        "weights_sha256": hashlib.sha256(safetensors.torch.save(predictor.weights())).hexdigest(),
        **known,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and log messages of PyTorch's exporter."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _need_packages() -> None:
    for name in _PACKAGES:
        try:
            import_module(name)
        except ImportError as error:
            raise ImportError(f"exporting needs ONNX packages: {pip_install('onnx')}") from error


def _seconds(call: Callable[[], object]) -> float:
    call()
    taken: list[float] = []
    while len(taken) < 5 or (sum(taken) < 0.5 and len(taken) < 50):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return median(taken)
