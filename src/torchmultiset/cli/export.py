"""``multiset export``: a model as a file that runs without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import torch
from cyclopts import App, Parameter
from cyclopts.validators import Number
from cyclopts.validators import Path as PathOf
from rich.console import Console
from rich.table import Table

from torchmultiset.export import (
    Speed,
    batches_of,
    compare,
    open_onnx,
    random_batches,
    refuse_existing,
    save_new,
    speed,
    to_onnx,
    weight_bytes,
)
from torchmultiset.pipeline.inputs import MODEL, input_kind, open_inputs, open_model
from torchmultiset.viz.terminal import empty_table

__all__ = ["app"]

app = App(
    name="export",
    help_epilogue="""\
Examples:

- `multiset export runs/demo`
- `multiset export mnist-multi-4`
- `multiset export runs/demo --out digits.onnx --data data/demo --number 1000`
""",
)


@app.default
def export(
    model: str,
    /,
    *,
    format_: Annotated[Literal["onnx"], Parameter("--format")] = "onnx",  # noqa: ARG001  (the only one so far)
    out: Annotated[Path | None, Parameter(validator=PathOf(ext="onnx", dir_okay=False))] = None,
    data: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    split: Literal["all", "train", "validation", "test"] = "test",
    number: Annotated[int, Parameter(validator=Number(gte=1))] = 250,
) -> None:
    """Write a model as one file that needs neither PyTorch nor this package.

    It is written only if it predicts the same as PyTorch does.

    Args:
        model: Folder of a model or of the run that made it, the name of a model that comes with the package, or an
            address on the hub, hf://owner/name.
        format_: Of the file.
        out: File to write, a new one. If not given, the name of the model, here.
        data: What to compare predictions on: images, folders of images, .npy arrays or data sets. If not given, random
            inputs.
        split: Which examples of data sets.
        number: On how many inputs to compare predictions, at most.
    """
    out = Path(f"{_name(model)}.onnx") if out is None else out
    refuse_existing(out)
    predictor = open_model(model)
    kind = input_kind(predictor)
    sources = open_inputs(predictor, data, split=split)
    batches = batches_of(sources, kind, number) if data else random_batches(kind, number)
    first = next(batches)
    with Console(stderr=True).status("exporting"):
        content = to_onnx(predictor)
    session = open_onnx(content)
    compared = compare(predictor, session, chain([first], batches))
    if compared.different:
        raise ValueError(
            f"what was exported predicts {compared.different} of {compared.inputs} inputs differently from PyTorch, so"
            " it was not written"
        )
    rows = [
        ("PyTorch", weight_bytes(predictor), speed(lambda x: predictor.predict(torch.from_numpy(x)), first)),
        ("ONNX Runtime", len(content), speed(lambda x: session.run(None, {"inputs": x}), first)),
    ]
    save_new(out, content)
    outputs = ", ".join(output.name for output in session.get_outputs())
    what = "inputs" if data else "random inputs"
    print(f"{out} gives PyTorch's predictions on {compared.inputs:,} {what} ({compared.multisets:,} different ones).\n")
    Console().print(_table(rows, len(first)))
    print(f"""
Use it, with inputs of type {session.get_inputs()[0].type} and shape B x {" x ".join(map(str, kind.shape))}:

  session = onnxruntime.InferenceSession({str(out)!r})
  {outputs} = session.run(None, {{"inputs": x}})
  classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])""")


def _name(model: str) -> str:
    """Of the run, if it is a run's model."""
    whole = Path(model).resolve()
    return whole.parent.name if whole.name == MODEL else whole.name


def _table(rows: Sequence[tuple[str, int, Speed]], many: int) -> Table:
    table = empty_table()
    threads = torch.get_num_threads()
    table.add_column(f"on {threads} thread{'s' * (threads > 1)}")
    for name in ("size", "one input", f"each of {many}"):
        table.add_column(name, justify="right")
    for name, size, seconds in rows:
        table.add_row(name, f"{size / 1e6:.2f} MB", f"{1e3 * seconds.one:.2f} ms", f"{1e3 * seconds.many:.2f} ms")
    return table
