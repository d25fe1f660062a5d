"""One training run in one folder, from a config to a model that was tested once: what `multiset train` does.

::

    folder/
      config.toml      every value of the config; `multiset train --config folder/config.toml` does it again
      run.json         command, commit, versions, machine, data, settings that were chosen by the data, minutes, results
      epochs.jsonl     a line for each epoch
      predictions.npz  predicted and true counts of the validation and test examples
      checkpoint.pt    all that `resume` needs
      best/            the weights of the best epoch
      model/           the same with all that is known about them: what `multiset evaluate` and `predict` read
      curve.png, predictions.png, tensorboard/    where matplotlib and tensorboard are installed
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchmultiset._checks import check
from torchmultiset.encoders import PretrainedEncoder
from torchmultiset.model.build import build_objective, build_predictor, fit_encoder, take_weights
from torchmultiset.model.predictor import Predictor, read_description
from torchmultiset.model.shipped import locate
from torchmultiset.pipeline.config import RunConfig, to_dict
from torchmultiset.pipeline.finish import Result, finish
from torchmultiset.pipeline.journal import Journal, Watch
from torchmultiset.pipeline.prepare import Task, prepare
from torchmultiset.pipeline.record import (
    CONFIG,
    FORMER,
    differences,
    environment,
    portable,
    portable_command,
    read_config,
    read_record,
    translated,
    write_config,
    write_record,
)
from torchmultiset.training.checkpoint import CHECKPOINT
from torchmultiset.training.loop import fit, make_fabric
from torchmultiset.training.solve import solve

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["build", "fitting_devices", "share_cores", "train"]

EXAMPLES_EACH = 32
"""The fewest examples of a batch that are worth a process; normalisation over fewer would suffer, too."""


def train(
    config: RunConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    devices: int | None = 1,
    nodes: int = 1,
    command: Sequence[str] = (),
    progress: bool = False,
    baselines: bool = True,
    say: Callable[[str], None] = lambda _: None,
    watch: Callable[[Task], Watch] = lambda _: lambda _: None,
) -> Result:
    """Train, choose the best epoch, test it once, and leave a folder that says how.

    Args:
        config: What is to be run.
        folder: The run folder.
        resume: Go on with the run in the folder, if there is one.
        devices: Processes on each machine; None for as many as suit it. More than one starts this program again for
            each of the others, so only a command does that.
        nodes: Machines.
        command: What was typed, for the record.
        progress: Show progress bars while data is made or read.
        baselines: Fit and score the baselines, too.
        say: Told what was picked, and how it goes; by one process only.
        watch: Given the task, gives what is called at the start and after each step; in one process only.

    Raises:
        FileExistsError: The folder holds a run, and `resume` is not set.
        ValueError: The config or the data is wrong, or another than that of the run to be resumed.
    """
    folder = Path(folder)
    task = prepare(config, progress=progress)
    if task.config.objective.kind.closed_form:
        devices = 1
    if devices is None:
        devices = fitting_devices(task.config.optim.batch_size, folder)
    # Everyone looks before anyone writes: `launch` returns when all processes have come so far.
    before = _look(folder, task, resume, {"devices": devices, "nodes": nodes})
    if before.get("finished"):
        return Result(before, None)
    fabric = _launch(devices, nodes, task.config.optim.precision)
    torch.manual_seed(task.config.seed)
    predictor = build(task)
    start = _start(task, predictor, before)
    objective = build_objective(
        task.config.objective,
        predictor,
        seed=task.config.seed,
        height=task.picture[-2] if len(task.picture) == 3 else None,
    )
    record = _begin(task, predictor, fabric, command, before, (devices, nodes)) | start
    if fabric.is_global_zero:
        _tell(task, record, say)
        folder.mkdir(parents=True, exist_ok=True)
        write_config(folder, task.config)
        write_record(folder, record)
    journal = Journal(folder, record, watch(task)) if fabric.is_global_zero else None
    if objective.closed_form:
        fitted = solve(predictor, task.splits["train"], task.splits["validation"], folder)
    else:
        fitted = fit(
            predictor,
            objective,
            task.fresh or task.splits["train"],
            task.splits["validation"],
            task.config.optim,
            folder,
            seed=task.config.seed,
            resume=resume,
            fabric=fabric,
            watch=journal or (lambda _: None),
        )
    result = Result(record, None)
    if journal is not None:
        result = finish(folder, task, fitted, journal, device=fabric.device, baselines=baselines)
    fabric.barrier()
    return result


def fitting_devices(batch_size: int, folder: str | Path) -> int:
    """How many processes suit this machine: as many as the run in the folder had, if there is one.

    One for each GPU. On a CPU, processes of one thread share the work better than threads share an operation, so one
    for each core, as long as each has 32 examples of a batch.

    Args:
        batch_size: Examples in a step, over all processes.
        folder: The run folder.
    """
    before = read_record(Path(folder)).get("devices")
    if before is not None:
        return int(before)
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    return max(1, min(torch.get_num_threads(), batch_size // EXAMPLES_EACH))


def build(task: Task) -> Predictor:
    """Build the untrained predictor of a task."""
    config, backbone = task.config, task.config.data.backbone
    predictor = build_predictor(
        config.model,
        config.objective,
        shape=task.shape,
        classes=task.splits["train"].classes,
        max_size=config.model.max_size,
        min_size=config.model.min_size,
        stop=config.model.stop,
        backbone=None if backbone == "none" else backbone,
        fingerprint=task.fingerprint,
        strides=config.data.strides,
        finetune=config.data.finetune,
    )
    fit_encoder(predictor, task.splits["train"])
    return predictor


def _start(task: Task, predictor: Predictor, before: Mapping[str, Any]) -> dict[str, Any]:
    """Begin with the weights of another model, if the config names one; what the record says about it."""
    name = task.config.model.start_from
    if before or not name:  # a run that goes on has its weights in its checkpoint
        return {"start": before["start"]} if "start" in before else {}
    folder = locate(name)
    model = Predictor.load(folder)
    _check_inputs(task, model, name)
    about = {
        "model": portable(name),
        "weights_sha256": read_description(folder)["weights_sha256"],
        "git": model.record.get("git"),
        "data": model.record.get("data"),
        "anew": take_weights(predictor, model),
    }
    return {"start": about}


def _check_inputs(task: Task, model: Predictor, name: str) -> None:
    """Raise unless numbers mean the same to a model: columns of a table, features of a backbone."""

    def told(columns: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[str, ...]]]:
        return [(str(column["name"]), tuple(column["categories"])) for column in columns]

    there = told(model.record.get("columns", []))
    here = told([asdict(column) for column in task.splits["train"].columns])
    if there and here and there != here:
        raise ValueError(
            f"{name} reads the columns {', '.join(column for column, _ in there)}, but the data has"
            f" {', '.join(column for column, _ in here)}, or other texts in them: leave out start_from"
        )
    if isinstance(model.encoder, PretrainedEncoder):
        read = (model.encoder.name, model.encoder.fingerprint)
        if read != (task.config.data.backbone, task.fingerprint):
            raise ValueError(f"{name} reads the features of {read[0]} with other weights: leave out start_from")


def _look(folder: Path, task: Task, resume: bool, launched: Mapping[str, Any]) -> dict[str, Any]:
    """The record of the run in the folder, if it may go on; empty if there is none."""
    record = read_record(folder)
    if not record.get("finished") and not (folder / CHECKPOINT).exists():
        return {}  # nothing was learned that could be lost
    state = "is finished" if record.get("finished") else "has begun"
    if not resume:
        raise FileExistsError(f"{folder} holds a run that {state}: go on with it (--resume), or choose another (--out)")
    before, now = read_config(folder / CONFIG), translated(to_dict(task.config))
    if "precision" in record:
        before.setdefault("precision", record["precision"])  # which older configs do not name
    # What it did not know yet was as it is by default, or settled by what it did know.
    before |= {
        name: now[name] if value is None else value
        for name, value in (to_dict(RunConfig()) | FORMER).items()
        if name not in before and name in now
    }
    differ = differences(before, now)
    differ += differences({name: record.get(name) for name in launched}, launched)
    began, begins = record.get("start", {}).get("model", ""), portable(task.config.model.start_from or "")
    if began != begins:
        differ.append(f"start_from was {began or 'not set'} and is now {begins or 'not set'}")
    if record["data"]["sha256"] != task.data["sha256"]:
        differ.append(f"the data was {record['data']['sha256'][:12]}... and is now {task.data['sha256'][:12]}...")
    if differ:
        raise ValueError(f"the run in {folder} is another one: {'; '.join(differ)}. Choose another folder (--out)")
    return record


def _launch(devices: int, nodes: int, precision: str) -> Fabric:
    check(devices >= 1, "devices", "at least 1", devices)
    check(nodes >= 1, "nodes", "at least 1", nodes)
    several = devices * nodes > 1
    fabric = make_fabric(devices=devices, num_nodes=nodes, precision=precision, strategy="ddp" if several else "auto")
    if several:
        fabric.launch()
    if fabric.device.type == "cpu":
        share_cores(fabric.local_rank, devices)
    if fabric.world_size != devices * nodes:
        raise RuntimeError(f"{devices * nodes} processes were asked for, but {fabric.world_size} are there")
    return fabric


def share_cores(place: int, processes: int) -> None:
    """Keep to this process's part of the cores, where the system lets us: it may put two processes on one."""
    if processes > 1 and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[place::processes] or cores)


def _begin(
    task: Task,
    predictor: Predictor,
    fabric: Fabric,
    command: Sequence[str],
    before: Mapping[str, Any],
    launched: tuple[int, int],
) -> dict[str, Any]:
    return {
        "format": 1,
        "finished": False,
        "command": shlex.join(portable_command(command)),
        "seed": task.config.seed,
        "devices": launched[0],
        "nodes": launched[1],
        "processes": fabric.world_size,
        "device": fabric.device.type,
        "precision": task.config.optim.precision,
        **environment(),
        "data": task.data,
        "examples": {name: len(examples) for name, examples in task.splits.items()},
        "picked": [choice._asdict() for choice in task.choices],
        "parameters": sum(p.numel() for p in predictor.parameters()),
        "minutes": before.get("minutes", 0.0),
    }


def _tell(task: Task, record: Mapping[str, Any], say: Callable[[str], None]) -> None:
    numbers = ", ".join(f"{count:,} {name}" for name, count in record["examples"].items())
    say(f"Data: {task.data['name']}, {len(task.splits['train'].classes)} classes; {numbers} examples.")
    if task.choices:
        say("Chosen by the data (each can be set by a flag of the same name):")
        for choice in task.choices:
            say(f"  {choice}")
    if "start" in record:
        anew = len(record["start"]["anew"])
        parts = (
            f"all but {anew}, which begin anew, as they do not fit or are of other classes" if anew else "all of them"
        )
        say(f"Begins with the weights of {record['start']['model']}: {parts}.")
    objective, optim = task.config.objective, task.config.optim
    say(
        f"Training {record['parameters']:,} parameters with {objective.objective} for {optim.epochs}"
        f" epoch{'s' * (optim.epochs > 1)} on {record['processes']} x {record['device']}."
    )
