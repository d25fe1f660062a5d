"""Trained predictors included in the package: each is a folder with weights and a model card, README.md.

``Predictor.load("mnist-multi-4")`` and all commands that take a model accept their names. Models on the Hugging Face
Hub have addresses such as ``hf://owner/name``; see `hub`.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from torchmultiset.model.hub import PREFIX, pull
from torchmultiset.model.serialization import DESCRIPTION

__all__ = ["MODEL", "NAMES", "locate"]

MODEL = "model"
"""Name of the folder in a run folder that holds the tested model."""

_HERE = Path(__file__).parent
NAMES = tuple(sorted(path.parent.name for path in _HERE.glob("*/predictor.json")))
"""Names of the included models."""


def locate(model: str | Path) -> Path:
    """Return the folder of a model.

    Args:
        model: Path of a folder, which may be that of a training run, name of an included model, or address on the hub.

    Raises:
        FileNotFoundError: There is no such model, or its run is not finished.
        NotADirectoryError: The path is that of a file.

    Example:
        >>> locate("mnist-multi-4").name
        'mnist-multi-4'
    """
    if str(model).startswith(PREFIX):
        return pull(str(model))
    folder = Path(model)
    if folder.exists():
        for place in (folder, folder / MODEL):
            if (place / DESCRIPTION).exists():
                return place
        if (folder / "run.json").exists():
            raise FileNotFoundError(
                f"the run in {folder} has no model yet, because it is not finished: resume it (--resume)"
            )
        if folder.is_file():
            hint = "in a command, the model comes before the inputs"
            raise NotADirectoryError(f"{model} is a file, but a model is a folder such as runs/pets: {hint}")
        return folder  # `Predictor.load` then reports the missing file
    if str(model) in NAMES:
        return _HERE / str(model)
    beside = [str(path) for path in folder.parent.glob("*/") if path.is_dir()] if folder.parent != Path() else []
    near = get_close_matches(str(model), [*beside, *NAMES], n=1)
    hint = f"did you mean {near[0]}?" if near else f"included models are {', '.join(NAMES)}"
    raise FileNotFoundError(f"there is no model {model}: neither a folder nor an included model; {hint}")
