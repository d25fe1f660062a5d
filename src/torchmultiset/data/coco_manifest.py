"""Export of a data set built from COCO to a manifest, the JSONL file that `data.manifest` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from torchmultiset._checks import check
from torchmultiset.data._write import as_jsonl, relative_path, rounded, upright_boxes, write_new
from torchmultiset.data.coco import Coco
from torchmultiset.data.examples import Examples
from torchmultiset.data.images import ImageFiles, image_sizes, letterbox

__all__ = ["write_coco_manifest"]


def write_coco_manifest(path: str | Path, coco: Coco) -> None:
    """Write the three splits to one file that `read_manifest` reads.

    Each line has the path of an image, relative to the folder of the file; its labels, split and id; and the box and
    area of each label's object in pixels of the image after EXIF rotation. An existing file must have the same
    content.

    Raises:
        FileExistsError: The file exists with different content.
    """
    path = Path(path)
    check(path.suffix == ".jsonl", "path", "a .jsonl file", str(path))
    splits = {"train": coco.train, "validation": coco.validation, "test": coco.test}
    ids = [name for examples in splits.values() for name in examples.ids or ()]
    # Outside COCO, train and test may share image ids; without ids, the paths identify the images.
    with_ids = len(set(ids)) == len(ids)
    lines = [line for split, examples in splits.items() for line in _lines(path, split, examples, with_ids)]
    write_new(path, as_jsonl(lines))


def _lines(path: Path, split: str, examples: Examples, with_ids: bool) -> Iterator[Mapping[str, object]]:
    assert isinstance(examples.inputs, ImageFiles)
    assert examples.boxes is not None
    assert examples.areas is not None
    paths = examples.inputs.paths
    stored = image_sizes(paths)
    resized, corner = letterbox(stored, examples.inputs.size)
    scale = resized / stored
    for row, image in enumerate(paths):
        present = examples.labels[row] >= 0
        boxes = examples.boxes[row, present].astype(np.float64)
        boxes = np.concatenate([boxes[:, :2] - corner[row], boxes[:, 2:]], axis=1) / np.tile(scale[row], 2)
        line = {
            "image": relative_path(image, path),
            "labels": [examples.classes[label] for label in examples.labels[row, present]],
            "split": split,
            "boxes": rounded(upright_boxes(boxes, stored[row], image)),
            "areas": rounded(examples.areas[row, present].astype(np.float64) / scale[row].prod()),
        }
        yield line | ({"id": examples.ids[row]} if with_ids and examples.ids else {})
