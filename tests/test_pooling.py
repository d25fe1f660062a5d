"""Pooling is compared with plain loops; padding of tokens must not change any result."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from torchmultiset._memory import Memory, MemorySpec, Tokens, drop_channels, places
from torchmultiset._pooling import Pool, PooledFeatures
from torchmultiset.heads import (
    CellCounts,
    CountMixture,
    CountTable,
    GaussianCounts,
    OneStep,
    PoissonCounts,
    PowerMultiset,
    RegressedCounts,
    RidgeCounts,
    Slots,
)
from torchmultiset.model.config import ResolvedModel
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.registry import HEADS, POLICIES
from torchmultiset.policies import ConvLSTMPolicy, FeedForwardPolicy, LSTMPolicy, TransformerPolicy
from torchmultiset.rollout import forced, greedy, rollout

KINDS = ("mean", "max", "mean-max", "attention", "sum")
C, D = 3, 4
kinds = pytest.mark.parametrize("kind", KINDS)


def by_hand(rows: list[list[float]], kind: str, weights: list[float]) -> list[float]:
    """Pooled features of one example, computed from the rows of its positions."""
    columns = list(zip(*rows, strict=True))
    mean, largest = [math.fsum(column) / len(rows) for column in columns], [max(column) for column in columns]
    if kind == "attention":
        scores = [math.exp(math.fsum(w * v for w, v in zip(weights, row, strict=True))) for row in rows]
        return [math.fsum(s * v for s, v in zip(scores, column, strict=True)) / math.fsum(scores) for column in columns]
    sums = [math.fsum(column) / 10 for column in columns]
    return {"mean": mean, "max": largest, "mean-max": mean + largest, "sum": sums}[kind]


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def pool_of(kind: str) -> Pool:
    torch.manual_seed(1)
    pool = Pool(D, kind).double()
    for parameter in pool.parameters():
        nn.init.normal_(parameter)
    return pool


@kinds
@pytest.mark.parametrize("shape", [(D,), (D, 2, 3)])
def test_vectors_and_maps_are_pooled_over_their_positions(kind, shape):
    memory, pool = draw(5, *shape), pool_of(kind)
    found = pool(places(memory, D))
    assert found.shape == (5, pool.width)
    for row, pooled in zip(memory.reshape(5, D, -1), found.tolist(), strict=True):
        weights = [] if pool.attention is None else pool.attention.tolist()
        assert pooled == pytest.approx(by_hand(row.T.tolist(), kind, weights))


@kinds
def test_padding_is_ignored_for_any_content(kind):
    values, pool = draw(3, 6, D), pool_of(kind)
    lengths = [6, 1, 4]
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    values[~mask] = torch.nan
    found = pool(places(Tokens(values, mask), D))
    for i, length in enumerate(lengths):
        weights = [] if pool.attention is None else pool.attention.tolist()
        assert found[i].tolist() == pytest.approx(by_hand(values[i, :length].tolist(), kind, weights))
    assert torch.equal(pool(places(Tokens(values[:1]), D)), pool(places(Tokens(values[:1], mask[:1]), D)))


@kinds
def test_an_example_without_positions_is_pooled_like_one_position_of_zeros(kind):
    empty = Tokens(draw(1, 3, D), torch.zeros(1, 3, dtype=torch.bool))
    assert pool_of(kind)(places(empty, D)).tolist() == [[0.0] * pool_of(kind).width]


def test_attention_starts_as_the_mean_and_receives_gradients():
    memory = places(draw(2, D, 2, 2), D)
    pool = Pool(D, "attention").double()
    torch.testing.assert_close(pool(memory), memory.values.mean(1))
    pool(memory).square().sum().backward()
    assert pool.attention is not None
    assert pool.attention.grad.abs().min() > 0


def test_features_are_projected_before_pooling():
    pooled = PooledFeatures(D, "max", hidden=7).double()
    memory = draw(2, D, 3, 2)
    expected = torch.stack(
        [pooled.project(memory[:, :, i, j]).relu() for i in range(3) for j in range(2)]  # type: ignore[misc]
    ).amax(0)
    torch.testing.assert_close(pooled(memory), expected)
    assert pooled.width == 7


READERS = {
    "cells": lambda: CellCounts(C, D, hidden=6, kernel=1),
    "cells, sizes": lambda: CellCounts(C, D, hidden=6, kernel=1, sizes=(0, 2), size_head=True),
    "cells, joint": lambda: CellCounts(C, D, hidden=6, kernel=1, sizes=(0, 2), size_potential=True, joint_states=9),
    "table": lambda: CountTable(C, D, most=3),
    "table, projected": lambda: CountTable(C, D, most=3, hidden=6, pool="mean-max"),
    "table, attention": lambda: CountTable(C, D, most=3, pool="attention"),
    "gaussian, sum": lambda: GaussianCounts(C, D, most=3, pool="sum"),
    "poisson": lambda: PoissonCounts(C, D, pool="max"),
    "regression": lambda: RegressedCounts(C, D, hidden=5),
    "ridge": lambda: RidgeCounts(C, D, pool="mean-max"),
    "mixture": lambda: CountMixture(C, D, sizes=(0, 3), components=2),
    "one-step": lambda: OneStep(C, D, pool="mean-max", hidden=5),
    "slots": lambda: Slots(C, D, slots=3, places=9, width=8, heads=2),
    "slots of sets": lambda: Slots(C, D, slots=3, places=0, width=8, heads=2),
    "power": lambda: PowerMultiset(C, D, max_size=2, hidden=5, pool="mean-max"),
    "lstm": lambda: LSTMPolicy(C, D, hidden=6, pool="mean-max"),
    "feed-forward": lambda: FeedForwardPolicy(C, D, hidden=6, pool="mean-max"),
    "feed-forward, mean": lambda: FeedForwardPolicy(C, D, hidden=6),
    "transformer": lambda: TransformerPolicy(C, D, places=9, width=8, heads=2),
    "transformer of sets": lambda: TransformerPolicy(C, D, places=0, width=8, heads=2),
}


def registered(name: str) -> nn.Module:
    """A head or policy of the registry, built for tokens."""
    memory, settings = MemorySpec(D, tokens=True), vars(ResolvedModel(pool="mean"))
    if name in POLICIES:
        return POLICIES[name].for_memory(memory, settings, num_classes=C)
    return HEADS[name].for_memory(memory, settings, num_classes=C, sizes=(0, 2))


def reads_tokens(name: str) -> bool:
    try:
        return isinstance(registered(name), nn.Module)
    except ValueError:
        return False


REGISTERED = [name for name in (*HEADS, *POLICIES) if reads_tokens(name)]


def read(name: str, memory: Memory) -> Tensor:
    torch.manual_seed(0)
    module = (READERS[name]() if name in READERS else registered(name.removeprefix("registered "))).double().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    if hasattr(module, "start"):
        batch = len(memory.values) if isinstance(memory, Tokens) else len(memory)
        return rollout(module, memory, forced(torch.tensor([[0, 2, 2]]).expand(batch, -1)), 3).logits
    if isinstance(module, CellCounts):
        return module.believe(module(memory), 0, 2).count_probabilities()
    return module(memory)


def test_all_readers_of_tokens_are_registered_and_the_conv_lstm_is_not_among_them():
    assert {type(make()) for make in READERS.values()} <= {type(registered(name)) for name in REGISTERED}
    assert "conv-lstm" not in REGISTERED


@pytest.mark.parametrize("name", [*READERS, *(f"registered {name}" for name in REGISTERED)])
def test_every_reader_of_tokens_ignores_padding(name):
    values = draw(3, 5, D)
    lengths = torch.tensor([5, 2, 3])
    mask = torch.arange(5) < lengths[:, None]
    values[~mask] = 1e3
    found = read(name, Tokens(values, mask))
    assert found.isfinite().all()
    longer = Tokens(torch.cat([values, draw(3, 4, D)], 1), torch.cat([mask, torch.zeros(3, 4, dtype=torch.bool)], 1))
    torch.testing.assert_close(read(name, longer), found)
    for i, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(read(name, Tokens(values[i : i + 1, :length])), found[i : i + 1])


@pytest.mark.parametrize("name", [name for name in READERS if not name.startswith("cells")])
def test_tokens_are_read_like_the_positions_of_a_map(name):
    memory = draw(3, D, 2, 2)
    torch.testing.assert_close(read(name, Tokens(memory.flatten(2).mT)), read(name, memory))


@pytest.mark.parametrize("name", [name for name in READERS if name not in ("slots", "transformer")])
def test_the_order_of_a_set_does_not_matter(name):
    values = draw(2, 5, D)
    torch.testing.assert_close(read(name, Tokens(values[:, [3, 0, 4, 1, 2]])), read(name, Tokens(values)))


@pytest.mark.parametrize("name", ["transformer of sets", "feed-forward", "lstm"])
def test_a_predictor_searches_and_samples_on_tokens(name):
    torch.manual_seed(0)
    predictor = Predictor(Encoder(), READERS[name](), ["a", "b", "c"], max_size=2).double()
    x = draw(7, 5, D)
    x[0] = torch.nan  # an empty set
    x[1, 2:] = torch.nan
    ranked = predictor.search(x, k=10, beam=100)
    torch.testing.assert_close(ranked.log_probability.exp().sum(1), torch.ones(7).double())
    assert predictor.explain(x).confidence.isfinite().all()
    for i in range(7):
        alone = predictor.search(x[i : i + 1], k=10, beam=100)
        torch.testing.assert_close(alone.log_probability[0], ranked.log_probability[i])
    shares = predictor.count_probabilities(x, samples=4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(shares.sum(-1), torch.ones(7, C).double())


class Encoder(nn.Module):
    """An encoder of sets whose padding is NaN."""

    def forward(self, x: Tensor) -> Tokens:
        return Tokens(x, ~x.isnan().any(-1))


POOLED = {
    "table": lambda **settings: CountTable(C, D, most=3, **settings),
    "poisson": lambda **settings: PoissonCounts(C, D, **settings),
    "regression": lambda **settings: RegressedCounts(C, D, **settings),
    "one-step": lambda **settings: OneStep(C, D, **settings),
    "power": lambda **settings: PowerMultiset(C, D, max_size=2, **settings),
    "lstm": lambda **settings: LSTMPolicy(C, D, hidden=6, **settings),
    "feed-forward": lambda **settings: FeedForwardPolicy(C, D, hidden=6, **settings),
    "conv-lstm": lambda **settings: ConvLSTMPolicy(C, (D, 2, 3), hidden=6, norm="layer", **settings),
}
DROPPING = {
    **POOLED,
    "cells": lambda **settings: CellCounts(C, D, **settings),
    "slots": lambda **settings: Slots(C, D, slots=2, places=6, width=8, heads=2, **settings),
    "transformer": lambda **settings: TransformerPolicy(C, D, places=6, width=8, heads=2, **settings),
}


def run(module: nn.Module, memory: Tensor) -> Tensor:
    return rollout(module, memory, greedy, 2).logits if hasattr(module, "start") else module(memory)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", POOLED)
def test_only_attention_adds_weights_and_the_default_is_the_mean(name):
    keys = {kind: set(POOLED[name](pool=kind).state_dict()) for kind in KINDS}
    assert keys["mean"] == keys["max"] == keys["mean-max"] == set(POOLED[name]().state_dict())
    assert len(keys["attention"] - keys["mean"]) == 1
    memory = draw(2, D, 2, 3).float()
    found = {}
    for kind in KINDS[:2]:
        torch.manual_seed(0)
        found[kind] = run(POOLED[name](pool=kind), memory)
    torch.manual_seed(0)
    assert torch.equal(run(POOLED[name](), memory), found["mean"])
    assert not torch.allclose(found["max"], found["mean"])


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_is_active_only_in_training(name):
    torch.manual_seed(0)
    module, memory = DROPPING[name](dropout=0.5), draw(2, D, 2, 3).float()
    assert set(module.state_dict()) == set(DROPPING[name]().state_dict())
    first, second = run(module, memory), run(module, memory)
    assert not torch.equal(first, second)
    module.eval()
    assert torch.equal(run(module, memory), run(module, memory))
    plain = DROPPING[name]()
    plain.load_state_dict(module.state_dict())
    before = torch.get_rng_state()
    assert torch.equal(run(plain, memory), run(module, memory))  # in training mode, without dropout
    assert torch.equal(torch.get_rng_state(), before)


def test_channels_are_dropped_jointly_at_all_positions():
    torch.manual_seed(0)
    tokens = Tokens(torch.ones(50, 6, 8))
    dropped = drop_channels(tokens, 0.25, training=True).values
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert dropped.mean().item() == pytest.approx(1, abs=0.1)
    assert drop_channels(tokens, 0.25, training=False) is tokens


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Pool(D, "median"),
            "pool must be one of 'mean', 'max', 'mean-max', 'attention', 'sum', but is 'median'",
        ),
        (lambda: CountTable(C, D, most=3, hidden=0), "hidden must be at least 1, or None, but is 0"),
        (lambda: CountTable(C, D, most=3, dropout=1.0), "dropout must be at least 0 and below 1, but is 1.0"),
        (lambda: places(Tokens(torch.rand(2, 3, D + 1)), D), r"memory must be tokens .* \(B, N, 4\)"),
        (lambda: places(Tokens(torch.rand(2, 0, D)), D), "memory must be tokens of at least one position"),
        (lambda: places(Tokens(torch.rand(2, 3, D), torch.ones(2, 3)), D), "mask must be a boolean tensor"),
        (lambda: CellCounts(C, D)(Tokens(torch.rand(2, 3, D))), "kernel must be 1 for tokens"),
        (lambda: Slots(C, D, slots=2, places=-1), "places must be at least 0"),
    ],
)
def test_mismatches_are_reported_with_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
