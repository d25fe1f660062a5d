from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from command_line import Run, cells, flags_of, process, runner
from PIL import Image

from torchmultiset._install import pip_install
from torchmultiset.cli import app, main
from torchmultiset.cli import train as train_command
from torchmultiset.data.digits import load_digits
from torchmultiset.data.load import load_data
from torchmultiset.data.mnist_multi import MnistMulti, build
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.model.conformal import Conformal
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.config import DataConfig, RunConfig, to_dict
from torchmultiset.pipeline.finish import Result
from torchmultiset.pipeline.presets import PRESETS
from torchmultiset.pipeline.record import read_record
from torchmultiset.training.config import OptimConfig

pytestmark = pytest.mark.slow

TINY = MnistMulti(
    sizes=(1, 2), digit_px=(12, 14), canvas=28, clutter=1, classes=(0, 1), train=48, validation=16, test=20
)
TOWER = ["--channels", "6", "6", "--hidden", "8", "--batch-size", "16"]
SMALL = [*TOWER, "--epochs", "1"]


@pytest.fixture
def run(capsys, monkeypatch) -> Run:
    return runner(capsys, monkeypatch)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a data set and a run on it."""
    folder = tmp_path_factory.mktemp("place")
    build(folder / "digits", TINY, load_digits("bundled"))
    assert main(["train", "--data", str(folder / "digits"), "--out", str(folder / "run"), *SMALL]) == 0
    return folder


@pytest.fixture
def cwd(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def resolved(run, monkeypatch):
    """Return the settings and the folder that a command would train with; no data set is built."""
    monkeypatch.setattr(train_command, "build_missing", lambda *_, **__: None)

    def resolve(*tokens):
        calls = []

        def instead(config, folder, **_):
            calls.append((to_dict(config), str(folder)))
            return Result({}, None)

        monkeypatch.setattr(train_command, "run", instead)
        code, _, err = run("train", *tokens)
        assert (code, err) == (0, "")
        return calls[0]

    return resolve


# Help and wrong usage


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", ["--preset", "tested once at the end", *PRESETS, "multiset train --preset demo", "--help-all"]),
        ("evaluate", ["MODEL DATA", "--split", "--json", "multiset evaluate runs/demo data/demo"]),
        ("predict", ["MODEL INPUTS", "--figure", "--json", "multiset predict runs/demo inputs.npy"]),
    ],
)
def test_every_command_has_help_with_examples_in_80_columns(run, command, words):
    code, lines, err = run(command, "--help")
    assert (code, err) == (0, "")
    text = " ".join(" ".join(lines).split())
    assert [word for word in words if word not in text] == []
    assert max(map(len, lines)) <= 80


def test_the_help_explains_every_field_of_the_configuration(run):
    _, lines, _ = run("train", "--help-all")
    flags = re.findall(r"^│ \*?\s*(--[\w-]+)", "\n".join(lines), flags=re.MULTILINE)
    for part in (DataConfig, ModelConfig, ObjectiveConfig, OptimConfig):
        assert {f"--{field.name.replace('_', '-')}" for field in fields(part)} <= {*flags}
    assert "--seed" in flags
    text = " ".join(" ".join(lines).split())
    expected = [f"{name}: {preset.about}"[:40] for name, preset in PRESETS.items()]
    assert [name for name in (*expected, "paper:", "fast:") if name not in text] == []


def test_the_short_help_has_only_the_most_common_options(run):
    _, lines, _ = run("train", "--help")
    flags = re.findall(r"^│ \*?\s*(--[\w-]+)", "\n".join(lines), flags=re.MULTILINE)
    assert flags[:4] == ["--out", "--minutes", "--resume", "--preset"]
    assert flags[4:] == ["--backbone", "--image-size", "--objective", "--epochs"]
    assert len(lines) < 75
    _, again, _ = run("train", "--help")  # help does not depend on earlier calls
    assert again == lines


def test_auto_is_the_default_of_settings_chosen_from_the_data(run):
    _, lines, _ = run("train", "--help-all")
    entries = re.split(r"^│ \*?\s*(?=--)", "\n".join(lines), flags=re.MULTILINE)[1:]
    help_texts = {entry.split()[0]: " ".join(entry.replace("│", " ").split()) for entry in entries}
    auto = {flag for flag, text in help_texts.items() if "[default: auto]" in text}
    assert {"--backbone", "--image-size", "--objective", "--epochs", "--batch-size"} <= auto
    assert not auto & {"--data", "--start-from", "--out", "--minutes"}
    assert all("auto: " in help_texts[flag] for flag in auto)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train", "no data set is specified"),
        ("train --preset coco-easy", "coco-easy needs --data, the file that `multiset data build coco-easy` writes"),
        ("train --preset dmo", 'Did you mean "demo"'),
        ("train --preset demo --recipe papier", 'Did you mean "paper"'),
        ("train --preset demo --epocs 3", "Did you mean --epochs"),
        ("train --preset demo --epochs many", '"many" is not a whole number'),
        ("train --preset demo --epochs 2.5", "--epochs must be a whole number"),
        ("train --preset demo --epochs -1", "epochs must be at least 1"),
        ("train --preset demo --lr -1", "lr must be more than 0"),
        ("train --preset demo --channels 0", "channels must be at least one number, each at least 1"),
        ("train --preset demo --objective mutli", 'Did you mean "multi"'),
        ("train --preset demo --objective dm-kl --stop end", "section 5.2 of the paper"),
        ("train --preset demo --devices 0", "Must be >= 1"),
        ("train --preset demo --seed -1", "Must be >= 0"),
        ("train --config unknown.toml", 'Unknown option: "[epocs]" from unknown.toml. Did you mean --epochs?'),
        ("train --config wrong.toml", 'Invalid value for [epochs] from wrong.toml: "many" is not a whole number'),
        ("train --config broken.toml", "broken.toml is not TOML"),
        (
            "train --config coached.toml",
            "coached.toml has coaching = 0.5, but this setting was removed: only its former default, 0.0",
        ),
        ("train --config mixed.toml", 'Invalid value "mixed" for [strategy]'),
        ("train --config config.txt", "must end in .toml"),
        ("evaluate run", "DATA requires an argument"),
        ("evaluate run data --split tset", 'Did you mean "test"'),
        ("predict run", "INPUTS requires an argument"),
        ("predict run x.png --figure x.jpg", 'must have extension "png"'),
        ("predict run x.png --number 0", "Must be >= 1"),
    ],
)
def test_usage_errors_are_explained_and_exit_with_2(run, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unknown.toml").write_text("data = 'x'\nepocs = 3\n")
    (tmp_path / "wrong.toml").write_text("data = 'x'\nepochs = 'many'\n")
    (tmp_path / "broken.toml").write_text("epochs = ")
    (tmp_path / "coached.toml").write_text("data = 'x'\ncoaching = 0.5\n")
    (tmp_path / "mixed.toml").write_text("data = 'x'\nstrategy = 'mixed'\n")
    (tmp_path / "config.txt").write_text("")
    before = sorted(tmp_path.rglob("*"))
    code, lines, err = run(*command.split())
    assert (code, lines) == (2, [])
    assert err.startswith("multiset: ")
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train --data nowhere", "there is no file or folder nowhere"),
        ("train --data digits --config nowhere.toml", "there is no config file nowhere.toml"),
        ("train --data digits --out run", "run contains a finished run: resume it (--resume)"),
        (
            "train --data digits --out run --resume",
            "the run in run differs: channels was 6 6 and is now 16 32",
        ),
        ("train --data digits --out new --stop fixed", "stop 'fixed' needs multisets of max_size = 2 labels"),
        ("train --data digits --out new --objective multi", "x must be images of at least 44x44 pixels"),
        ("train --data digits --out new --start-from mnist-mutli-4", "did you mean mnist-multi-4?"),
        (
            "train --data digits --out new --start-from mnist-multi-4 --channels 9 9",
            "has another encoder: the shapes of encoder.",
        ),
        ("train --data digits --out new --start-from run --channels 6", "has another encoder: the shapes of encoder."),
        ("evaluate nowhere digits", "there is no model nowhere"),
        ("evaluate digits digits", "there is no predictor in digits: predictor.json is missing; choose the folder"),
        ("evaluate run nowhere", "there is no file or folder nowhere"),
        ("evaluate run other.csv", "other.csv has classes that this model does not know: 7"),
        ("evaluate run three", "three has classes that this model does not know: 2"),
        ("evaluate run large", "this model reads inputs of shape 1 x 28 x 28, but those of large have 1 x 40 x 40"),
        ("predict run nowhere.png", "there is no file or folder nowhere.png"),
        ("predict run no*.png", "nothing matches no*.png"),
        ("predict run empty", "there are no images in empty"),
        ("predict run text.png", "1 image cannot be read"),
        ("predict run vector.npy", "this model reads inputs of shape 1 x 28 x 28, but those of vector.npy have 7"),
        ("predict run range.npy", "this model reads images as uint8, or as floats from 0 to 1"),
        ("predict run broken.npy", "broken.npy is damaged"),
        ("predict run empty.npy", "empty.npy contains no inputs"),
        ("predict run number.npy", "but those of number.npy have"),
        (
            "predict run digits --split test --figure no/such.png --number 1 nowhere",
            "there is no file or folder nowhere",
        ),
    ],
)
def test_errors_in_the_data_have_no_traceback_and_exit_with_1(run, cwd, command, message):
    if not (cwd / "empty").exists():
        (cwd / "empty").mkdir()
        (cwd / "other.csv").write_text("image,labels,split\nx.png,7,test\n")
        Image.new("L", (9, 9)).save(cwd / "x.png")
        build(cwd / "three", replace(TINY, classes=(0, 1, 2), train=1, validation=1, test=1), load_digits("bundled"))
        build(cwd / "large", replace(TINY, canvas=40, train=1, validation=1, test=1), load_digits("bundled"))
        (cwd / "text.png").write_text("no image")
        np.save(cwd / "vector.npy", np.zeros((3, 7), np.float32))
        np.save(cwd / "range.npy", np.full((1, 28, 28), 200.0))
        (cwd / "broken.npy").write_text("no array")
        np.save(cwd / "empty.npy", np.zeros((0, 1, 28, 28)))
        np.save(cwd / "number.npy", np.float32(3))
    code, lines, err = run(*command.split())
    assert (code, lines) == (1, [])
    assert message in err.splitlines()[0]
    assert "Traceback" not in err
    assert not (cwd / "new").exists()


# Precedence


def test_flags_override_files_which_override_recipes_which_override_presets(resolved, tmp_path):
    defaults = to_dict(RunConfig())
    plain, folder = resolved("--data", "x")
    assert plain == defaults | {"data": "x"}
    assert folder == "runs/x"

    preset, folder = resolved("--preset", "mnist-multi-10")
    assert folder == "runs/mnist-multi-10"
    changed = {name: value for name, value in preset.items() if value != defaults[name]}
    named = {"data": "data/mnist-multi-10", "backbone": "none", "image_size": 224}
    named |= {"objective": "multi"}
    assert changed == named | {"batch_size": 64, "lr": 6e-3, "epochs": 12}

    paper, _ = resolved("--preset", "mnist-multi-10", "--recipe", "paper")
    assert (paper["epochs"], paper["norm"], paper["lr"]) == (350, "none", 1e-3)

    file = tmp_path / "c.toml"
    file.write_text('epochs = 7\nnorm = "batch"\nrecipe = "paper"\nchannels = [3, 4]\n')
    filed, _ = resolved("--preset", "mnist-multi-10", "--config", file)
    assert (filed["epochs"], filed["norm"], filed["lr"], filed["channels"]) == (7, "batch", 1e-3, (3, 4))
    flagged, folder = resolved("--preset", "mnist-multi-10", "--config", file, "--epochs", 2, "--out", tmp_path / "o")
    assert flagged == filed | {"epochs": 2}
    assert folder == str(tmp_path / "o")


def test_a_one_shot_objective_leaves_out_the_policy_of_a_preset(resolved, tmp_path):
    assert resolved("--preset", "demo")[0]["policy"] == "transformer"
    assert resolved("--preset", "demo", "--objective", "counts")[0]["policy"] is None
    file = tmp_path / "c.toml"
    file.write_text('objective = "counts"\n')
    assert resolved("--preset", "demo", "--config", file)[0]["policy"] is None
    assert resolved("--preset", "demo", "--start-from", "mnist-multi-4-counts")[0]["policy"] is None


def test_auto_is_accepted_wherever_it_is_the_default(resolved, run, tmp_path):
    chosen = [name for name, value in to_dict(RunConfig()).items() if value is None]
    chosen = [name for name in chosen if name not in ("data", "start_from")]
    assert {"backbone", "channels", "classes", "count_head", "epochs", "fractions", "objective", "stop"} <= {*chosen}
    switches = ("size_potential", "size_head")  # which take no value
    flags = [token for name in chosen if name not in switches for token in (f"--{name.replace('_', '-')}", "auto")]
    plain, _ = resolved("--data", "x")
    assert resolved("--data", "x", *flags)[0] == plain
    # It overrides files and presets, as any other value of a flag does.
    file = tmp_path / "c.toml"
    file.write_text('epochs = 7\nchannels = [3, 4]\nobjective = "counts"\n')
    cwd = ("--preset", "mnist-multi-10", "--config", file)
    values = resolved(*cwd, "--epochs", "auto", "--channels=auto")[0]
    assert (values["epochs"], values["channels"], values["objective"]) == (None, None, "counts")
    assert resolved(*cwd)[0] == values | {"epochs": 7, "channels": (3, 4)}
    file.write_text("".join(f'{name} = "auto"\n' for name in chosen))
    assert resolved("--data", "x", "--config", file)[0] == plain
    for flag in ("--clip", "--seed"):
        code, _, err = run("train", "pets.csv", flag, "auto")
        assert (code, "auto" in err) == (2, True)
    code, _, err = run("train", "pets.csv", "--fractions", 0.5, 0.5)
    assert (code, "fractions must be three numbers" in err) == (2, True)


def test_the_architecture_defaults_to_that_of_the_model_to_start_from(resolved):
    def architecture(*flags, model="mnist-multi-4"):
        values, _ = resolved("--data", "x", "--start-from", model, *flags)
        return [values[name] for name in ("objective", "policy", "channels", "layers")]

    tower, wider = (10, 10, 32), (16, 32, 48)
    assert architecture() == ["multi", "conv-lstm", tower, 2]
    assert architecture("--layers", 1) == ["multi", "conv-lstm", tower, 1]
    assert architecture("--objective", "seq") == ["seq", "conv-lstm", tower, 2]
    assert architecture("--objective", "counts") == ["counts", None, tower, 2]
    assert architecture("--objective", "marginal") == ["marginal", None, tower, 2]
    counting = "mnist-multi-4-counts"
    assert architecture(model=counting) == ["counts", None, wider, 2]
    assert architecture("--objective", "multi", model=counting) == ["multi", None, wider, 2]
    assert architecture("--policy", "transformer", model=counting) == [None, "transformer", wider, 2]
    values, _ = resolved("--data", "x", "--start-from", "mnist-multi-4")
    assert (values["image_size"], values["grey"]) == (100, True)  # the inputs of the model
    assert (values["max_size"], values["stop"]) == (None, None)  # chosen from the data


def test_a_config_file_may_set_a_preset(resolved, tmp_path):
    (tmp_path / "c.toml").write_text('preset = "demo"\nlr = 1e-4\nseed = 5\nunits = [3]\n')
    values = resolved("--config", tmp_path / "c.toml")[0]
    assert (values["lr"], values["data"], values["seed"], values["units"]) == (1e-4, "data/demo", 5, (3,))


@pytest.mark.parametrize("name", ["mnist-multi-4", "mnist-multi-1-4-conv-lstm"])
def test_configs_of_older_runs_can_be_read(resolved, name):
    saved = Path(__file__).parents[2] / "results" / name / "config.toml"
    values, _ = resolved("--config", saved)
    values_of_file = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in tomllib.loads(saved.read_text()).items()
    }
    removed = {"coaching": 0.0, "fresh": False, "distort": False, "elastic": False}
    assert all(values_of_file.pop(key, value) == value for key, value in removed.items())
    for key in ("mnist", "mnist_multi"):
        values_of_file.pop(key)
    unset = ("auto", 0, "")  # in files of older runs
    assert {key: value for key, value in values_of_file.items() if values[key] != value and value not in unset} == {}


def test_the_removed_setting_fresh_is_refused_with_the_option_that_replaces_it(run):
    saved = Path(__file__).parents[2] / "results" / "mnist-multi-10" / "config.toml"
    code, lines, err = run("train", "--config", saved)
    assert (code, lines) == (2, [])
    message = " ".join(err.split())
    expected = "fresh = true, but this setting was removed: `multiset data build mnist-multi` has --fresh instead"
    assert expected in message


OTHERS = {
    "data": "d", "backbone": "resnet34", "image_size": 32, "grey": True, "encoder": "mlp",
    "channels": (3,), "norm": "none",
    "units": (5, 6),
    "policy": "lstm", "hidden": 7, "layers": 3, "policy_norm": "none", "precision": "16-mixed",
    "stop": "end", "max_size": 9, "objective": "seq", "strategy": "oracle",
    "rank": "area",
    "divergence": "tv", "entropy_weight": 0.5, "value_weight": 0.25, "size_weight": 2.0, "stop_weight": 3.0,
    "epochs": 11, "batch_size": 12, "lr": 0.5, "schedule": "constant", "clip": 4.0, "seed": 6, "count_head": "table",
    "nothing_weight": 0.3, "marginal_bound": 5, "augment": "shift", "start_from": "mnist-multi-4",
    "classes": ("a", "b"), "fractions": (0.5, 0.25, 0.25), "split_seed": 4, "skip_unreadable": True,
    "conformal": True,
    "strides": (8, 16), "finetune": "last", "views": 2, "holdout": "1/3", "pool": "max", "dropout": 0.4,
    "size_potential": True, "size_head": True, "joint_states": 6, "min_size": 1,
    "marginal_orders": 3, "weight_decay": 0.1, "ema": 0.9, "until": 0.5,
    "select": "last", "patience": 5, "mosaic": 0.2, "attention": 2, "label_smoothing": 0.1, "decoding": "search",
}  # fmt: skip


def test_every_setting_is_a_flag(resolved):
    defaults = to_dict(RunConfig())
    assert OTHERS.keys() == defaults.keys()
    assert all(OTHERS[name] != value for name, value in defaults.items())
    assert resolved(*flags_of(OTHERS))[0] == OTHERS


# Train


def test_a_run_prints_its_scores_and_the_next_commands(run, cwd, tmp_path, figures_of_runs):
    out = tmp_path / "my run"
    code, lines, err = run("train", "--data", "digits", "--out", out, *SMALL)
    assert code == 0
    assert re.fullmatch(r"epoch 1/1  loss \d+\.\d+  validation EM [01]\.\d+  F1 [01]\.\d+  .*\n", err)
    assert max(len(line) for line in lines if "my run" not in line) <= 80
    text = " ".join(" ".join(lines).split())
    assert (
        "Unlike the paper (--recipe paper): objective counts (multi), norm batch (none), policy_norm layer (none),"
        " schedule one-cycle (constant), lr 0.003 (0.001)" in text
    )
    assert "layers 1 (2), hidden 8 (32), epochs 1 (200), batch_size 16 (64)" in text
    em = read_record(out)["test"]["overall"]["exact_match"]
    (row,) = (line for line in lines if line.startswith("this model"))
    assert row.split()[2] == f"{em:.3f}"
    assert any(line.startswith("majority baseline") for line in lines)
    assert {line.split()[0] for line in lines if line.startswith("  ") and "my run" not in line} >= {
        "model", "curve.png", "predictions.png", "config.toml", "run.json",
    }  # fmt: skip
    tries = [line.strip() for line in lines if line.startswith("  multiset predict")]
    (predict,) = tries
    assert (
        predict.removesuffix(" --figure predicted.png") == f"multiset predict '{out}' digits --split test --number 12"
    )
    assert run("evaluate", out, "digits", "--split", "validation")[0] == 0

    code, lines, _ = run("train", "--data", "digits", "--out", out, *SMALL, "--resume")
    assert code == 0
    assert lines[0] == f"The run in {out} is already finished."


def test_without_matplotlib_a_line_explains_why_figures_are_missing(run, cwd, monkeypatch):
    monkeypatch.setattr("torchmultiset.pipeline.finish.find_spec", lambda _: None)
    code, lines, _ = run("train", "--data", "digits", "--out", "plain", *SMALL)
    assert code == 0
    assert f"  no figures, which need matplotlib: {pip_install('report')}" in lines
    assert not any("--figure" in line or ".png" in line for line in lines)


def test_evaluation_warns_if_the_model_was_trained_on_the_examples(run, cwd):
    assert run("train", "--data", "digits", "--out", "both", *SMALL, "--holdout", "none")[0] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = run("evaluate", "both", "digits", "--split", "validation", "--no-calibration")
        assert (code, err.count("\n")) == (0, 1)
        assert err.startswith("multiset: the model was trained on the validation examples of digits as well: use --")
        for model, split in (("both", "test"), ("run", "validation")):
            assert run("evaluate", model, "digits", "--split", split, "--no-calibration")[2] == ""
    assert "which is part of the training data" in (cwd / "both" / "model" / "README.md").read_text()
    assert "which is part of the training data" not in (cwd / "run" / "model" / "README.md").read_text()


def test_training_with_the_saved_config_reproduces_the_model(run, cwd, tmp_path):
    saved = tomllib.loads((cwd / "run" / "config.toml").read_text())
    assert (saved["channels"], saved["stop"], saved["max_size"]) == ([6, 6], "policy", 2)
    # The path of the data is saved as it was given.
    assert saved["data"] == "digits"
    assert run("train", "--config", "run/config.toml", "--out", tmp_path / "again")[0] == 0
    one, other = (
        [path.read_bytes() for path in (folder / "model").glob("weights-*.safetensors")]
        for folder in (cwd / "run", tmp_path / "again")
    )
    assert len(one) == 1
    assert one == other


def test_ctrl_c_stops_with_a_hint_on_how_to_resume(cwd, tmp_path):
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "torchmultiset",
        "train",
        "--data",
        "digits",
        "--out",
        out,
        *TOWER,
        "--epochs",
        "4000",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Tests that run in the background ignore Ctrl-C, and so would this process.
    with subprocess.Popen(
        list(map(str, command)), **pipes, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    ) as started:
        deadline = time.monotonic() + 120
        while not (out / "epochs.jsonl").exists() and started.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert err.splitlines()[-1] == (
        f"multiset: stopped: start the same command with --resume to resume the run in {out}"
    )
    assert "Traceback" not in err
    assert (out / "checkpoint.pt").exists()
    assert not read_record(out)["finished"]


def test_a_loss_that_is_not_finite_exits_with_1_and_a_message(run, cwd, tmp_path):
    code, _, err = run("train", "--data", "digits", "--out", tmp_path / "run", *TOWER, "--lr", "1e30", "--clip", "0",
                       "--norm", "none", "--epochs", "20", "--schedule", "constant")  # fmt: skip
    assert code == 1
    assert re.match(r"multiset: the loss.* became (nan|inf|-inf)", err.splitlines()[-1])
    assert (tmp_path / "run" / "bad-batch.pt").exists()


def test_two_processes_learn_the_same_weights_as_one(run, cwd, tmp_path):
    flags = ["--data", "digits", *TOWER[:-1], "64", "--norm", "none", "--precision", "32-true", "--epochs", "4"]
    two = process("train", *flags, "--out", tmp_path / "two", OMP_NUM_THREADS="2")
    assert two.returncode == 0, two.stderr
    assert "distributed" not in two.stderr  # no rendezvous messages
    assert sum(line.startswith("this model") for line in two.stdout.splitlines()) == 1
    assert run("train", *flags, "--out", tmp_path / "one")[0] == 0
    assert [read_record(tmp_path / name)["processes"] for name in ("one", "two")] == [1, 2]
    weights = [Predictor.load(tmp_path / name / "model").state_dict() for name in ("one", "two")]
    for name, value in weights[0].items():
        assert np.allclose(value, weights[1][name], atol=1e-5), name


@pytest.mark.parametrize(("flags", "devices"), [([], 1), (["--devices", "2"], 2)])
def test_devices_sets_the_number_of_processes(run, monkeypatch, flags, devices):
    passed = []
    monkeypatch.setattr(train_command, "run", lambda *_, **more: passed.append(more) or Result({}, None))
    assert run("train", "--data", "x", *flags)[0] == 0
    assert [more["devices"] for more in passed] == [devices]


# Evaluate


def test_evaluate_reports_the_scores_of_training(run, cwd):
    code, lines, err = run("evaluate", "run", "digits", "--json")
    assert (code, err) == (0, "")
    result = json.loads("\n".join(lines))
    assert result.pop("calibration")["examples"] == 20
    assert result.pop("baselines") == {}  # without training data there are none
    assert result == {name: value for name, value in read_record(cwd / "run")["test"].items() if name != "baselines"}
    _, shown, _ = run("evaluate", "run/model", "digits")
    assert max(map(len, shown)) <= 80
    assert cells(shown, "0")[:1] == [str(result["classes"]["0"]["labels"])]
    _, lines, _ = run("evaluate", "run", "digits", "--split", "validation", "--json")
    assert json.loads("\n".join(lines))["overall"]["examples"] == 16


def test_a_model_trained_with_a_removed_setting_can_be_used(run, cwd, tmp_path):
    shutil.copytree("run/model", tmp_path / "old")
    path = tmp_path / "old" / "predictor.json"
    described = json.loads(path.read_text())
    del described["description_sha256"]
    described["record"]["config"] |= {"strategy": "mixed", "coaching": 0.5}
    path.write_text(json.dumps(described))
    for command in ("evaluate", "predict"):
        now, before = (run(command, model, "digits", "--json") for model in (tmp_path / "old", "run"))
        assert now == before
        assert now[0] == 0


def test_evaluate_matches_classes_by_name(run, cwd, tmp_path):
    """The same test images with the classes in another order, as a data set and as a list of files."""
    build(tmp_path / "swapped", replace(TINY, classes=(1, 0)), load_digits("bundled"))
    splits = load_data(tmp_path / "swapped")
    assert splits["test"].classes == ("1", "0")
    _, lines, _ = run("evaluate", "run", tmp_path / "swapped", "--json")
    from_store = json.loads("\n".join(lines))
    rows = ["image,labels,split"]
    for i, counts in enumerate(splits["test"].counts.tolist()):
        Image.fromarray(splits["test"].inputs[np.array([i])][0, 0]).save(tmp_path / f"{i}.png")
        rows.append(f"{i}.png,1:{counts[0]};0:{counts[1]},test".replace("1:0;", "").replace(";0:0", ""))
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    _, lines, _ = run("evaluate", "run", tmp_path / "labels.csv", "--json")
    assert json.loads("\n".join(lines)) == from_store
    assert from_store["classes"]["1"]["labels"] == int(splits["test"].counts[:, 0].sum())


# Predict


@pytest.fixture
def pictures(cwd, tmp_path):
    """Three test images as files of several formats, and their predictions."""
    images = load_data(cwd / "digits")["test"].inputs[np.arange(3)]
    Image.fromarray(images[0, 0]).save(tmp_path / "a.png")
    (tmp_path / "deep").mkdir()
    Image.fromarray(images[1, 0]).convert("RGB").save(tmp_path / "deep" / "b.bmp")
    np.save(tmp_path / "all.npy", images)
    np.save(tmp_path / "one.npy", images[2, 0].astype(np.float64) / 255)
    (tmp_path / "notes.txt").write_text("not an image")
    model = Predictor.load(cwd / "run" / "model")
    import torch

    return tmp_path, model.explain(torch.from_numpy(images)), model.classes


def predictions(lines) -> list[dict]:
    return [json.loads(line) for line in lines]


def test_inputs_may_be_images_folders_patterns_and_arrays(run, pictures):
    folder, expected, classes = pictures
    labels = [{name: n for name, n in zip(classes, row, strict=True) if n} for row in expected.counts.tolist()]
    code, lines, err = run("predict", "run", folder / "all.npy", "--json")
    assert (code, err) == (0, "")
    rows = predictions(lines)
    assert [row["labels"] for row in rows] == labels
    # The sum over all orders of the labels is at least the probability of the emitted order.
    assert all(row["confidence"] > sure - 1e-5 for row, sure in zip(rows, expected.confidence.tolist(), strict=True))
    assert [row["sequence"] for row in rows] == [None] * 3  # a count head emits no sequence
    assert [row["input"] for row in rows] == [f"{folder / 'all.npy'} {i}" for i in range(3)]

    a, b = str(folder / "a.png"), str(folder / "deep" / "b.bmp")
    for inputs in ([folder], [folder / "*.png", folder / "deep"], [a, b]):
        rows = predictions(run("predict", "run", *inputs, "--json")[1])
        assert [(row["input"], row["labels"]) for row in rows] == [(a, labels[0]), (b, labels[1])]
    (row,) = predictions(run("predict", "run", folder / "one.npy", "--json")[1])
    assert (row["input"], row["labels"]) == (str(folder / "one.npy"), labels[2])
    assert run("predict", "run", folder / "one.npy")[1][0].split() == ["input", "prediction", "confidence"]
    assert run("predict", "run", "digits")[1][0].split() == ["input", "prediction", "confidence", "truth"]


def test_predictions_for_data_sets_include_the_truth(run, cwd):
    rows = predictions(run("predict", "run", "digits", "--split", "test", "--json")[1])
    assert len(rows) == 20
    assert [row["right"] for row in rows] == [row["labels"] == row["truth"] for row in rows]
    em = read_record(cwd / "run")["test"]["overall"]["exact_match"]
    assert sum(row["right"] for row in rows) / 20 == pytest.approx(em)
    assert len(run("predict", "run", "digits", "--json")[1]) == 48 + 16 + 20
    assert len(run("predict", "run", "digits", "--json", "--number", 50)[1]) == 50


def test_all_lines_of_a_list_without_splits_are_predicted(run, pictures):
    folder, _, _ = pictures
    (folder / "own.csv").write_text("image,labels\na.png,0;1\n")
    (row,) = predictions(run("predict", "run", folder / "own.csv", "--json")[1])
    assert row["truth"] == {"0": 1, "1": 1}


def test_predict_prints_a_table_and_draws_a_figure(run, cwd, tmp_path):
    figure = tmp_path / "deep" / "p.png"
    code, lines, err = run("predict", "run", "digits", "--split", "test", "--number", 6, "--figure", figure)
    assert (code, err) == (0, "")
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
    assert sum(line.startswith("digits test") for line in lines) == 6
    assert lines[-1] == f"{figure} shows 6 of them."
    with Image.open(figure) as picture:
        wide, high = picture.size
    assert wide > high > 300  # two rows of up to four panels


def test_a_one_step_model_has_no_confidence(run, cwd, tmp_path):
    out = tmp_path / "one-step"
    assert run("train", "--data", "digits", "--objective", "one-step", "--out", out, *SMALL)[0] == 0
    rows = predictions(run("predict", out, "digits", "--split", "test", "--json")[1])
    assert {row["confidence"] for row in rows} == {None}
    assert run("predict", out, "digits", "--number", 3, "--figure", tmp_path / "p.png")[0] == 0


def test_vectors_are_predicted_and_drawn_as_bars(run, tmp_path):
    rows = [f"{i},{i % 3},{'xy'[i % 2]},{['train', 'validation', 'test'][i % 3]}" for i in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,labels,split", *rows]))
    assert run("train", "--data", tmp_path / "t.csv", "--out", tmp_path / "run", *SMALL)[0] == 0
    for dtype in (np.float64, np.float16, np.int64, np.uint8):
        np.save(tmp_path / "v.npy", np.zeros(2, dtype))
        assert len(predictions(run("predict", tmp_path / "run", tmp_path / "v.npy", "--json")[1])) == 1
    assert run("predict", tmp_path / "run", tmp_path / "v.npy", "--figure", tmp_path / "p.png")[0] == 0
    assert (tmp_path / "p.png").exists()
    Image.new("L", (9, 9)).save(tmp_path / "x.png")
    code, _, err = run("predict", tmp_path / "run", tmp_path / "x.png")
    assert code == 1
    assert "this model reads tables with the columns a, b, but" in err


def test_a_run_that_is_not_finished_has_no_model(run, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    code, _, err = run("predict", tmp_path, Path(__file__))
    assert code == 1
    assert "has no model yet, because it is not finished" in err


# Documentation


def test_the_commands_of_the_documentation_can_be_parsed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('objective = "seq"\nrank = "area"\nchannels = [16, 16, 32]\n')
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    commands = [shlex.split(line, comments=True)[1:] for block in blocks for line in block.splitlines()]
    assert len(commands) >= 8
    for command in commands:
        app.parse_args(command, exit_on_error=False, print_error=False)
    (file,) = re.findall(r"^```toml\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    assert file == (tmp_path / "mine.toml").read_text()


@pytest.fixture
def calibrated(place, tmp_path):
    """The run's model with a calibration on the validation examples."""
    predictor = Predictor.load(place / "run" / "model")
    Conformal.calibrate(predictor, load_data(place / "digits")["validation"]).store(predictor)
    predictor.save(tmp_path / "calibrated")
    return tmp_path / "calibrated"


def test_predict_with_coverage_lists_sets_and_intervals(run, cwd, calibrated):
    code, lines, err = run("predict", calibrated, "digits", "--split", "test", "--coverage", 0.8, "--json")
    assert (code, err) == (0, "")
    rows = predictions(lines)
    predictor, test = Predictor.load(calibrated), load_data(cwd / "digits")["test"]
    batch = test.batch(range(len(test)))
    sets = Conformal.of(predictor).predict(predictor, batch.x, 0.8)
    for i, row in enumerate(rows):
        inside = sets.counts[i, sets.inside[i]].tolist()
        members = [{name: n for name, n in zip(predictor.classes, counts, strict=True) if n} for counts in inside]
        assert [one["labels"] for one in row["set"]] == members
        assert row["labels"] == members[0]
        assert row["in_set"] == (row["truth"] in members)
        for name, (low, high) in row["intervals"].items():
            counts = [one.get(name, 0) for one in members]
            assert (low, high) == (min(counts), max(counts))
    size = sum(len(row["set"]) for row in rows) / len(rows)
    code, lines, _ = run("predict", calibrated, "digits", "--split", "test", "--coverage", 0.8)
    text = " ".join(" ".join(lines).split())
    assert "Each set contains the truth with probability 0.8 (16 calibration examples)." in text
    assert max(map(len, lines)) <= 80
    assert f"Mean set size: {size:.2f}. In the sets: {sum(row['in_set'] for row in rows)} of 20." in text
    assert any("counts: 0 " in line for line in lines)


def test_coverage_is_refused_with_a_reason(run, cwd, calibrated, tmp_path):
    for tokens, message in [
        (["predict", "run", "digits", "--coverage", 0.9], "needs a model with a calibration, and this one has none"),
        (["predict", calibrated, "digits", "--coverage", 0.95], "requires at least 19 calibration examples"),
        (["predict", calibrated, "digits", "--coverage", 0.9, "--best", 2], "--best and --coverage cannot be combined"),
        (
            ["evaluate", "run", "digits", "--coverage", 0.95],
            "requires at least 19 calibration examples, but there are 10",
        ),
    ]:
        code, _, err = run(*tokens)
        assert code == 1
        assert message in err
    assert run("predict", calibrated, "digits", "--coverage", 1)[0] == 2


def test_evaluate_reports_coverage_and_size_of_the_sets(run, cwd, calibrated):
    flags = ["--coverage", 0.8, "--no-calibration"]
    result = json.loads("\n".join(run("evaluate", calibrated, "digits", *flags, "--json")[1]))["conformal"]
    assert result["stored"]["examples"] == 16
    assert result["resampled"]["resamplings"] == 200
    lines = run("evaluate", calibrated, "digits", *flags)[1]
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("200 resamplings") for line in lines)
    result = json.loads("\n".join(run("evaluate", "run", "digits", *flags, "--json")[1]))["conformal"]
    assert result["stored"] is None
