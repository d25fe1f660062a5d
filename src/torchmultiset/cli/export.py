"""``multiset export``: write a model to a file that runs without PyTorch."""

from __future__ import annotations

import textwrap
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

from torchmultiset.data.manifest import Column
from torchmultiset.export import (
    Speed,
    batches_of,
    measure_agreement,
    open_onnx,
    random_batches,
    refuse_existing,
    save_new,
    speed,
    to_onnx,
    weight_bytes,
)
from torchmultiset.model.inputs import input_kind, open_inputs, open_model, trained_columns
from torchmultiset.model.shipped import MODEL
from torchmultiset.viz.terminal import numbers_table

__all__ = ["export_app"]

export_app = App(
    name="export",
    help_epilogue="""\
Examples:

- `multiset export runs/demo`
- `multiset export mnist-multi-4`
- `multiset export runs/demo --out digits.onnx --data data/demo --number 1000`
""",
)


@export_app.default
def export(
    model: str,
    /,
    *,
    format_: Annotated[Literal["onnx"], Parameter("--format")] = "onnx",  # noqa: ARG001  (the only choice)
    out: Annotated[Path | None, Parameter(validator=PathOf(ext="onnx", dir_okay=False))] = None,
    data: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=(), show_default=False)] = (),
    split: Literal["all", "train", "validation", "test"] = "test",
    number: Annotated[int, Parameter(validator=Number(gte=1))] = 250,
) -> None:
    """Export a model to one file that needs neither PyTorch nor this package.

    The file is written only if its predictions match PyTorch's.

    Args:
        model: Folder of a model or of a training run, name of a model that ships with the package, or address on the
            Hugging Face Hub, hf://owner/name.
        format_: File format.
        out: Output file, which must not exist. Default: the name of the model, in the current folder.
        data: Inputs on which predictions are compared: images, folders of images, .npy arrays or data sets. Default:
            random inputs.
        split: Split of data sets to use.
        number: Maximum number of inputs to compare.
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
    compared = measure_agreement(predictor, session, chain([first], batches))
    if compared.different:
        raise ValueError(
            f"the exported model predicts {compared.different} of {compared.inputs} inputs differently from PyTorch, so"
            " it was not written"
        )
    rows = [
        ("PyTorch", weight_bytes(predictor), speed(lambda x: predictor.predict(torch.from_numpy(x)), first)),
        ("ONNX Runtime", len(content), speed(lambda x: session.run(None, {"inputs": x}), first)),
    ]
    save_new(out, content)
    outputs = ", ".join(output.name for output in session.get_outputs())
    what = f"{'' if data else 'random '}input{'s' * (compared.inputs > 1)}"
    print(f"{out} agrees with PyTorch on {'all ' * (compared.inputs > 1)}{compared.inputs:,} {what}.")
    print(f"Distinct predicted multisets: {compared.multisets:,}.\n")
    Console().print(_table(rows, len(first)))
    print(f"""
Run it on inputs of type {session.get_inputs()[0].type} and shape B x {" x ".join(str(n or "N") for n in kind.shape)}:

  session = onnxruntime.InferenceSession({str(out)!r})
  {outputs} = session.run(None, {{"inputs": x}})
  classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])""")
    columns = trained_columns(predictor)
    if columns and not kind.of_tokens:
        print("\n" + textwrap.fill(_encoding(columns), 80, break_long_words=False, break_on_hyphens=False))


def _encoding(columns: Sequence[Column]) -> str:
    """Describe how the numbers of an input follow from the columns of a table."""
    names = [f"{one.name}={name}" for one in columns for name in one.categories or ("",)]
    text = f"The {len(names)} numbers of an input, in order: {', '.join(name.removesuffix('=') for name in names)}."
    if any(one.categories for one in columns):
        text += " A category is 1 where it applies, else 0."
    return text + " The metadata `columns` has the means that replace empty cells."


def _name(model: str) -> str:
    """Return the name of a model: the folder of its run if it has one, else its own folder."""
    whole = Path(model).resolve()
    return whole.parent.name if whole.name == MODEL else whole.name


def _table(rows: Sequence[tuple[str, int, Speed]], many: int) -> Table:
    threads = torch.get_num_threads()
    table = numbers_table("", f"on {threads} thread{'s' * (threads > 1)}", "size", "one input", f"each of {many}")
    for name, size, seconds in rows:
        table.add_row(name, f"{size / 1e6:.2f} MB", f"{1e3 * seconds.one:.2f} ms", f"{1e3 * seconds.many:.2f} ms")
    return table
