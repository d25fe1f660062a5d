from __future__ import annotations

import json
import math
import threading
from dataclasses import replace

import lightning_fabric.strategies.launchers.subprocess_script as launcher
import numpy as np
import pytest
import torch
from fresh_digits import recording_batches
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision import MixedPrecision
from tiny_runs import Task, outcome, task, vectors, weights
from torch import Tensor

from torchmultiset.data import Examples
from torchmultiset.model.build import build_objective, build_predictor
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.model.objectives import MultisetObjective
from torchmultiset.model.predictor import Predictor
from torchmultiset.rollout import greedy
from torchmultiset.training import NotFiniteError, evaluation, fit, local_fabric
from torchmultiset.training.checkpoint import read_checkpoint
from torchmultiset.training.evaluation import evaluate

pytestmark = pytest.mark.slow


class Interruption(Exception):
    pass


def cpu(**options) -> Fabric:
    return Fabric(accelerator="cpu", devices=1, **options)


def with_optimization(ours: Task, **values) -> Task:
    return ours._replace(optim=replace(ours.optim, **values))


def one_cycle(step: int, steps: int, peak: float) -> float:
    """A cosine from 1/25 of the peak up to it over a tenth of the steps, and a cosine down to almost 0."""
    top = 0.1 * steps - 1
    if step <= top:
        return peak / 25 + (peak - peak / 25) * (1 - math.cos(math.pi * step / top)) / 2
    low = peak / 25 / 1e4
    return low + (peak - low) * (1 + math.cos(math.pi * (step - top) / (steps - 1 - top))) / 2


@pytest.mark.parametrize("schedule", ["one-cycle", "constant"])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_fit_equals_a_plain_loop(schedule, clip, tmp_path):
    ours, batches = recording_batches(with_optimization(task("plain", epochs=2), schedule=schedule, clip=clip))
    fit(*ours, tmp_path, fabric=cpu())
    plain = task("plain").predictor.train()
    adam = torch.optim.Adam(plain.parameters(), lr=0.01)
    norms = []
    for step, batch in enumerate(batches):
        for group in adam.param_groups:
            group["lr"] = one_cycle(step, len(batches), 0.01) if schedule == "one-cycle" else 0.01
        adam.zero_grad()
        MultisetObjective().loss(plain, batch, torch.Generator()).backward()
        norm = torch.stack([p.grad.norm() for p in plain.parameters()]).norm()
        norms.append(float(norm))
        if clip and norm > clip:
            for parameter in plain.parameters():
                parameter.grad *= clip / norm
        adam.step()
    assert max(norms) > 0.5  # clipping has an effect
    torch.testing.assert_close(weights(ours.predictor), weights(plain), rtol=1e-4, atol=1e-5)


def test_every_epoch_has_each_example_once_in_a_new_order(tmp_path):
    ours, batches = recording_batches(task("plain", epochs=2))
    fit(*ours, tmp_path / "a", fabric=cpu())
    assert [len(batch.x) for batch in batches] == ([8] * 11 + [5]) * 2
    first, second = (torch.cat([batch.x for batch in part]) for part in (batches[:12], batches[12:]))
    inputs = torch.from_numpy(ours.train.inputs)
    for epoch in (first, second):
        torch.testing.assert_close(epoch.sort(0).values, inputs.sort(0).values, rtol=0, atol=0)
        assert not torch.equal(epoch, inputs)
    assert not torch.equal(first, second)


def test_the_seed_determines_order_and_sampling(tmp_path):
    ends = []
    for run, seed in enumerate([3, 3, 4]):
        ours = task("dropout", epochs=1)
        torch.rand(run)  # the state of the global generator must not matter
        fit(*ours, tmp_path / str(run), seed=seed, fabric=cpu())
        ends.append(torch.cat([value.flatten() for value in weights(ours.predictor).values()]))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_steps_sample_independently(tmp_path):
    drawn = []

    class Drawing(MultisetObjective):
        def loss(self, predictor, batch, generator):
            drawn.append((torch.rand(3).tolist(), torch.rand(3, generator=generator).tolist()))
            return super().loss(predictor, batch, generator)

    ours = task("plain", epochs=2)
    fit(*ours._replace(objective=Drawing()), tmp_path, fabric=cpu())
    # No random number occurs twice: neither in two steps nor in dropout and sampling of the same step.
    numbers = [number for step in drawn for stream in step for number in stream]
    assert len(set(numbers)) == len(numbers) == 24 * 6


def test_a_batch_may_be_larger_than_the_data(tmp_path):
    ours, batches = recording_batches(with_optimization(task("plain", count=5, epochs=3), batch_size=64))
    assert fit(*ours, tmp_path, fabric=cpu()).epoch == 3
    assert [len(batch.x) for batch in batches] == [5, 5, 5]


@pytest.mark.parametrize("epochs", [1, 2, 9, 10, 11])
def test_the_one_cycle_schedule_works_with_few_steps(epochs, tmp_path):
    ours = with_optimization(task("plain", count=8, epochs=epochs), schedule="one-cycle")
    fit(*ours, tmp_path, fabric=cpu())
    assert all(value.isfinite().all() for value in weights(ours.predictor).values())


def test_the_best_epoch_is_kept(tmp_path):
    ours = task("plain")
    after = []

    def watch(progress):
        if progress.epoch and progress.step == 0:
            after.append(weights(ours.predictor))

    progress = fit(*ours, tmp_path, fabric=cpu(), watch=watch)
    ems = [line["validation_em"] for line in progress.history]
    best = int(np.argmax(ems))
    assert best not in (0, len(ems) - 1)  # neither the first nor the last epoch is best
    assert progress.best_em == ems[best]
    kept = Predictor.load(tmp_path / "best")
    f1 = progress.history[best]["validation_f1"]
    assert kept.record == {"epoch": best + 1, "validation_em": ems[best], "validation_f1": f1}
    torch.testing.assert_close(weights(kept), after[best], rtol=0, atol=0)
    counts, target = evaluate(kept, ours.validation)
    assert float((counts == target).all(1).double().mean()) == pytest.approx(ems[best])
    torch.testing.assert_close(weights(ours.predictor), after[-1], rtol=0, atol=0)


def test_of_equal_epochs_the_first_is_kept(tmp_path):
    fit(*with_optimization(task("plain"), lr=1e-30), tmp_path, fabric=cpu())
    assert Predictor.load(tmp_path / "best").record["epoch"] == 1


def test_the_last_epoch_is_kept_if_it_is_selected(tmp_path):
    ours = with_optimization(task("plain"), select="last")
    progress = fit(*ours, tmp_path, fabric=cpu())
    kept = Predictor.load(tmp_path / "best")
    assert kept.record["epoch"] == len(progress.history)
    torch.testing.assert_close(weights(kept), weights(ours.predictor), rtol=0, atol=0)


def test_the_score_is_the_sum_of_exact_match_and_f1(tmp_path):
    progress = fit(*with_optimization(task("plain"), select="score"), tmp_path, fabric=cpu())
    scores = [line["validation_em"] + line["validation_f1"] for line in progress.history]
    assert Predictor.load(tmp_path / "best").record["epoch"] == int(np.argmax(scores)) + 1


def counting(max_size: int, **values) -> Task:
    """A count head on vectors whose epoch is selected by the validation loss."""
    torch.manual_seed(0)
    objective = ObjectiveConfig("counts", count_head="table")
    model = build_predictor(
        ModelConfig(units=(16,)), objective, shape=(3,), classes="abc", min_size=1, max_size=max_size, stop="policy"
    )
    ours = with_optimization(task("plain", epochs=6), select="loss", lr=0.3, **values)
    return ours._replace(predictor=model, objective=build_objective(objective, model, seed=0))


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_the_epoch_with_the_lowest_loss_on_the_validation_data_is_kept(ema, tmp_path):
    ours = counting(3, ema=ema)
    progress = fit(*ours, tmp_path, fabric=cpu())
    losses = [line["validation_loss"] for line in progress.history]
    kept = Predictor.load(tmp_path / "best")
    assert kept.record["epoch"] == int(np.argmin(losses)) + 1
    batch = ours.validation.batch(np.arange(len(ours.validation)))
    with torch.no_grad(), kept.evaluating():
        assert float(ours.objective.loss(kept, batch, torch.Generator())) == pytest.approx(min(losses), rel=1e-5)
    assert progress.best_loss == min(losses)


def test_validation_examples_of_a_size_that_is_never_predicted_have_no_loss(tmp_path):
    losses = []
    for possible in (False, True):
        ours = counting(2)
        train, validation = (
            each.subset(np.flatnonzero(each.counts.sum(1) < 3)) for each in (ours.train, ours.validation)
        )
        assert len(validation) < len(ours.validation)
        ours = ours._replace(train=train, **({"validation": validation} if possible else {}))
        progress = fit(*ours, tmp_path / str(possible), fabric=cpu())
        losses.append([line["validation_loss"] for line in progress.history])
    assert losses[0] == losses[1]


def test_training_may_end_early_with_the_schedule_of_all_epochs(tmp_path):
    whole, half = task("plain", epochs=4), with_optimization(task("plain", epochs=4), until=0.5)
    fit(*whole, tmp_path / "whole", fabric=cpu())
    progress = fit(*half, tmp_path / "half", fabric=cpu())
    lines = [(tmp_path / name / "epochs.jsonl").read_text().splitlines() for name in ("whole", "half")]
    losses = [[json.loads(line)["loss"] for line in some] for some in lines]
    assert losses[1] == losses[0][:2]
    assert len(progress.history) == 2
    resumed = fit(*with_optimization(task("plain", epochs=4), until=0.5), tmp_path / "half", fabric=cpu(), resume=True)
    assert resumed.history == progress.history


def test_patience_ends_a_run_that_does_not_improve(tmp_path):
    progress = fit(*with_optimization(task("plain", epochs=9), lr=1e-30, patience=3), tmp_path, fabric=cpu())
    assert len(progress.history) == 4  # the first epoch is the best one, and patience allows three more
    resumed = fit(
        *with_optimization(task("plain", epochs=9), lr=1e-30, patience=3), tmp_path, fabric=cpu(), resume=True
    )
    assert resumed.history == progress.history


def test_weight_decay_is_that_of_adamw_and_applies_only_to_matrices(tmp_path):
    ours, batches = recording_batches(
        with_optimization(task("plain", epochs=2), schedule="constant", clip=0.0, weight_decay=0.5)
    )
    fit(*ours, tmp_path, fabric=cpu())
    plain = task("plain").predictor.train()
    adam = torch.optim.Adam(plain.parameters(), lr=0.01)
    for batch in batches:
        adam.zero_grad()
        MultisetObjective().loss(plain, batch, torch.Generator()).backward()
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter *= 1 - 0.01 * 0.5 * (parameter.ndim > 1)
        adam.step()
    torch.testing.assert_close(weights(ours.predictor), weights(plain), rtol=1e-4, atol=1e-5)


def test_the_moving_average_is_validated_and_saved(tmp_path):
    ours = with_optimization(task("plain", epochs=2), ema=0.9, select="last")
    steps = []

    def watch(progress):
        if progress.step:
            steps.append(weights(ours.predictor))

    fit(*ours, tmp_path, fabric=cpu(), watch=watch)
    average = {name: value.double() for name, value in steps[0].items()}
    for number, after in enumerate(steps[1:], 1):
        keep = min(0.9, (1 + number) / (10 + number))
        average = {name: keep * value + (1 - keep) * after[name].double() for name, value in average.items()}
    kept = {name: value.double() for name, value in weights(Predictor.load(tmp_path / "best")).items()}
    torch.testing.assert_close(kept, average, rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(kept[name].float(), value) for name, value in steps[-1].items())


def test_each_epoch_is_recorded_on_a_line(tmp_path):
    ours = task("plain", epochs=3)
    losses = []
    progress = fit(*ours, tmp_path, fabric=cpu(), watch=lambda p: losses.append((p.epoch, p.step, p.loss)))
    lines = [json.loads(line) for line in (tmp_path / "epochs.jsonl").read_text().splitlines()]
    assert lines == progress.history
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    places = [(epoch, step) for epoch in range(3) for step in range(1, 13)]
    assert [(epoch, step) for epoch, step, _ in losses if step] == places
    assert [epoch for epoch, step, _ in losses if not step] == [0, 1, 2, 3]  # the start, and the end of each epoch
    for line in lines:
        mine = [loss for epoch, step, loss in losses if step and epoch + 1 == line["epoch"]]
        assert line["loss"] == pytest.approx(np.mean(mine))
        assert line["seconds"] > 0
        assert line["images_per_second"] == pytest.approx(93 / line["seconds"], rel=0.05)
        assert line["validation_em"] <= line["validation_f1"]
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_the_duration_includes_the_time_before_an_interruption(tmp_path):
    def watch(progress):
        if progress.step == 6:
            raise Interruption

    with pytest.raises(Interruption):
        fit(*task("plain", epochs=1), tmp_path, fabric=cpu(), save_every=5, watch=watch)
    path = tmp_path / "checkpoint.pt"
    state = read_checkpoint(path)
    assert state["progress"]["seconds"] > 0
    state["progress"]["seconds"] += 1000
    torch.save(state, path)
    assert fit(*task("plain", epochs=1), tmp_path, fabric=cpu(), resume=True).history[0]["seconds"] > 1000


# A loss that is not finite


def test_a_nan_loss_stops_training_and_saves_the_batch(tmp_path):
    ours, batches = recording_batches(task("plain", epochs=2))
    ours.train.inputs[17, 1] = math.nan
    last = []
    with pytest.raises(NotFiniteError) as raised:
        fit(*ours, tmp_path, fabric=cpu(), save_every=1, watch=lambda p: last.append(weights(ours.predictor)))
    saved = torch.load(tmp_path / "bad-batch.pt", weights_only=True)
    torch.testing.assert_close(saved["x"], batches[-1].x, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(saved["target"], batches[-1].target)
    assert saved["x"].isnan().sum() == 1
    step = len(batches)
    assert 1 < step <= 12
    assert f"the loss became nan in epoch 1 at step {step}" in str(raised.value)
    assert str(tmp_path / "bad-batch.pt") in str(raised.value)
    torch.testing.assert_close(weights(ours.predictor), last[-1], rtol=0, atol=0)
    state = read_checkpoint(tmp_path / "checkpoint.pt")
    assert state["progress"]["step"] == step - 1
    torch.testing.assert_close(dict(state["predictor"]), last[-1], rtol=0, atol=0)


def test_a_run_resumes_once_the_data_is_repaired(tmp_path):
    uninterrupted = task("plain", epochs=2)
    fit(*uninterrupted, tmp_path / "uninterrupted", fabric=cpu())
    ours = task("plain", epochs=2)
    original = ours.train.inputs[17, 1]
    ours.train.inputs[17, 1] = math.inf
    with pytest.raises(NotFiniteError):
        fit(*ours, tmp_path / "run", fabric=cpu(), save_every=1)
    ours.train.inputs[17, 1] = original
    fit(*task("plain", epochs=2)._replace(train=ours.train), tmp_path / "run", fabric=cpu(), resume=True)
    (tmp_path / "run" / "bad-batch.pt").unlink()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "uninterrupted")


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_gradient_that_is_not_finite_stops_training(clip, tmp_path):
    ours = with_optimization(task("plain"), clip=clip)

    class Steep(MultisetObjective):
        def loss(self, predictor, batch, generator):
            # The square root has an infinite slope and a finite value at 0.
            steep = (predictor.rollout(batch.x, greedy).logits * 0).square().sum().sqrt()
            return super().loss(predictor, batch, generator) + steep

    before = weights(ours.predictor)
    with pytest.raises(NotFiniteError, match=r"the gradient became .* in epoch 1 at step 1"):
        fit(*ours._replace(objective=Steep()), tmp_path, fabric=cpu())
    torch.testing.assert_close(weights(ours.predictor), before, rtol=0, atol=0)
    assert (tmp_path / "bad-batch.pt").exists()
    assert not (tmp_path / "checkpoint.pt").exists()


# Resuming


def test_a_folder_with_a_run_is_refused_unless_it_is_resumed(tmp_path):
    fit(*task("plain", epochs=1), tmp_path, fabric=cpu())
    before = outcome(tmp_path)
    with pytest.raises(FileExistsError, match="resume it, or choose another folder"):
        fit(*task("plain", epochs=1), tmp_path, fabric=cpu())
    assert outcome(tmp_path) == before


def test_resuming_a_finished_run_returns_its_final_state(tmp_path):
    ours = task("plain", epochs=2)
    end = fit(*ours, tmp_path, fabric=cpu())
    before = outcome(tmp_path)
    resumed = task("plain", epochs=2)
    assert fit(*resumed, tmp_path, fabric=cpu(), resume=True) == end
    torch.testing.assert_close(weights(resumed.predictor), weights(ours.predictor), rtol=0, atol=0)
    assert outcome(tmp_path) == before


@pytest.mark.parametrize(
    ("values", "seed", "count", "message"),
    [
        ({"lr": 0.5}, 0, 93, "lr must be 0.01, as in the run"),
        ({"epochs": 9}, 0, 93, "epochs must be 1, as"),
        ({}, 5, 93, "seed must be 0, as"),
        ({}, 0, 92, "examples must be 93, as"),
    ],
)
def test_resuming_with_other_settings_is_refused(values, seed, count, message, tmp_path):
    fit(*task("plain", epochs=1), tmp_path, fabric=cpu())
    other = with_optimization(task("plain", count=count, epochs=1), **values)
    with pytest.raises(ValueError, match=message):
        fit(*other, tmp_path, fabric=cpu(), resume=True, seed=seed)


# Devices, precision, processes


def test_fit_never_starts_a_process(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(launcher.subprocess, "Popen", refuse)
    assert local_fabric().world_size == 1
    fit(*task("plain", epochs=1), tmp_path / "one")
    with pytest.raises(RuntimeError, match=r"must call `.launch\(\)`"):
        fit(*task("plain", epochs=1), tmp_path / "two", fabric=Fabric(accelerator="cpu", devices=2, strategy="ddp"))
    assert not (tmp_path / "two").exists()


def test_fit_works_in_a_thread(tmp_path):
    # Signal handlers can only be installed in the main thread.
    thread = threading.Thread(target=lambda: fit(*task("plain", epochs=1), tmp_path, fabric=cpu()))
    thread.start()
    thread.join()
    assert len((tmp_path / "epochs.jsonl").read_text().splitlines()) == 1


# The scaler skips steps until it has found its scale, and PyTorch warns if it skips the first step.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_runs_in_mixed_precision_are_resumed(precision, tmp_path):
    def fabric():
        # Fabric offers half precision for GPUs only, but the scaler also works on the CPU.
        return cpu(plugins=MixedPrecision(precision, "cpu"))

    uninterrupted = task("plain", epochs=2)
    fit(*uninterrupted, tmp_path / "uninterrupted", fabric=fabric())
    state = read_checkpoint(tmp_path / "uninterrupted" / "checkpoint.pt")
    assert ("scale" in state["precision"]) == (precision == "16-mixed")
    assert all(value.dtype == torch.float32 for value in weights(uninterrupted.predictor).values())

    def watch(progress):
        if (progress.epoch, progress.step) == (0, 7):
            raise Interruption

    with pytest.raises(Interruption):
        fit(*task("plain", epochs=2), tmp_path / "run", fabric=fabric(), save_every=5, watch=watch)
    fit(*task("plain", epochs=2), tmp_path / "run", fabric=fabric(), save_every=5, resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "uninterrupted")


# Evaluation


def rounding(count: int) -> tuple[Predictor, Examples]:
    """Examples whose input is the count vector, and a predictor that returns its input rounded."""
    predictor = task("plain").predictor
    predictor.predict = lambda x: x.round().long()  # type: ignore[method-assign]
    return predictor, vectors(count)


@pytest.mark.parametrize("batch_size", [1, 4, 7, 100])
def test_evaluation_keeps_the_order_for_every_batch_size(batch_size):
    predictor, examples = rounding(11)
    steps: list[int] = []
    counts, target = evaluate(predictor, examples, batch_size=batch_size, watch=steps.append)
    assert counts.tolist() == np.round(examples.inputs).tolist()
    assert target.tolist() == examples.counts.tolist()
    assert sum(steps) == 11
    assert max(steps) == min(batch_size, 11)


def test_large_inputs_are_evaluated_in_small_batches(monkeypatch):
    predictor, examples = rounding(11)
    monkeypatch.setattr(evaluation, "_LARGEST", 4 * examples.inputs[0].size)
    steps: list[int] = []
    counts, _ = evaluate(predictor, examples, watch=steps.append)
    assert steps == [4, 4, 3]
    assert counts.tolist() == np.round(examples.inputs).tolist()


def test_evaluation_of_no_examples_is_empty():
    predictor, examples = rounding(11)
    counts, target = evaluate(predictor, examples.subset([]))
    assert counts.shape == target.shape == (0, 3)


def test_evaluation_in_batches_equals_that_of_single_examples():
    ours = task("batch norm")
    ours.predictor.train()
    counts, _ = evaluate(ours.predictor, ours.validation, batch_size=5)
    assert ours.predictor.training  # the mode is restored
    ours.predictor.eval()
    for i in range(len(ours.validation)):
        assert torch.equal(counts[i : i + 1], ours.predictor.predict(ours.validation.batch([i]).x))


def test_evaluation_uses_the_device_of_the_predictor():
    predictor, examples = rounding(3)
    devices = []

    def predict(x: Tensor) -> Tensor:
        devices.append(x.device.type)
        return torch.zeros(len(x), 3, dtype=torch.int64)

    predictor.to("meta").predict = predict
    counts, _ = evaluate(predictor, examples)
    assert devices == ["meta"]
    assert counts.device.type == "cpu"


# Bad input


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": -1}, "epochs must be at least 1, but is -1"),
        ({"batch_size": -1}, "batch_size must be at least 1"),
        ({"lr": 0.0}, "lr must be more than 0"),
        ({"clip": -1.0}, "clip must be at least 0"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
        ({"ema": 1.0}, "ema must be at least 0 and below 1"),
        ({"patience": -1}, "patience must be at least 0"),
        ({"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1"),
        ({"until": 1.5}, "until must be above 0 and at most 1, but is 1.5"),
        ({"select": "first"}, "select must be one of 'em', 'score', 'loss', 'last'"),
        ({"schedule": "cosine"}, "schedule must be one of 'one-cycle', 'constant'"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_numbers_out_of_range_are_refused(values, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        fit(*with_optimization(task("plain"), **values), tmp_path / "run", fabric=cpu())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (vectors(3).subset([]), "must be at least one example, but is 0"),
        (
            replace(vectors(3), classes=("b", "a", "c")),
            r"must be of the classes \('a', 'b', 'c'\), but is \('b', 'a', 'c'\)",
        ),
    ],
)
def test_empty_or_mismatched_data_is_refused(split, examples, message, tmp_path):
    with pytest.raises(ValueError, match=f"{split} {message}"):
        fit(*task("plain")._replace(**{split: examples}), tmp_path / "run", fabric=cpu())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"save_every": 0}, "save_every must be at least 1"), ({"seed": -1}, "seed must be at least 0")],
)
def test_options_out_of_range_are_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        fit(*task("plain"), tmp_path / "run", fabric=cpu(), **options)


def test_evaluation_in_batches_of_size_0_is_refused():
    predictor, examples = rounding(3)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        evaluate(predictor, examples, batch_size=0)
