"""Trained predictors that come with the package: each a folder with its weights and a model card, README.md.

``Predictor.load("mnist-multi-4")`` opens one, and so does each command that takes a model. One on the Hugging Face Hub
is opened by its address, ``hf://owner/name``; see `hub`.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from torchmultiset.model.hub import PREFIX, pull

__all__ = ["NAMES", "locate"]

_HERE = Path(__file__).parent
NAMES = tuple(sorted(path.parent.name for path in _HERE.glob("*/predictor.json")))
"""What they are called."""


def locate(model: str | Path) -> Path:
    """The folder of a model: a path, the name of one that comes with the package, or an address on the hub.

    Raises:
        FileNotFoundError: It is none of these.

    Example:
        >>> locate("mnist-multi-4").name
        'mnist-multi-4'
    """
    if str(model).startswith(PREFIX):
        return pull(str(model))
    if Path(model).exists():
        return Path(model)
    if str(model) in NAMES:
        return _HERE / str(model)
    near = get_close_matches(str(model), NAMES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the package brings {', '.join(NAMES)}"
    raise FileNotFoundError(f"there is no model {model}: no such folder, and no model that comes with it; {hint}")
