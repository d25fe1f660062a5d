"""The decoding of a run: greedy, search, or the one with the higher validation score."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from torchmultiset.data import Examples
from torchmultiset.heads import PoissonCounts
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline import auto, finish
from torchmultiset.pipeline.auto import train_portfolio
from torchmultiset.pipeline.candidates import Candidate, candidates
from torchmultiset.pipeline.config import config_of
from torchmultiset.pipeline.finish import Result, _better_decoding
from torchmultiset.pipeline.portfolio import CANDIDATES
from torchmultiset.pipeline.prepare import prepare
from torchmultiset.pipeline.record import write_record
from torchmultiset.pipeline.run import train_run
from torchmultiset.pipeline.standings import Standing

POISSON = {"objective": "counts", "count_head": "poisson", "decoding": "best", "epochs": 4, "lr": 0.01}


def poisson(rate: float) -> Predictor:
    """A model with the same expected count for every input; greedy decoding rounds it, and search finds the mode."""
    head = PoissonCounts(num_classes=1, memory=1)
    nn.init.zeros_(head.classifier.weight)
    nn.init.constant_(head.classifier.bias, math.log(rate))
    return Predictor(nn.Identity(), head, ["coin"], max_size=5, min_size=1)


def coins(number: int) -> Examples:
    return Examples(np.zeros((3, 1), np.float32), np.zeros((3, number), np.int64), classes=("coin",))


@pytest.mark.parametrize(("number", "better"), [(1, "search"), (2, "greedy"), (4, "greedy")])
def test_the_decoding_with_the_higher_score_is_chosen(number, better):
    model = poisson(1.6)  # 1.6 is rounded to 2, but one coin is most probable
    assert model.predict(torch.zeros(1, 1)).tolist() == [[2]]
    assert model.search(torch.zeros(1, 1), k=1).counts.tolist() == [[[1]]]
    assert _better_decoding(model, coins(number)) == better


@pytest.fixture
def table(tmp_path):
    """A table of people with one or two coins each."""
    rng = np.random.default_rng(0)
    rows = [(people, rng.integers(people, 2 * people + 1)) for people in rng.integers(1, 8, 160)]
    path = tmp_path / "coins.csv"
    path.write_text("people,count:coin\n" + "\n".join(f"{people},{count}" for people, count in rows) + "\n")
    return path


@pytest.mark.slow
def test_a_run_saves_the_decoding_that_it_chose(table, tmp_path):
    config = config_of({"data": str(table), **POISSON})
    result = train_run(config, tmp_path / "run")
    model, validation = Predictor.load(tmp_path / "run" / "model"), prepare(config).splits["validation"]
    x, target = validation.batch(np.arange(len(validation))).x, torch.from_numpy(validation.counts)
    right = {
        "greedy": model.module.counts(model.scores(x), *model.sizes),
        "search": model.search(x, k=1).counts[:, 0],
    }
    scores = {}
    for name, counts in right.items():
        shared = torch.minimum(counts, target).sum(1)
        f1 = 2 * shared / (counts.sum(1) + target.sum(1))
        scores[name] = float(((counts == target).all(1) + f1).mean())
    assert scores["greedy"] != scores["search"]  # so that the choice below can fail
    assert model.decoding == result.record["decoding"] == max(scores, key=scores.__getitem__)
    assert model.predict(x).tolist() == right[model.decoding].tolist()


@pytest.mark.slow
def test_the_decoding_is_not_chosen_on_training_examples(table, tmp_path, monkeypatch):
    monkeypatch.setattr(finish, "_better_decoding", lambda *_: "search")
    for holdout, decoding in (("none", "greedy"), ("1/3", "search")):
        result = train_run(
            config_of({"data": str(table), **POISSON, "epochs": 1, "holdout": holdout}), tmp_path / decoding
        )
        assert result.record["decoding"] == decoding


@pytest.mark.parametrize("chosen", ["greedy", "search"])
def test_the_winner_of_a_portfolio_keeps_the_decoding_of_its_candidate(table, tmp_path, monkeypatch, chosen):
    trained = []

    def train_run(config, *_, **__):
        trained.append(config)
        return Result({}, None)

    monkeypatch.setattr(auto, "train_run", train_run)

    def compare(here, *_, **__):
        here.trained["poisson"] = []
        here.standings = {"poisson": Standing("poisson", "", 1, 1.0, 1.0, 0.0, 0.0)}
        return {"poisson": config_of({"data": str(table), **POISSON})}

    monkeypatch.setattr(auto, "_try", compare)
    write_record(tmp_path / "run" / CANDIDATES / "poisson" / "part-1", {"decoding": chosen})
    train_portfolio(config_of({"data": str(table)}), tmp_path / "run", only=[Candidate("poisson", POISSON, "")])
    assert [config.model.decoding for config in trained] == [chosen]


def test_policies_of_a_portfolio_choose_their_decoding(table):
    task = prepare(config_of({"data": str(table)}))
    assert {one.values["decoding"] for one in candidates(task) if one.values["objective"] == "multi"} == {"best"}


def test_search_with_a_model_that_cannot_be_searched_is_refused_before_training(table, tmp_path):
    with pytest.raises(ValueError, match="decoding must be 'greedy' for RegressedCounts, which supports no other"):
        train_run(
            config_of({"data": str(table), **POISSON, "count_head": "regression", "decoding": "search"}),
            tmp_path / "run",
        )
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.slow
def test_a_model_that_cannot_be_searched_is_decoded_greedily(table, tmp_path):
    greedy = train_run(config_of({"data": str(table), **POISSON, "count_head": "regression"}), tmp_path / "run")
    assert greedy.record["decoding"] == "greedy"
