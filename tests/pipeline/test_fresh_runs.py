"""Training on fresh or augmented images, which differ from epoch to epoch."""

from __future__ import annotations

import json
import multiprocessing
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from fresh_digits import TINY, digits_task, one_of_two, recording_batches
from lightning_fabric import Fabric
from tiny_runs import Task, outcome, task, vectors, weights

from torchmultiset.data import Examples
from torchmultiset.data.digits import load_digits
from torchmultiset.data.mnist_multi import build
from torchmultiset.model.config import ModelConfig
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.config import DataConfig, RunConfig
from torchmultiset.pipeline.prepare import prepare
from torchmultiset.pipeline.run import train_run
from torchmultiset.training import fit
from torchmultiset.training.checkpoint import read_checkpoint
from torchmultiset.training.config import OptimConfig

pytestmark = pytest.mark.slow


class Interruption(Exception):
    pass


def cpu() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "digits"
    build(folder, TINY, load_digits("bundled"), fresh="plain")
    build(folder.with_name("stored"), TINY, load_digits("bundled"))
    return folder


# Examples of each epoch


def test_each_epoch_has_its_own_examples(tmp_path):
    ours, batches = recording_batches(task("plain", epochs=3))
    parts = [vectors(93, seed=seed) for seed in (7, 8, 9)]
    fit(*ours._replace(train=lambda epoch: parts[epoch]), tmp_path, fabric=cpu())
    for part, mine in zip(parts, (batches[:12], batches[12:24], batches[24:]), strict=True):
        together = torch.cat([batch.x for batch in mine])
        assert sorted(together.tolist()) == sorted(part.inputs.tolist())


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (Examples(np.zeros((2, 3), np.float32), np.zeros((2, 4), np.int64), ("a", "b", "c")), "a multiset of 4 labels"),
        (Examples(np.zeros((2, 3), np.float32), np.zeros((2, 1), np.int64), ("a", "b")), "train must be of the cla"),
    ],
)
def test_examples_of_a_later_epoch_are_checked(later, message, tmp_path):
    ours = task("plain", epochs=2)
    with pytest.raises(ValueError, match=message):
        fit(*ours._replace(train=lambda epoch: later if epoch else ours.train), tmp_path, fabric=cpu())


# Several processes


def test_two_processes_share_the_same_fresh_images(digits, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    forks = multiprocessing.get_context("forkserver")
    children = [
        forks.Process(target=one_of_two, args=(rank, port, digits, tmp_path / "two"), daemon=True) for rank in (0, 1)
    ]
    for child in children:
        child.start()
    ours, batches = recording_batches(digits_task(digits))
    fit(*ours, tmp_path / "one", fabric=cpu())
    for child in children:
        child.join(tiny_runs.DEADLINE)
        assert child.exitcode == 0
    parts = [torch.load(tmp_path / f"batches-{rank}.pt", weights_only=True) for rank in (0, 1)]
    for first, second, whole in zip(*parts, batches, strict=True):
        assert torch.equal(first, whole.x[::2])
        assert torch.equal(second, whole.x[1::2])
    ends = [torch.load(tmp_path / f"weights-{rank}.pt", weights_only=True) for rank in (0, 1)]
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=0)
    torch.testing.assert_close(ends[0], weights(ours.predictor), rtol=1e-4, atol=1e-5)


# Augmentation


@pytest.mark.parametrize("augment", ["shift", "affine"])
def test_only_training_images_are_augmented(augment, tmp_path):
    ours, batches = recording_batches(task("batch norm", epochs=2, count=16))
    validated: list[torch.Tensor] = []
    predict = ours.predictor.predict
    ours.predictor.predict = lambda x: (validated.append(x), predict(x))[1]  # type: ignore[method-assign]
    fit(*ours._replace(optim=replace(ours.optim, augment=augment)), tmp_path, fabric=cpu())
    known = {image.tobytes() for image in ours.train.inputs}
    epochs = [{image.numpy().tobytes() for batch in half for image in batch.x} for half in (batches[:2], batches[2:])]
    assert len(epochs[0] & known) < 4  # few images are unchanged
    assert len(epochs[0] & epochs[1]) < 4
    assert torch.equal(torch.cat(validated), torch.from_numpy(ours.validation.inputs).repeat(2, 1, 1, 1))


@pytest.mark.parametrize("augment", ["shift", "affine"])
def test_a_run_with_augmentation_resumes_to_the_bit(augment, tmp_path):
    def ours() -> Task:
        new = task("batch norm", epochs=2, count=24)
        return new._replace(optim=replace(new.optim, augment=augment))

    def watch(progress):
        if (progress.epoch, progress.step) == (1, 2):
            raise Interruption

    fit(*ours(), tmp_path / "whole", fabric=cpu())
    with pytest.raises(Interruption):
        fit(*ours(), tmp_path / "run", fabric=cpu(), save_every=1, watch=watch)
    fit(*ours(), tmp_path / "run", fabric=cpu(), resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_checkpoint_without_an_augmentation_setting_is_resumed_without(tmp_path):
    fit(*task("plain", epochs=1), tmp_path, fabric=cpu())
    path = tmp_path / "checkpoint.pt"
    state = read_checkpoint(path)
    del state["settings"]["augment"]
    torch.save(state, path)
    ours = task("plain", epochs=1)
    with pytest.raises(ValueError, match="augment must be 'none', as in the run"):
        fit(*ours._replace(optim=replace(ours.optim, augment="shift")), tmp_path, fabric=cpu(), resume=True)
    assert fit(*ours, tmp_path, fabric=cpu(), resume=True).epoch == 1


def test_an_unknown_augmentation_is_refused(tmp_path, without_shape_hook):
    ours = task("plain")
    with pytest.raises(
        ValueError, match=r"augment must be one of 'none', 'shift', 'affine', 'photo', .*, but is 'flip'"
    ):
        fit(*ours._replace(optim=replace(ours.optim, augment="flip")), tmp_path, fabric=cpu())  # type: ignore[arg-type]


# Whole runs


@pytest.fixture
def stored(config, digits):
    """Like `config`, without fresh images."""
    return replace(config, data=DataConfig(str(digits.with_name("stored"))))


@pytest.fixture
def config(digits, monkeypatch):
    monkeypatch.setattr("torchmultiset.pipeline.finish.find_spec", lambda _: None)  # no figures, which are slow
    data = DataConfig(str(digits))
    return RunConfig(data, ModelConfig(channels=(4, 4), hidden=4), optim=OptimConfig(3, 8, augment="shift"), seed=3)


def test_an_interrupted_run_on_fresh_images_resumes_exactly(config, stored, tmp_path):
    def stop(progress):
        if (progress.epoch, progress.step) == (2, 1):
            raise Interruption

    whole = train_run(config, tmp_path / "whole")
    with pytest.raises(Interruption):
        train_run(config, tmp_path / "run", watch=lambda _: stop)
    with pytest.raises(ValueError, match="the data was"):
        train_run(stored, tmp_path / "run", resume=True)
    assert train_run(config, tmp_path / "run", resume=True).report == whole.report
    ends = [Predictor.load(tmp_path / name / "model").state_dict() for name in ("whole", "run")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_fresh_images_change_the_loss_from_the_second_epoch_on(config, stored, tmp_path):
    train_run(config, tmp_path / "fresh")
    train_run(stored, tmp_path / "stored")
    fresh, unchanged = (
        [json.loads(line)["loss"] for line in (tmp_path / name / "epochs.jsonl").read_text().splitlines()]
        for name in ("fresh", "stored")
    )
    assert fresh[0] == unchanged[0]
    assert fresh[1] != unchanged[1]


def test_a_run_with_an_older_config_can_be_resumed(stored, tmp_path):
    plain = replace(stored, optim=OptimConfig(1, 8))
    train_run(plain, tmp_path)
    path = tmp_path / "config.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("augment")]
    path.write_text("\n".join([*lines, "fresh = false", "elastic = false", 'mnist_multi = "4"', 'mnist = "digits"']))
    assert train_run(plain, tmp_path, resume=True).record["finished"]


def test_augmentation_of_inputs_that_are_not_images_is_refused(config, tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("a,b,labels,split\n1,2,x,train\n3,4,x;y,train\n5,6,y,validation\n")
    vectors_only = replace(config, data=DataConfig(str(tmp_path / "t.csv")))
    with pytest.raises(ValueError, match=r"augment is for images, and .*t\.csv has none: remove --augment"):
        prepare(vectors_only)
    with_features = replace(config.data, backbone="efficientnet-lite0")
    with pytest.raises(ValueError, match="augment changes images, but the features of efficientnet-lite0 are"):
        prepare(replace(config, data=with_features))
