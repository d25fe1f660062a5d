"""Saving and loading predictors: round trips, refused files, and that loading executes no code."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import socket
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import torchmultiset
from torchmultiset.encoders import ConvEncoder, MLPEncoder, PretrainedEncoder
from torchmultiset.heads import (
    CellCounts,
    CountTable,
    OneStep,
    PoissonCounts,
    PowerMultiset,
    RegressedCounts,
    Slots,
)
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.serialization import read_description
from torchmultiset.policies import ConvLSTMPolicy, FeedForwardPolicy, LSTMPolicy, TransformerPolicy
from torchmultiset.rollout import Step

CLASSES = ("Käfer", "cat", '"dog"')
DESCRIPTION = "predictor.json"
ENCODERS = {
    "mlp": lambda: (MLPEncoder(7, (16, 5)), torch.randn(30, 7)),
    "conv": lambda: (ConvEncoder(1, (4, 5), kernel=3), torch.rand(30, 1, 18, 18)),
    "conv-norm": lambda: (
        ConvEncoder(3, [4, 5], kernel=3, norm="batch"),
        torch.randint(256, (30, 3, 18, 18), dtype=torch.uint8),
    ),
    "pretrained": lambda: (PretrainedEncoder("resnet34", width=5), torch.randn(30, 512, 3, 3).half()),
}
POLICIES = {
    "lstm": lambda k: LSTMPolicy(k, 5, hidden=9, layers=2, embedding=3),
    "conv-lstm": lambda k: ConvLSTMPolicy(k, (5, 3, 3), hidden=6, layers=1, kernel=1, classifier_sees_previous=True),
    "feed-forward": lambda k: FeedForwardPolicy(k, 5, hidden=9, layers=3),
    "transformer": lambda k: TransformerPolicy(k, 5, places=9, width=6, heads=3, layers=1),
}
ONE_SHOT_HEADS = {
    "one-step": lambda k: OneStep(k, 5),
    "cells": lambda k: CellCounts(k, 5, hidden=6, layers=1, kernel=1, norm="batch"),
    "table": lambda k: CountTable(k, 5, most=4),
    "poisson": lambda k: PoissonCounts(k, 5),
    "regression": lambda k: RegressedCounts(k, 5),
    "slots": lambda k: Slots(k, 5, slots=4, places=9, width=6, heads=3, layers=1),
    "power": lambda k: PowerMultiset(k, 5, max_size=4, hidden=6),
}
COMBINATIONS = [
    (encoder, policy, stop)
    for encoder in ENCODERS
    for policy in POLICIES
    if policy != ("conv-lstm" if encoder == "mlp" else "lstm")
    for stop in ("fixed", "policy", "end")
] + [
    (encoder, policy, stop)
    for encoder in ENCODERS
    for policy in ONE_SHOT_HEADS
    if (encoder, policy) != ("mlp", "cells")
    for stop in ("fixed", "policy")
    if (policy, stop) != ("power", "fixed")
]


class UserEncoder(nn.Module):
    """A user-defined encoder."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.linear = nn.Linear(7, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()


def small(seed: int = 0, **changes: object) -> Predictor:
    torch.manual_seed(seed)
    arguments = {"encoder": MLPEncoder(7, (16,)), "policy": LSTMPolicy(3, 16, hidden=8), "max_size": 4, **changes}
    return Predictor(arguments.pop("encoder"), arguments.pop("policy"), CLASSES, **arguments)


def with_user_encoder(seed: int = 0, **changes: object) -> Predictor:
    torch.manual_seed(seed)
    return small(seed, encoder=UserEncoder(), **changes)


def same(a: Predictor, b: Predictor, x: Tensor) -> bool:
    parts = [[part for part in model.explain(x) if isinstance(part, torch.Tensor)] for model in (a, b)]
    return all(torch.equal(p.nan_to_num(), q.nan_to_num()) for p, q in zip(*parts, strict=True))


def weights_in(folder: Path) -> Path:
    (path,) = folder.glob("weights-*.safetensors")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def description(folder: Path) -> dict:
    """Description without its checksum, without which a file may be edited."""
    stored = json.loads((folder / DESCRIPTION).read_text())
    assert len(stored.pop("description_sha256", "0" * 64)) == 64
    return stored


def change(folder: Path, **changes: object) -> None:
    (folder / DESCRIPTION).write_text(json.dumps(description(folder) | changes))


# --- round trips ---


@pytest.mark.parametrize(("encoder", "policy", "stop"), COMBINATIONS)
def test_a_loaded_predictor_is_identical_to_the_saved_one(tmp_path, encoder, policy, stop):
    torch.manual_seed(0)
    encoder_module, x = ENCODERS[encoder]()
    baseline = stop == "end"
    body = (POLICIES | ONE_SHOT_HEADS)[policy](3 + (stop == "end"))
    saved = Predictor(encoder_module, body, CLASSES, max_size=4, stop=stop, baseline=baseline)
    saved(x)  # in training mode, so that batch norm updates its running statistics
    saved.save(tmp_path, record={"epochs": 3})
    loaded = Predictor.load(tmp_path)
    assert same(loaded, saved, x)
    assert not any(module.training for module in loaded.modules())
    assert type(loaded.encoder) is type(saved.encoder)
    assert type(loaded) is type(saved)
    assert loaded.module.arguments == saved.module.arguments
    assert (loaded.classes, loaded.max_size, loaded.stop) == (CLASSES, 4, stop)
    assert (getattr(loaded, "value_head", None) is not None) == baseline
    assert loaded.record == {"epochs": 3}
    for name, value in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
        assert loaded.state_dict()[name].stride() == value.stride()  # the memory layout affects speed


def test_class_names_are_loaded_unchanged(tmp_path):
    small().save(tmp_path)
    names = Predictor.load(tmp_path).predict_labels(torch.randn(50, 7))
    assert {name for row in names for name in row} <= set(CLASSES)
    assert Predictor.load(str(tmp_path)).classes == CLASSES


def test_saving_a_loaded_predictor_gives_identical_files(tmp_path):
    small().save(tmp_path / "a", record={"em": 0.5, "curve": [0.1, 0.5], "by size": {"1": None}})
    Predictor.load(tmp_path / "a").save(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_new_record_replaces_the_old_one(tmp_path):
    small().save(tmp_path, record={"em": 0.5})
    Predictor.load(tmp_path).save(tmp_path, record={})
    assert Predictor.load(tmp_path).record == {}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_precision_is_saved(tmp_path, dtype):
    saved = small().to(dtype)
    saved.save(tmp_path)
    loaded = Predictor.load(tmp_path)
    assert {value.dtype for value in loaded.state_dict().values()} == {dtype}
    assert same(loaded, saved, torch.randn(20, 7).to(dtype))


def test_saving_does_not_change_the_predictor(tmp_path):
    predictor = small().train()
    before = {name: value.clone() for name, value in predictor.state_dict().items()}
    predictor.save(tmp_path)
    assert predictor.training
    assert all(torch.equal(value, before[name]) for name, value in predictor.state_dict().items())


def test_loading_does_not_change_the_callers_random_numbers(tmp_path):
    small().save(tmp_path)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    Predictor.load(tmp_path)
    assert torch.equal(torch.rand(3), expected)
    small()
    assert not torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(7).get_state()), "nothing was drawn"


def test_a_missing_folder_is_created(tmp_path):
    small().save(tmp_path / "runs" / "one")
    sha256 = description(tmp_path / "runs" / "one")["weights_sha256"]
    assert contents(tmp_path / "runs" / "one").keys() == {DESCRIPTION, f"weights-{sha256[:12]}.safetensors"}


# --- user-defined encoders and policies ---


def test_a_user_defined_encoder_must_be_passed_to_load(tmp_path):
    saved = with_user_encoder()
    saved.save(tmp_path)
    with pytest.raises(ValueError, match=r"the encoder of the predictor in .* is not part of torchmultiset.*encoder="):
        Predictor.load(tmp_path)
    torch.manual_seed(99)
    loaded = Predictor.load(tmp_path, encoder=UserEncoder())
    assert same(loaded, saved, torch.randn(20, 7))


def test_a_subclass_is_a_user_defined_encoder(tmp_path):
    class Squared(MLPEncoder):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) ** 2

    saved = small(encoder=Squared(7, (16,)))
    saved.save(tmp_path)
    with pytest.raises(ValueError, match="encoder="):
        Predictor.load(tmp_path)
    assert same(Predictor.load(tmp_path, encoder=Squared(7, (16,))), saved, torch.randn(20, 7))


def test_an_empty_sequential_is_a_valid_encoder(tmp_path):
    saved = small(encoder=nn.Sequential(), policy=LSTMPolicy(3, 7, hidden=8))  # of length 0, hence falsy
    saved.save(tmp_path)
    assert same(Predictor.load(tmp_path, encoder=nn.Sequential()), saved, torch.randn(20, 7))


def test_an_encoder_with_other_weights_is_refused(tmp_path):
    with_user_encoder().save(tmp_path)
    for encoder in (UserEncoder(width=5), nn.Linear(7, 16)):
        with pytest.raises(ValueError, match=r"(?s)weights in .* do not fit.*(size mismatch|Missing key)"):
            Predictor.load(tmp_path, encoder=encoder)


def test_tied_weights_are_saved(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(7, 7), nn.Linear(7, 7)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).relu())

    saved = small(encoder=Tied(), policy=LSTMPolicy(3, 7, hidden=8))
    saved.save(tmp_path)
    loaded = Predictor.load(tmp_path, encoder=Tied())
    assert same(loaded, saved, torch.randn(20, 7))
    assert loaded.encoder.a.weight is loaded.encoder.b.weight


def test_a_user_defined_policy_must_be_passed_to_load(tmp_path):
    class Linear(nn.Module):
        """Return the same scores at every step."""

        num_classes, features = 3, 16

        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Linear(16, 3)

        def start(self, memory: Tensor) -> Tensor:
            return memory

        def step(self, state: Tensor, previous: Tensor | None) -> tuple[Step, Tensor]:
            return Step(self.classifier(state), state), state

    saved = small(policy=Linear())
    saved.save(tmp_path)
    with pytest.raises(ValueError, match=r"the policy of the predictor in .* policy="):
        Predictor.load(tmp_path)
    assert same(Predictor.load(tmp_path, policy=Linear()), saved, torch.randn(20, 7))


# --- content of the files ---


def test_the_description_is_plain_json_with_its_format(tmp_path):
    small(stop="end", policy=LSTMPolicy(4, 16, hidden=8)).save(tmp_path, record={"seed": 7})

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (tmp_path / DESCRIPTION).read_bytes().decode("ascii")
    stored = json.loads(text, parse_constant=refuse)
    assert stored["format"] == 2
    assert stored["torchmultiset"] == torchmultiset.__version__
    assert stored["classes"] == list(CLASSES)
    assert stored["max_size"] == 4
    assert stored["stop"] == "end"
    assert stored["encoder"] == {"class": "MLPEncoder", "arguments": {"features": 7, "hidden": [16]}}
    arguments = {"num_classes": 4, "memory": 16, "hidden": 8, "layers": 1, "embedding": 32}
    arguments |= {"pool": "mean", "dropout": 0.0}
    assert stored["policy"] == {"class": "LSTMPolicy", "arguments": arguments}
    assert stored["record"] == {"seed": 7}
    assert stored["weights_sha256"] == hashlib.sha256(weights_in(tmp_path).read_bytes()).hexdigest()
    assert read_description(tmp_path) | {"description_sha256": stored["description_sha256"]} == stored


def test_the_weights_are_safetensors_of_the_state_dict(tmp_path):
    predictor = small()
    predictor.save(tmp_path)
    weights = safetensors.torch.load_file(weights_in(tmp_path))
    assert weights.keys() == predictor.state_dict().keys()


def test_the_files_contain_no_path_and_no_host_name(tmp_path):
    folder = tmp_path / "unmistakable"
    for predictor in (small(), with_user_encoder()):
        predictor.save(folder)
        for path in folder.iterdir():
            content = path.read_bytes()
            for secret in (b"unmistakable", str(tmp_path).encode(), str(Path.home()).encode() + b"/"):
                assert secret not in content
            assert socket.gethostname().encode() not in content


def test_saving_is_deterministic(tmp_path):
    small(3).save(tmp_path / "a")
    small(3).save(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


# --- invalid records ---


@pytest.mark.parametrize("record", [{"loss": float("nan")}, {"loss": float("inf")}, {"weights": torch.zeros(2)}])
def test_a_record_that_is_not_json_is_refused_before_anything_is_written(tmp_path, record):
    old, x = small(0), torch.randn(50, 7)
    old.save(tmp_path)
    with pytest.raises(ValueError, match="record must be serialisable as JSON"):
        small(1).save(tmp_path, record=record)
    assert same(Predictor.load(tmp_path), old, x)
    with pytest.raises(ValueError, match="record must be"):
        small(1).save(tmp_path / "other", record=record)
    assert not (tmp_path / "other").exists()


# --- damaged and incomplete folders ---


def test_a_folder_without_a_predictor_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no predictor in .*predictor\.json is missing"):
        Predictor.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no model .*nowhere"):
        Predictor.load(tmp_path / "nowhere")
    (tmp_path / "pets").mkdir()
    with pytest.raises(FileNotFoundError, match=r"there is no model .*pet: .*did you mean .*pets\?"):
        Predictor.load(tmp_path / "pet")
    (tmp_path / "pets.csv").write_text("image,labels")
    with pytest.raises(NotADirectoryError, match=r"pets\.csv is a file, but a model is a folder such as runs/pets"):
        Predictor.load(tmp_path / "pets.csv")


@pytest.mark.parametrize(("before", "after"), [("cat", "cbt"), ('"format": 2', '"format": 1'), ("stop", "st0p")])
def test_a_changed_description_is_refused(tmp_path, before, after):
    small().save(tmp_path)
    text = (tmp_path / DESCRIPTION).read_text()
    assert before in text
    (tmp_path / DESCRIPTION).write_text(text.replace(before, after, 1))
    with pytest.raises(ValueError, match=r"predictor\.json was changed after the predictor was saved: copy the folder"):
        Predictor.load(tmp_path)


def test_a_deeply_nested_description_is_refused(tmp_path):
    small().save(tmp_path)
    (tmp_path / DESCRIPTION).write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"predictor\.json is damaged"):
        Predictor.load(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    small().save(tmp_path)
    weights_in(tmp_path).unlink()
    with pytest.raises(FileNotFoundError, match=r"weights-[0-9a-f]{12}\.safetensors is missing"):
        Predictor.load(tmp_path)


def test_weights_of_another_predictor_are_refused(tmp_path):
    small(0).save(tmp_path / "a")
    small(1).save(tmp_path / "b")
    shutil.copy(weights_in(tmp_path / "a"), weights_in(tmp_path / "b"))
    with pytest.raises(ValueError, match=r"does not belong to the predictor\.json next to it"):
        Predictor.load(tmp_path / "b")


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:-1] + bytes([b[-1] ^ 1])])
def test_damaged_weights_are_refused(tmp_path, damage):
    small().save(tmp_path)
    path = weights_in(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"weights-[0-9a-f]{12}\.safetensors is damaged"):
        Predictor.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b'{"format": 1, "classes"', b"\xff\xfe\x00", b"[1, 2]", b"null", b'"format"', b"{}", b'{"format": 1}'],
)
def test_a_damaged_description_is_refused(tmp_path, content):
    small().save(tmp_path)
    (tmp_path / DESCRIPTION).write_bytes(content)
    with pytest.raises(ValueError, match=r"predictor\.json is damaged"):
        Predictor.load(tmp_path)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": {"class": "MLPEncoder"}}, "is damaged"),
        ({"encoder": {"class": "MLPEncoder", "arguments": {"depth": 3}}}, "is damaged.*depth"),
        ({"encoder": [1]}, "is damaged"),
        ({"encoder": {"class": "MLPEncoder", "arguments": [7]}}, "is damaged"),
        ({"max_size": "many"}, "is damaged"),
        ({"policy": {"class": "os.system", "arguments": {"command": "ls"}}}, "unknown policy, 'os.system'"),
        ({"max_size": 0}, "max_size must be at least 1"),
        ({"classes": ["a", "a", "b"]}, "classes must be different"),
        ({"stop": "end"}, "policy must be one of 4 classes"),
    ],
)
def test_an_inconsistent_description_is_refused(tmp_path, changes, message):
    small().save(tmp_path)
    change(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        Predictor.load(tmp_path)


@pytest.mark.parametrize(
    "key", ["classes", "max_size", "stop", "baseline", "encoder", "policy", "record", "weights_sha256"]
)
def test_a_description_without_a_key_is_refused(tmp_path, key):
    small().save(tmp_path)
    stored = description(tmp_path)
    del stored[key]
    (tmp_path / DESCRIPTION).write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=rf"predictor\.json is damaged.*{key}"):
        Predictor.load(tmp_path)


def test_a_newer_format_is_refused(tmp_path):
    small().save(tmp_path)
    change(tmp_path, format=3)
    with pytest.raises(ValueError, match=r"has format 3, but this version of torchmultiset reads formats 1 and 2"):
        Predictor.load(tmp_path)


@pytest.mark.parametrize("kind", ["policy", "head"])
def test_format_1_where_heads_are_policies_is_read(tmp_path, kind):
    saved = small() if kind == "policy" else small(policy=CountTable(3, 16, most=4))
    saved.save(tmp_path)
    stored = description(tmp_path)
    if kind == "head":
        stored |= {"policy": stored.pop("head"), "baseline": False}
    state = {name.replace("head.classifier", "policy.classifier"): value for name, value in saved.weights().items()}
    weights = safetensors.torch.save(state)
    sha256 = hashlib.sha256(weights).hexdigest()
    weights_in(tmp_path).unlink()
    (tmp_path / f"weights-{sha256[:12]}.safetensors").write_bytes(weights)
    (tmp_path / DESCRIPTION).write_text(json.dumps(stored | {"format": 1, "weights_sha256": sha256}))
    loaded = Predictor.load(tmp_path)
    assert type(loaded) is type(saved)
    assert same(loaded, saved, torch.randn(20, 7))


def test_unknown_keys_in_the_same_format_are_ignored(tmp_path):
    saved = small()
    saved.save(tmp_path)
    change(tmp_path, licence="CC0")
    assert same(Predictor.load(tmp_path), saved, torch.randn(20, 7))


# --- no code is executed ---


class Evil:
    """An object that writes a file when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple:
        return Path.touch, (self.witness,)


@pytest.mark.parametrize("with_checksum", [False, True])
@pytest.mark.parametrize("kind", ["pickle", "torch", "old torch"])
def test_a_pickle_instead_of_weights_is_refused_and_not_executed(tmp_path, kind, with_checksum):
    witness, folder = tmp_path / "witness", tmp_path / "predictor"
    small().save(folder)
    path = weights_in(folder)
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Evil(witness)))
    else:
        torch.save({"weights": Evil(witness)}, path, _use_new_zipfile_serialization=kind == "torch")
    if with_checksum:  # of an attacker who can write the description, too
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        change(folder, weights_sha256=sha256)
        path = path.rename(folder / f"weights-{sha256[:12]}.safetensors")
    with pytest.raises(ValueError, match="is not a safetensors file" if with_checksum else "is damaged, or does not"):
        Predictor.load(folder)
    assert not witness.exists()
    if kind == "pickle":
        pickle.loads(path.read_bytes())
        assert witness.exists(), "the pickle is harmless"


def test_loading_unpickles_nothing(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was read")

    saved = small()
    saved.save(tmp_path)
    for target in ("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load"):
        monkeypatch.setattr(target, refuse)
    assert same(Predictor.load(tmp_path), saved, torch.randn(20, 7))


def test_parts_that_cannot_be_saved_are_reported_with_their_names(tmp_path):
    with pytest.raises(ValueError, match=r"^record must be serialisable as JSON"):
        small().save(tmp_path, record={"loss": float("nan")})
    strange = small()
    strange.policy.arguments["hidden"] = {8}
    with pytest.raises(ValueError, match=r"^the arguments of the modules must be serialisable as JSON"):
        strange.save(tmp_path)
    assert not [*tmp_path.iterdir()]
