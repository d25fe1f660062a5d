from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest
from command_line import Run, runner
from page_models import predictor, save

from torchmultiset._install import pip_install
from torchmultiset.encoders import MLPEncoder
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.shipped import NAMES
from torchmultiset.page import server
from torchmultiset.policies import LSTMPolicy

pytestmark = pytest.mark.slow


@pytest.fixture
def run(capsys, monkeypatch, tmp_path) -> Run:
    """Run commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return runner(capsys, monkeypatch)


@pytest.fixture
def served(monkeypatch):
    """Replace the server; returns the list of its calls: names of models, address, port."""
    calls = []
    monkeypatch.setattr(
        server, "serve", lambda models, *where, ready: calls.append(([model.name for model in models], *where))
    )
    return calls


def test_help_has_an_example_in_80_columns(run):
    code, lines, err = run("demo", "--help")
    assert (code, err) == (0, "")
    text = " ".join(" ".join(line.strip("│") for line in lines).split())
    assert "finished runs" in text
    for word in ("MODELS", "--host", "[default: 127.0.0.1]", "--port", "[default: 8000]", "multiset demo runs/demo"):
        assert word in text
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], ([*NAMES, "runs/a", "runs/b"], "127.0.0.1", 8000)),
        (["runs/b", "c", "runs/b", "--host", "0.0.0.0", "--port", "0"], (["runs/b", "c"], "0.0.0.0", 0)),
    ],
)
def test_the_command_sets_the_models_and_the_address_of_the_page(run, served, tmp_path, tokens, expected):
    for folder in ("runs/b/model", "runs/a/model", "c"):
        save(predictor("fixed"), tmp_path / folder)
    code, lines, err = run("demo", *tokens)
    assert (code, served, err) == (0, [expected], "")
    assert any("reachable from the network without authentication" in line for line in lines) == ("--host" in tokens)


@pytest.mark.parametrize("is_file", [False, True])
def test_without_runs_only_the_included_models_are_served(run, served, tmp_path, is_file):
    if is_file:
        (tmp_path / "runs").touch()
    assert run("demo") == (0, [], "")
    assert served == [([*NAMES], "127.0.0.1", 8000)]


def save_damaged(folder, before, after):
    save(predictor("fixed"), folder)
    path = folder / "predictor.json"
    described = json.loads(path.read_text())
    del described["description_sha256"]
    path.write_text(json.dumps(described).replace(before, after))


def test_runs_that_cannot_be_shown_are_skipped_with_a_reason(run, served, tmp_path):
    runs = tmp_path / "runs"
    save(predictor("fixed"), runs / "good" / "model")
    vectors = Predictor(MLPEncoder(7, (8,)), LSTMPolicy(2, 8, hidden=4), ("a", "b"), max_size=2)
    save(vectors, runs / "vectors" / "model", (7,))
    predictor("fixed").save(runs / "silent" / "model")
    (runs / "begun").mkdir()
    (runs / "begun" / "run.json").write_text("{}")
    (runs / "empty").mkdir()
    (runs / "notes.txt").touch()
    save_damaged(runs / "other" / "model", '"stop": "fixed"', '"stop": "policy"')  # an error of several lines
    save_damaged(runs / "strange" / "model", "[4, 8]", "[4, -8]")  # a RuntimeError
    code, lines, err = run("demo")
    assert (code, lines, served) == (0, [], [([*NAMES, "runs/good"], "127.0.0.1", 8000)])
    expected = {
        "begun": "has no model yet, because it is not finished",
        "empty": "predictor.json is missing",
        "other": "do not fit this encoder and policy",
        "silent": "the model's record does not describe its inputs",
        "strange": "negative dimension",
        "vectors": "it reads vectors of 7 numbers, not images",
    }
    for line, (name, reason) in zip(err.splitlines(), expected.items(), strict=True):
        assert line.startswith(f"multiset: skipped runs/{name}: ")
        assert reason in line


def test_a_given_run_without_a_model_is_refused(run, served, tmp_path):
    (tmp_path / "runs" / "begun").mkdir(parents=True)
    (tmp_path / "runs" / "begun" / "run.json").write_text("{}")
    code, lines, err = run("demo", "runs/begun")
    assert (code, lines, served) == (1, [], [])
    assert err.startswith("multiset: the run in runs/begun has no model yet")


def test_a_port_in_use_is_reported(run, tmp_path):
    model = save(predictor("fixed"), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines, err = run("demo", model, "--port", port)
    assert (code, lines) == (1, [])
    assert err.startswith(f"multiset: cannot listen on 127.0.0.1 port {port}: ")
    assert "--port" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_an_invalid_port_is_refused(run, port):
    code, _, err = run("demo", "--port", port)
    assert code == 2
    assert "--port" in err


def test_without_fastapi_the_error_has_the_install_command():
    program = "import sys; sys.modules['fastapi'] = None; from torchmultiset.cli import main; sys.exit(main(['demo']))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    expected = f"multiset: The page and the HTTP API need FastAPI, which is not installed: {pip_install('page')}\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", expected)


def test_the_browser_is_opened_if_there_is_a_display(run, monkeypatch, tmp_path):
    save(predictor("fixed"), tmp_path / "c")
    opened = []
    monkeypatch.setattr("torchmultiset.cli.demo.sys.platform", "linux")
    monkeypatch.setattr("torchmultiset.cli.demo.webbrowser.open", opened.append)
    monkeypatch.setattr(server, "serve", lambda models, *where, ready: ready("http://127.0.0.1:1"))
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    run("demo", "c")
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    run("demo", "c", "--no-open")
    assert opened == []
    assert run("demo", "c")[1] == ["The page is at http://127.0.0.1:1. Press Ctrl-C to stop."]
    assert opened == ["http://127.0.0.1:1"]


def test_serve_starts_the_api_without_the_page(run, monkeypatch, tmp_path):
    save(predictor("fixed"), tmp_path / "c")
    calls = []

    def serve(models, *where, ready, rate, page):
        calls.append(([model.name for model in models], *where, rate.number, page))
        ready("http://127.0.0.1:1")

    monkeypatch.setattr(server, "serve", serve)
    assert run("serve", "c", "--port", "0")[1] == ["The API is at http://127.0.0.1:1/api. Press Ctrl-C to stop."]
    run("serve", "c", "--per-minute", "500")
    assert calls == [(["c"], "127.0.0.1", 0, 60, False), (["c"], "127.0.0.1", 8000, 500, False)]
    code, _, err = run("serve")
    assert (code, "MODELS" in err) == (2, True)
