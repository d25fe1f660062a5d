"""A training run in its own folder, from a config to a tested model: what `multiset train` does.

::

    folder/
      config.toml      every setting; `multiset train --config folder/config.toml` repeats the run
      run.json         command, commit, versions, machine, data, settings chosen from the data, minutes, results
      epochs.jsonl     one line per epoch
      predictions.npz  predicted and true counts of the validation and test examples
      checkpoint.pt    the state that `resume` needs
      best/            the weights of the best epoch
      model/           the same weights with a record and a model card: what `multiset evaluate` and `predict` read
      curve.png, predictions.png, tensorboard/    if matplotlib and tensorboard are installed
"""

from __future__ import annotations

import atexit
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchmultiset._checks import check
from torchmultiset._files import locked
from torchmultiset.encoders.optional import feature_encoder
from torchmultiset.model.build import build_objective, build_predictor, fit_encoder, take_weights
from torchmultiset.model.objectives.counts import joint_fallback
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.serialization import read_description
from torchmultiset.model.shipped import locate
from torchmultiset.pipeline.config import RunConfig, to_dict
from torchmultiset.pipeline.finish import Result, finish
from torchmultiset.pipeline.prepare import Task, prepare
from torchmultiset.pipeline.record import (
    CONFIG,
    FORMER,
    RECORD,
    Journal,
    Watch,
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
from torchmultiset.pipeline.resolve import Choice
from torchmultiset.training.checkpoint import CHECKPOINT
from torchmultiset.training.loop import fit, make_fabric
from torchmultiset.training.solve import solve

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["describe_data", "fitting_devices", "share_cores", "train_run", "untrained_predictor"]

EXAMPLES_EACH = 32
"""Minimum number of examples per process and batch: with fewer, batch statistics become noisy and there is
no speedup."""


def train_run(
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
    """Train, choose the best epoch, test it once, and write everything to a folder.

    Args:
        config: Settings of the run.
        folder: Run folder.
        resume: Resume the run in the folder, if there is one.
        devices: Number of processes per machine; None: that of the run in the folder, if there is one, else see
            `fitting_devices`. With more than one, the program is started again for each additional process, so
            use this only in commands.
        nodes: Number of machines.
        command: Command line for the record.
        progress: Show progress bars while data is read.
        baselines: Whether to fit and score the baselines.
        say: Called with messages about chosen settings and progress, in one process only.
        watch: Called with the task; returns a function that is called at the start and after each step. In one process
            only.

    Raises:
        FileExistsError: The folder contains a run, and `resume` is not set.
        OSError: Another process is training in the folder.
        ValueError: The settings or the data are wrong, or differ from those of the run to be resumed.
    """
    folder = Path(folder)
    task = prepare(config, progress=progress)
    check(devices is None or devices >= 1, "devices", "at least 1", devices)
    check(nodes >= 1, "nodes", "at least 1", nodes)
    # All processes read before one of them writes: `launch` returns when all of them have reached it.
    before = read_record(folder)
    if task.config.objective.kind.closed_form:
        devices = 1
    elif devices is None:
        devices = before.get("devices") or fitting_devices(task.config.optim.batch_size)
    launched = {"devices": devices, "nodes": nodes}
    if before.get("finished") or (folder / CHECKPOINT).exists():
        _check_resumable(folder, before, task, resume, launched)
    else:
        before = {}  # nothing has been trained yet
    if before.get("finished"):
        return Result(before, None)
    several = devices * nodes > 1
    strategy, precision = "ddp" if several else "auto", task.config.optim.precision
    fabric = make_fabric(devices=devices, num_nodes=nodes, precision=precision, strategy=strategy)
    if several:
        _launch(fabric, devices, nodes)
    torch.manual_seed(task.config.seed)
    predictor = untrained_predictor(task)
    if task.config.data.conformal and not predictor.probabilistic:
        raise ValueError(f"conformal needs probabilities, which {predictor.kind} does not have: use another objective")
    start = {"start": before["start"]} if "start" in before else {}
    if task.config.model.start_from and not before:  # a resumed run has its weights in its checkpoint
        start = {"start": _copy_weights(task.config.model.start_from, task, predictor)}
    objective = build_objective(
        task.config.objective,
        predictor,
        seed=task.config.seed,
        height=task.picture[-2] if len(task.picture) == 3 else None,
    )
    record = _begin(task, predictor, fabric, command, before, launched) | start
    with locked(folder) if fabric.is_global_zero else nullcontext():
        journal = None
        if fabric.is_global_zero:
            _announce(task, predictor, record, say)
            write_config(folder, task.config)
            write_record(folder, record)
            journal = Journal(folder, record, watch(task))
        if objective.closed_form:
            fitted = solve(predictor, task.splits["train"], task.splits["validation"], folder)
        else:
            # The views in the feature cache are of images that are augmented already.
            optim = replace(task.config.optim, augment="none") if task.config.data.views else task.config.optim
            fitted = fit(
                predictor,
                objective,
                task.fresh or task.splits["train"],
                task.splits["validation"],
                optim,
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


def fitting_devices(batch_size: int) -> int:
    """Return the number of processes for this machine.

    There is one process per GPU. On a CPU, several processes with one thread each are faster than one with several
    threads: there is one per core, as long as each has 32 examples per batch.

    Args:
        batch_size: Examples per step, over all processes.
    """
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    return max(1, min(torch.get_num_threads(), batch_size // EXAMPLES_EACH))


def untrained_predictor(task: Task) -> Predictor:
    """Build the untrained predictor of a task."""
    config, backbone = task.config, task.config.data.backbone
    try:
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
    except (MemoryError, OverflowError, RuntimeError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ValueError(
            f"the network cannot be built with these settings ({reason}): choose smaller numbers for channels, units,"
            " hidden, layers and max_size"
        ) from error
    fit_encoder(predictor, task.splits["train"])
    return predictor


def _copy_weights(name: str, task: Task, predictor: Predictor) -> dict[str, Any]:
    """Initialise a predictor with the weights of the model to start from, and return an entry for the record."""
    folder = locate(name)
    model = Predictor.load(folder)
    _check_inputs(task, model, name)
    return {
        "model": portable(name),
        "weights_sha256": read_description(folder)["weights_sha256"],
        "git": model.record.get("git"),
        "data": model.record.get("data"),
        "anew": take_weights(predictor, model),
    }


def _check_inputs(task: Task, model: Predictor, name: str) -> None:
    """Raise an error if a model was trained on other columns of a table, or on features of another backbone."""

    def names_of(columns: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[str, ...]]]:
        return [(str(column["name"]), tuple(column["categories"])) for column in columns]

    expected = names_of(model.record.get("columns", []))
    found = names_of([asdict(column) for column in task.splits["train"].columns])
    if expected and found and expected != found:
        raise ValueError(
            f"{name} reads the columns {', '.join(column for column, _ in expected)}, but the data has"
            f" {', '.join(column for column, _ in found)}, or other categories in them: remove start_from"
        )
    encoder = feature_encoder(model.encoder)
    if encoder is not None:
        read = (encoder.name, encoder.fingerprint)
        if read != (task.config.data.backbone, task.fingerprint):
            raise ValueError(f"{name} reads the features of {read[0]} with other weights: remove start_from")


def _check_resumable(
    folder: Path, record: Mapping[str, Any], task: Task, resume: bool, launched: Mapping[str, Any]
) -> None:
    """Raise an error unless the run in the folder is to be resumed, and is this one."""
    state = "a finished run" if record.get("finished") else "an unfinished run"
    if not resume:
        raise FileExistsError(f"{folder} contains {state}: resume it (--resume), or choose another folder (--out)")
    try:
        differ = _changes(folder, record, task, launched)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder / RECORD} is damaged, {error!r}: delete the run folder, or choose another one (--out)"
        ) from error
    if differ:
        raise ValueError(f"the run in {folder} differs: {'; '.join(differ)}. Choose another folder (--out)")


def _changes(folder: Path, record: Mapping[str, Any], task: Task, launched: Mapping[str, Any]) -> list[str]:
    """Describe how a run differs from the one in the folder."""
    before, now = read_config(folder / CONFIG), translated(to_dict(task.config))
    if "precision" in record:
        before.setdefault("precision", record["precision"])  # older configs lack it
    # Settings that did not exist yet had their default, or were resolved from the others.
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
    return differ


def _launch(fabric: Fabric, devices: int, nodes: int) -> None:
    """Start the other processes, and wait until all of them have connected."""
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(_leave)
    if fabric.device.type == "cpu":
        share_cores(fabric.local_rank, devices)
    if fabric.world_size != devices * nodes:
        raise RuntimeError(f"{devices * nodes} processes were requested, but {fabric.world_size} are running")


def _leave() -> None:
    """End the connection to the other processes: its threads must not outlive the interpreter, which would crash."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def share_cores(place: int, processes: int) -> None:
    """Pin this process to its share of the cores, if the system allows it; otherwise two may run on the same core."""
    if processes > 1 and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[place::processes] or cores)


def _begin(
    task: Task,
    predictor: Predictor,
    fabric: Fabric,
    command: Sequence[str],
    before: Mapping[str, Any],
    launched: Mapping[str, int],
) -> dict[str, Any]:
    return {
        "format": 1,
        "finished": False,
        "command": shlex.join(portable_command(command)),
        "seed": task.config.seed,
        **launched,
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


def describe_data(task: Task, choices: Sequence[Choice]) -> list[str]:
    """Return lines that describe the data of a task, and choices that were made from it."""
    both = task.config.data.holdout == "none"  # then the validation examples are training examples, too
    numbers = ", ".join(
        f"{len(examples):,} {'train and validation' if both and name == 'train' else name}"
        for name, examples in task.splits.items()
        if len(examples) and not (both and name == "validation")
    )
    lines = [f"Data: {task.data['name']}, {len(task.splits['train'].classes)} classes; {numbers} examples."]
    if choices:
        lines += ["Chosen from the data (multiset train --help-all lists the flags to override it):"]
        lines += [f"  {what}: {value} ({reason})" for what, value, reason in choices]
    return lines


def _announce(task: Task, predictor: Predictor, record: Mapping[str, Any], say: Callable[[str], None]) -> None:
    for line in describe_data(task, task.choices):
        say(line)
    if "start" in record:
        anew = len(record["start"]["anew"])
        parts = f"all but {anew} tensors, which do not fit or belong to other classes" if anew else "all of them"
        say(f"Starting from the weights of {record['start']['model']}: {parts}.")
    objective, optim = task.config.objective, task.config.optim
    if objective.kind.closed_form:
        say(f"Fitting {record['parameters']:,} parameters with {objective.objective}, in closed form.")
        return
    say(
        f"Training {record['parameters']:,} parameters with {objective.objective} for {optim.last_epoch}"
        f" epoch{'s' * (optim.last_epoch > 1)} on {record['processes']} x {record['device']}."
    )
    if task.config.model.joint_states:
        too_large = joint_fallback(predictor.module, torch.from_numpy(task.splits["train"].counts))
        if too_large:
            say(too_large)
