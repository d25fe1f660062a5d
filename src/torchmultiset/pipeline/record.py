"""Records of a run: its config, software, hardware and data.

Records contain no absolute paths: of a path outside the working folder, only the last part is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import torch

from torchmultiset import __version__
from torchmultiset._files import write_whole
from torchmultiset.data import store
from torchmultiset.data.load import is_store
from torchmultiset.pipeline.config import ResolvedConfig, RunConfig, to_dict
from torchmultiset.training.checkpoint import Progress

__all__ = [
    "CONFIG",
    "FORMER",
    "RECORD",
    "Journal",
    "Watch",
    "data_record",
    "differences",
    "environment",
    "portable",
    "portable_command",
    "read_config",
    "read_json",
    "read_record",
    "translated",
    "write_config",
    "write_record",
]

CONFIG, RECORD = "config.toml", "run.json"
_PACKAGES = ("torch", "numpy", "lightning-fabric", "safetensors", "pillow")
# Paths do not identify a run: the data has a checksum.
_PLACES = ("data", "start_from")
_ADDED = (
    *("strides", "finetune", "views", "units", "attention", "hidden", "dropout", "size_potential", "size_head"),
    *("decoding", "lr", "weight_decay", "ema", "augment", "mosaic", "label_smoothing"),
)
FORMER: dict[str, Any] = {
    **{name: value for name, value in to_dict(ResolvedConfig()).items() if name in _ADDED},
    "policy_norm": "none",
    "precision": "32-true",
}
"""Former values of settings that the configs of older runs lack."""
_UNSET = {"epochs": 0, "batch_size": 0, "image_size": 0, "max_size": 0, "start_from": "", "data": ""}
# Removed settings with their former defaults, None for any: configs of older runs contain them.
_RETIRED = {"coaching": 0.0, "fresh": False, "distort": False, "elastic": False, "mnist": None, "mnist_multi": None}
_INSTEAD = dict.fromkeys(("fresh", "distort", "elastic"), ": `multiset data build mnist-multi` has --fresh instead")


def read_config(path: str | Path) -> dict[str, Any]:
    """Read the settings of a config file, which may be that of an older run.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not TOML, or has a removed setting with a value other than its default.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no config file {path}")
    if path.suffix.lower() != ".toml":
        raise ValueError(
            f"a config file must end in .toml, but is {path}: write one line for each setting, `epochs = 3`"
        )
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}. Correct it, or copy the config.toml of a run") from None
    for name, default in _RETIRED.items():
        if default is not None and values.get(name, default) != default:
            raise ValueError(
                f"{path} has {name} = {str(values[name]).lower()}, but this setting was removed"
                f"{_INSTEAD.get(name, f': only its former default, {default}, is accepted')}"
            )
    return translated(values)


def translated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the settings of an older run to the current format.

    Removed settings are dropped, and so are those without a value, which older runs wrote as "auto", 0 or an empty
    string.

    Example:
        >>> translated({"epochs": 0, "policy": "auto", "lr": 0.003, "coaching": 0.0})
        {'lr': 0.003}
    """
    return {
        name: value
        for name, value in values.items()
        if name not in _RETIRED and value is not None and value not in ("auto", _UNSET.get(name))
    }


def write_config(folder: Path, config: RunConfig) -> None:
    """Write ``config.toml``: all settings under the names of their flags, grouped as in the config."""
    lines = ["# All settings of this run. To repeat it: multiset train --config config.toml --out FOLDER"]
    for part in fields(config):
        value = getattr(config, part.name)
        values = {part.name: value}
        lines.append("")
        if is_dataclass(value):
            values = vars(value)
            lines.append(f"# {part.name}")
        for name, each in values.items():
            if each is not None:
                portable_value = portable(each) if name in _PLACES else each
                # Strings, numbers and lists of them have the same syntax in JSON and TOML.
                lines.append(f"{name} = {json.dumps(portable_value, ensure_ascii=False, allow_nan=False)}")
    write_whole(folder / CONFIG, "\n".join(lines) + "\n")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two flat configs, except for paths.

    Example:
        >>> differences({"epochs": 3, "channels": [4]}, {"epochs": 5, "channels": (4,)})
        ['epochs was 3 and is now 5']
    """
    names = [name for name in dict.fromkeys([*before, *now]) if name not in _PLACES]
    pairs = [(name, _plain(before.get(name)), _plain(now.get(name))) for name in names]
    return [f"{name} was {_show(old)} and is now {_show(new)}" for name, old, new in pairs if old != new]


def read_record(folder: Path) -> dict[str, Any]:
    """Read ``run.json``; return an empty dictionary if it does not exist."""
    return read_json(folder / RECORD, fix="choose another folder")


def read_json(path: Path, *, fix: str = "delete it, and the run is trained again") -> dict[str, Any]:
    """Read a JSON object from a file; return an empty dictionary if the file does not exist.

    Args:
        path: The file.
        fix: What the user should do if the file is damaged, as the end of an error message.

    Raises:
        ValueError: The file is damaged.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): {fix}") from None
    return content


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write ``run.json`` atomically."""
    write_whole(folder / RECORD, json.dumps(record, indent=2, allow_nan=False) + "\n")


Watch: TypeAlias = Callable[[Progress], None]


class Journal:
    """Updates ``run.json`` and TensorBoard after each epoch, and passes progress on to another function.

    Args:
        folder: Run folder.
        record: Content of ``run.json``.
        watch: Function to pass progress on to.
    """

    def __init__(self, folder: Path, record: dict[str, Any], watch: Watch) -> None:
        self.folder, self.record, self.watch = folder, record, watch
        self.minutes, self.start, self.epochs = record["minutes"], time.monotonic(), -1

    def __call__(self, progress: Progress) -> None:
        """Update the record after an epoch, and pass the progress on."""
        if self.epochs < 0:
            self.epochs = len(progress.history)
        if len(progress.history) > self.epochs:
            self.update()
            _tensorboard(self.folder, progress.history[self.epochs :])
            self.epochs = len(progress.history)
        self.watch(progress)

    def update(self) -> None:
        """Write the record with the minutes so far."""
        self.record["minutes"] = round(self.minutes + (time.monotonic() - self.start) / 60, 3)
        write_record(self.folder, self.record)


def _tensorboard(folder: Path, lines: Sequence[Mapping[str, int | float]]) -> None:
    if find_spec("tensorboard") is None:
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:
        for line in lines:
            for name in line.keys() - {"epoch"}:
                writer.add_scalar(name, line[name], int(line["epoch"]))


def data_record(path: str | Path) -> dict[str, str]:
    """Return the name and checksum of a data set.

    The checksum of a built data set is that of its manifest, which contains the checksums of all files. The checksum of
    any other data is that of its table; it does not cover the content of the image files listed there.
    """
    path = Path(path)
    if is_store(path):
        manifest = json.dumps(store.read_header(path), sort_keys=True).encode()
        return {"name": path.name, "sha256": hashlib.sha256(manifest).hexdigest()}
    if path.is_dir():
        path = next(file for file in (path / "labels.jsonl", path / "labels.csv") if file.is_file())
    name = path.parent.name + "/" + path.name if path.stem == "labels" else path.name
    return {"name": name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def environment() -> dict[str, Any]:
    """Return software versions, threads, machine, and the git commit, marked if there are uncommitted changes."""
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # this may be inside a checkout of another project
        commit = _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        commit = None  # not a checkout
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    return {
        "git": commit,
        "versions": {"python": platform.python_version(), "torchmultiset": __version__}
        | {name: version(name) for name in _PACKAGES},
        "threads": torch.get_num_threads(),
        "machine": {"cores": os.cpu_count(), "processor": processor, "system": platform.system()},
    }


def portable(path: str) -> str:
    """Return a path relative to the working folder if it is inside, else only its last part.

    Example:
        >>> portable("data/digits"), portable("/home/somebody/digits"), portable("bundled")
        ('data/digits', 'digits', 'bundled')
        >>> portable(str(Path.cwd() / "data" / "digits"))
        'data/digits'
    """
    given = Path(path).expanduser()
    if not path or not given.is_absolute():
        return path
    try:
        return given.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return given.name


def portable_command(tokens: Sequence[str]) -> list[str]:
    """Return the tokens of a command without absolute paths.

    Example:
        >>> portable_command(["train", "--data", "/home/me/pets.csv", "--out=/tmp/run", "--lr", "0.1"])
        ['train', '--data', 'pets.csv', '--out=run', '--lr', '0.1']
    """
    words = []
    for token in tokens:
        flag, equals, value = token.partition("=") if token.startswith("--") else ("", "", token)
        words.append(flag + equals + portable(value))
    return words


def _git(*arguments: str) -> str:
    """Return the output of a git command, executed in the folder of the code."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _show(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "not set" if value is None else str(value)
