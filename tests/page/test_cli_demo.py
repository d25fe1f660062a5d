from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from command_line import Run, runner
from page_models import predictor, save

from torchmultiset.models import NAMES
from torchmultiset.page import server


@pytest.fixture
def run(capsys, monkeypatch) -> Run:
    return runner(capsys, monkeypatch)


def test_help_in_80_columns(run):
    code, lines, err = run("demo", "--help")
    assert (code, err) == (0, "")
    text = " ".join(" ".join(lines).split())
    for named in ("MODELS", "--host", "[default: 127.0.0.1]", "--port", "[default: 8000]", "multiset demo runs/demo"):
        assert named in text
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("tokens", "served"),
    [
        ([], (NAMES, "127.0.0.1", 8000)),
        (["runs/a", "b", "--host", "0.0.0.0", "--port", "0"], (("runs/a", "b"), "0.0.0.0", 0)),
    ],
)
def test_what_is_served_where(run, monkeypatch, tokens, served):
    calls = []
    monkeypatch.setattr(server, "serve", lambda *asked, ready: calls.append(asked))
    code, lines, err = run("demo", *tokens)
    assert (code, calls, err) == (0, [served], "")
    assert any("Everyone who can reach 0.0.0.0" in line for line in lines) == ("--host" in tokens)


def test_a_port_that_is_taken(run, tmp_path):
    model = save(predictor("fixed"), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines, err = run("demo", model, "--port", port)
    assert (code, lines) == (1, [])
    assert err.startswith(f"multiset: cannot listen at 127.0.0.1 port {port}: ")
    assert "--port" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none(run, port):
    code, _, err = run("demo", "--port", port)
    assert code == 2
    assert "--port" in err


def test_without_the_extra():
    program = "import sys; sys.modules['fastapi'] = None; from torchmultiset.cli import main; sys.exit(main(['demo']))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    told = 'multiset: The page needs FastAPI, which is not installed: pip install "torchmultiset[page]"\n'
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", told)
