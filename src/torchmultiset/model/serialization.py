"""Files of a saved predictor: ``predictor.json``, and the weights file, identified by its SHA-256."""

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

from torchmultiset._files import json_sha256, write_whole

__all__ = ["DESCRIPTION", "describe_module", "make", "read_description", "read_saved", "write_saved"]

FORMAT = 2
"""Current file format. Format 1, which stored heads under "policy", can still be read."""
DESCRIPTION = "predictor.json"
SAVE_AGAIN = "copy the folder from its source again, or train and save the predictor again"
_OWN = "description_sha256"
_TRIES = 10
"""Number of times that a predictor is read while another process replaces it."""


def write_saved(
    folder: Path, state: Mapping[str, Tensor], description: Mapping[str, Any], record: Mapping[str, Any]
) -> None:
    """Write a predictor to a folder atomically: the folder always holds either the old or the new predictor.

    No two tensors of `state` may share memory.
    """
    weights = safetensors.torch.save(dict(state))
    sha256 = hashlib.sha256(weights).hexdigest()
    whole = {"format": FORMAT, **description, "weights_sha256": sha256}
    for name, value in {"record": record, "the arguments of the modules": whole}.items():
        try:
            json.dumps(dict(value), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be serialisable as JSON, without NaN: {error}") from error
    write_whole(folder / _weights_file(sha256), weights)
    whole["record"] = dict(record)
    write_whole(folder / DESCRIPTION, json.dumps({**whole, _OWN: json_sha256(whole)}, indent=2) + "\n")
    for path in folder.iterdir():  # files of the previous predictor and of interrupted saves
        if _OURS.fullmatch(path.name) and path.name not in (_weights_file(sha256), DESCRIPTION):
            path.unlink()


def read_description(folder: Path) -> dict[str, Any]:
    """Read ``predictor.json`` and check its format."""
    path = folder / DESCRIPTION
    if not path.exists():
        fix = "choose the folder of a run of `multiset train`, such as runs/pets, or of a saved model"
        raise FileNotFoundError(f"there is no predictor in {folder}: {DESCRIPTION} is missing; {fix}")
    try:
        description = json.loads(path.read_text())
        found = description["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, or not the description of a predictor: {SAVE_AGAIN}") from error
    if found not in (1, FORMAT):
        raise ValueError(
            f"{path} has format {found}, but this version of torchmultiset reads formats 1 and {FORMAT}: use the"
            " version that wrote it"
        )
    described: dict[str, Any] = description
    own = described.pop(_OWN, None)  # predictors saved by version 0.1 have none
    if own is not None and own != json_sha256(described):
        raise ValueError(
            f"{path} was changed after the predictor was saved: {SAVE_AGAIN}; if you changed it on purpose, remove the"
            f" line {_OWN}"
        )
    return described


def describe_module(module: nn.Module, known: Mapping[str, type[nn.Module]]) -> dict[str, Any] | None:
    """Return the class and arguments of a module of this library; None for a custom module."""
    name = type(module).__name__
    if known.get(name) is not type(module):
        return None
    return {"class": name, "arguments": module.arguments}


def make(
    described: Mapping[str, Any] | None, known: Mapping[str, type[nn.Module]], what: str, folder: Path
) -> nn.Module:
    """Create the module that a description specifies, with new weights."""
    if described is None:
        raise ValueError(
            f"the {what} of the predictor in {folder} is not part of torchmultiset: pass one with the same"
            f" architecture, load(folder, {what}=...)"
        )
    if described["class"] not in known:
        raise ValueError(f"the predictor in {folder} has an unknown {what}, {described['class']!r}")
    # JSON has no tuples, and no argument of a module is a list.
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in dict(described["arguments"]).items()}
    return known[described["class"]](**arguments)


def _weights_file(sha256: str) -> str:
    return f"weights-{sha256[:12]}.safetensors"


# Files that `save` writes, and temporary files that it may leave behind when it is killed.
_OURS = re.compile(r"(weights-[0-9a-f]{12}\.safetensors|predictor\.json)(\.partial)?")


def read_saved(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the description and the weights of a predictor."""
    for _ in range(_TRIES):
        description = read_description(folder)
        try:
            sha256 = str(description["weights_sha256"])
        except KeyError as error:
            raise ValueError(f"{folder / DESCRIPTION} is damaged, {error!r}: {SAVE_AGAIN}") from error
        path = folder / _weights_file(sha256)
        try:
            weights = path.read_bytes()
        except FileNotFoundError:  # perhaps another process has replaced the predictor in the meantime
            continue
        break
    else:
        raise FileNotFoundError(f"there is no predictor in {folder}: {path.name} is missing; {SAVE_AGAIN}")
    if hashlib.sha256(weights).hexdigest() != sha256:
        raise ValueError(f"{path} is damaged, or does not belong to the {DESCRIPTION} next to it: {SAVE_AGAIN}")
    try:
        return description, safetensors.torch.load(weights)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file ({error}): {SAVE_AGAIN}") from error
