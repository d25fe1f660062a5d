"""The number of epochs that fit into a time budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchmultiset.data import Examples
from torchmultiset.data.tokens import START, TokenText
from torchmultiset.pipeline import speed
from torchmultiset.pipeline.config import config_of


def texts(*lengths: int) -> Examples:
    labels = np.zeros((len(lengths), 1), dtype=np.int64)
    return Examples(TokenText(["x" * n for n in lengths]), labels, ("a",), tokens="text")


@pytest.mark.parametrize(("seconds", "epochs"), [(100.0, 7), (1.0, 1)])  # an epoch takes 10 s, plus 3 s
def test_the_number_of_epochs_fits_into_the_time(monkeypatch, seconds, epochs):
    monkeypatch.setattr(speed, "seconds_per_example", lambda *_, **__: 0.1)
    assert speed.fitting_epochs(config_of({}), seconds, examples=100, threads=1) == epochs


def test_inputs_of_the_mean_length_are_measured():
    some = texts(100, 1, 2, 90, 50, 51, 49)  # mean 49
    assert sorted(speed._typical(some, 3).tolist()) == [2, 4, 6]
    assert sorted(speed._typical(some, 99).tolist()) == [*range(7)]
    assert speed._typical(texts(1, 1, 1, 90), 2).tolist() == [2, 3]


def test_a_training_step_is_measured_with_joined_texts(tmp_path, monkeypatch):
    lines = ["text,labels", *(f"{'ab' * 5}{i},{'a;a' if i % 9 == 0 else 'a'}" for i in range(40))]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    read: list[torch.Tensor] = []
    batch = Examples.batch
    monkeypatch.setattr(Examples, "batch", lambda *given: read.append(batch(*given).x) or batch(*given))
    threads = torch.get_num_threads()
    values = {"data": str(tmp_path / "data.csv"), "objective": "counts", "batch_size": 8, "epochs": 9, "mosaic": 1.0}
    assert 0 < speed.seconds_per_example(config_of(values), threads=threads) < 60
    assert len(read[-1]) == 8
    assert ((read[-1][..., 0] == START).sum(1) == 2).any()
    assert torch.get_num_threads() == threads
