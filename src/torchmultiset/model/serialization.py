"""The files of a saved predictor: ``predictor.json``, and the weights that it names by their SHA-256."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from torchmultiset._files import write_whole

__all__ = ["DESCRIPTION", "describe", "make", "read_description", "read_saved", "write_saved"]

FORMAT = 2
"""Format 1 called a head a policy; it is still read."""
DESCRIPTION = "predictor.json"


def write_saved(
    folder: Path, state: Mapping[str, Tensor], description: Mapping[str, Any], record: Mapping[str, Any]
) -> None:
    """Put a predictor into a folder at once: it always holds the old one or the new one.

    Args:
        folder: Made if need be.
        state: Weights; no two of them share memory.
        description: What it is.
        record: What else to keep.
    """
    weights = safetensors.torch.save(dict(state))
    sha256 = hashlib.sha256(weights).hexdigest()
    whole = {"format": FORMAT, **description, "weights_sha256": sha256}
    for name, value in {"record": record, "what modules are made with": whole}.items():
        try:
            json.dumps(dict(value), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be something that JSON can hold, which NaN is not: {error}") from error
    write_whole(folder / _weights_file(sha256), weights)
    write_whole(folder / DESCRIPTION, json.dumps({**whole, "record": dict(record)}, indent=2) + "\n")
    for path in folder.iterdir():  # of the predictor that was here, and of saves that were cut short
        if _OURS.fullmatch(path.name) and path.name not in (_weights_file(sha256), DESCRIPTION):
            path.unlink()


def read_description(folder: Path) -> dict[str, Any]:
    """What `predictor.json` says, checked for its format."""
    path = folder / DESCRIPTION
    if not path.exists():
        raise FileNotFoundError(f"there is no predictor in {folder}: {DESCRIPTION} is missing")
    try:
        description = json.loads(path.read_text())
        found = description["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged, or not the description of a predictor") from error
    if found not in (1, FORMAT):
        raise ValueError(f"{path} has format {found}, but this version of torchmultiset reads formats 1 and {FORMAT}")
    described: dict[str, Any] = description
    return described


def describe(module: nn.Module, known: Mapping[str, type[nn.Module]]) -> dict[str, Any] | None:
    """A module of ours by its class and the arguments that it was made with; None for one of the user's own."""
    name = type(module).__name__
    if known.get(name) is not type(module):
        return None
    return {"class": name, "arguments": module.arguments}


def make(
    described: Mapping[str, Any] | None, known: Mapping[str, type[nn.Module]], what: str, folder: Path
) -> nn.Module:
    """The module that was described, with new weights."""
    if described is None:
        raise ValueError(
            f"the {what} of the predictor in {folder} is not part of torchmultiset: give one of the same make,"
            f" load(folder, {what}=...)"
        )
    if described["class"] not in known:
        raise ValueError(f"the predictor in {folder} has an unknown {what}, {described['class']!r}")
    # JSON has no tuples, and no argument of ours is a list.
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in dict(described["arguments"]).items()}
    return known[described["class"]](**arguments)


def _weights_file(sha256: str) -> str:
    return f"weights-{sha256[:12]}.safetensors"


# What `save` may leave in a folder if it is killed, and what it leaves if not.
_OURS = re.compile(r"(weights-[0-9a-f]{12}\.safetensors|predictor\.json)(\.partial)?")


def read_saved(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and weights that belong together."""
    description = read_description(folder)
    try:
        sha256 = str(description["weights_sha256"])
    except KeyError as error:
        raise ValueError(f"{folder / DESCRIPTION} is damaged: {error!r}") from error
    path = folder / _weights_file(sha256)
    try:
        weights = path.read_bytes()
    except FileNotFoundError:
        if read_description(folder) != description:  # replaced by another predictor just now
            return read_saved(folder)
        raise FileNotFoundError(f"there is no predictor in {folder}: {path.name} is missing") from None
    if hashlib.sha256(weights).hexdigest() != sha256:
        raise ValueError(f"{path} is damaged, or does not belong to {DESCRIPTION} beside it: save the predictor again")
    try:
        return description, safetensors.torch.load(weights)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
