"""State of a training run on disk: progress, moving average of the weights, checkpoint."""

from __future__ import annotations

import hashlib
import io
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from torchmultiset._checks import check
from torchmultiset._files import write_whole
from torchmultiset.model.predictor import Predictor
from torchmultiset.training.config import ResolvedOptim

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Progress", "read_checkpoint"]

CHECKPOINT, EPOCHS, BEST = "checkpoint.pt", "epochs.jsonl", "best"
_MAGIC = b"torchmultiset checkpoint, SHA-256 "
_ARCHIVE = b"PK\x03\x04"  # checkpoints of version 0.1 have no checksum


@dataclass
class Progress:
    """State of a run, apart from weights and optimiser."""

    epoch: int = 0
    """Number of completed epochs."""
    step: int = 0
    """Number of completed steps of the current epoch."""
    loss: float = math.nan
    """Loss of the last step."""
    loss_sum: float = 0.0
    """Sum of the losses of the current epoch."""
    seconds: float = 0.0
    """Duration of the current epoch so far, without validation."""
    best_em: float = -1.0
    """Exact match of the saved epoch on the validation data."""
    best_f1: float = -1.0
    """F1 of the saved epoch on the validation data."""
    best_loss: float = math.inf
    """Loss of the saved epoch on the validation data, if it selects the epoch."""
    since_best: int = 0
    """Number of epochs since the saved one."""
    history: list[dict[str, int | float]] = field(default_factory=list)
    """One record per completed epoch: losses, validation scores and speed."""

    def seen(self, examples: int, batch_size: int) -> int:
        """Return the number of examples processed so far.

        Args:
            examples: Number of examples per epoch.
            batch_size: Number of examples per step.
        """
        return self.epoch * examples + min(self.step * batch_size, examples)


class MovingAverage(AveragedModel):
    """Exponential moving average of weights and running statistics; its decay grows over the first steps."""

    def __init__(self, predictor: Predictor, decay: float) -> None:
        def average(averaged: Any, current: Any, number: Any) -> None:
            steps = int(number)
            keep = min(decay, (1 + steps) / (10 + steps))
            for old, new in zip(averaged, current, strict=True):
                old.lerp_(new, 1 - keep) if old.is_floating_point() else old.copy_(new)

        super().__init__(predictor, multi_avg_fn=average, use_buffers=True)


@dataclass
class Checkpoint:
    """Reads and writes the state from which a run can be resumed."""

    folder: Path
    fabric: Fabric
    predictor: Predictor
    average: MovingAverage | None
    adam: torch.optim.AdamW
    schedule: LRScheduler
    settings: dict[str, Any]
    """Settings that must be the same when a run is resumed."""

    @property
    def validated(self) -> Predictor:
        """Predictor that is validated and saved: the one with averaged weights, if there is an average."""
        if self.average is None:
            return self.predictor
        assert isinstance(self.average.module, Predictor)
        return self.average.module

    def save(self, progress: Progress) -> None:
        """Write `epochs.jsonl`, then the checkpoint."""
        if not self.fabric.is_global_zero:
            return
        lines = "".join(json.dumps(line) + "\n" for line in progress.history)
        write_whole(self.folder / EPOCHS, lines)
        state = {name: part.state_dict() for name, part in self._parts().items()}
        state |= {"progress": vars(progress), "settings": self.settings}
        content = io.BytesIO()
        torch.save(state, content)
        sha256 = hashlib.sha256(content.getbuffer()).hexdigest()
        write_whole(self.folder / CHECKPOINT, _MAGIC + sha256.encode() + b"\n" + content.getbuffer())

    def load(self, *, resume: bool) -> Progress:
        """Restore the state of the run in the folder, or return that of a new run."""
        path = self.folder / CHECKPOINT
        state = None
        if self.fabric.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            state = read_checkpoint(path) if path.exists() else None
        state = self.fabric.broadcast(state)
        if state is None:
            return Progress()
        if not resume:
            raise FileExistsError(f"{self.folder} already contains a run: resume it, or choose another folder")
        before = asdict(ResolvedOptim()) | state["settings"]  # defaults for settings added after the run was started
        for name, value in self.settings.items():
            check(value == before[name], name, f"{before[name]!r}, as in the run to be resumed in {self.folder}", value)
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        return Progress(**state["progress"])

    def _parts(self) -> dict[str, Any]:
        precision = self.fabric.strategy.precision
        parts = {"predictor": self.predictor, "adam": self.adam, "schedule": self.schedule, "precision": precision}
        return parts if self.average is None else parts | {"average": self.average}


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint: one line with the SHA-256 of what follows, then tensors in plain containers.

    Args:
        path: The file.

    Raises:
        ValueError: The file is damaged. Nothing in it is executed.
    """
    content = path.read_bytes()
    if not content.startswith(_ARCHIVE):
        first, _, content = content.partition(b"\n")
        if first != _MAGIC + hashlib.sha256(content).hexdigest().encode():
            raise _damaged(path, "it does not match its checksum")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        missing = {"predictor", "adam", "schedule", "progress", "settings"} - state.keys()
    except Exception as error:  # damaged archives raise exceptions of many types
        raise _damaged(path, (str(error).splitlines() or [type(error).__name__])[0][:120]) from error
    if missing:
        raise _damaged(path, f"it has no {', '.join(sorted(missing))}")
    return state


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is damaged: {why}. Delete the run folder and train again, or choose another folder")
