"""The project has no call that unpickles or evaluates a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from campaign.execution import check_execution, find_execution
from torchmultiset.training.checkpoint import read_checkpoint

ROOT = Path(__file__).parents[2]


def test_no_file_of_the_project_executes_its_input():
    result = check_execution(ROOT)
    assert result["failures"] == []
    assert result["files"] > 150


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "eval(text)",
        "exec(text)",
        "__import__(name)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "subprocess.run(command, shell=True)",
        "os.system(command)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_calls_that_execute_code_are_found(line):
    assert len(list(find_execution(f"def read(path):\n    {line}"))) == 1


@pytest.mark.parametrize(
    "line", ["model.eval()", "torch.load(path, weights_only=True)", "np.load(file, allow_pickle=False)"]
)
def test_calls_that_execute_nothing_are_allowed(line):
    assert list(find_execution(line)) == []


class Trap:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_in_a_checkpoint_is_refused_and_not_executed(tmp_path):
    torch.save({"progress": Trap(tmp_path / "sprung")}, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"checkpoint\.pt is damaged"):
        read_checkpoint(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "sprung").exists()
