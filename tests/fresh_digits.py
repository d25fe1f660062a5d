"""One-second training runs on freshly generated images, in one process or in two."""

from __future__ import annotations

from pathlib import Path

import torch
from tiny_runs import Task, _one_of_two, weights

from torchmultiset.data import Batch
from torchmultiset.data.fresh import fresh_epochs
from torchmultiset.data.load import load_data
from torchmultiset.data.mnist_multi import MnistMulti
from torchmultiset.encoders import ConvEncoder
from torchmultiset.model.objectives import MultisetObjective
from torchmultiset.model.predictor import Predictor
from torchmultiset.policies import ConvLSTMPolicy
from torchmultiset.training import fit
from torchmultiset.training.config import OptimConfig

TINY = MnistMulti(sizes=(1, 2), digit_px=(12, 14), canvas=28, clutter=1, classes=(0, 1), train=21, validation=8, test=8)


def digits_task(folder: Path) -> Task:
    """Three epochs of three batches, the last with five examples; no batch norm, so that two processes match one."""
    torch.manual_seed(0)
    encoder = ConvEncoder(1, (4, 4), norm=None)
    policy = ConvLSTMPolicy(2, encoder.memory_shape(28, 28), hidden=4)
    predictor = Predictor(encoder, policy, ("0", "1"), max_size=2)
    optim = OptimConfig(epochs=3, batch_size=8, schedule="constant")
    examples = fresh_epochs(folder, seed=5)
    return Task(predictor, MultisetObjective(), examples, load_data(folder)["validation"], optim)


def recording_batches(ours: Task) -> tuple[Task, list[Batch]]:
    """The same task, and a list that collects the batches passed to its objective."""
    batches: list[Batch] = []

    class Recording(MultisetObjective):
        def loss(self, predictor, batch, generator):
            batches.append(batch)
            return ours.objective.loss(predictor, batch, generator)

    return ours._replace(objective=Recording()), batches


def one_of_two(rank: int, port: int, digits: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    fabric = _one_of_two(rank, port)
    ours, batches = recording_batches(digits_task(digits))
    fit(*ours, folder, fabric=fabric)
    torch.save([batch.x for batch in batches], folder.with_name(f"batches-{rank}.pt"))
    torch.save(weights(ours.predictor), folder.with_name(f"weights-{rank}.pt"))
