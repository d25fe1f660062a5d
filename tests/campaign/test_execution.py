"""Nothing that a user can receive from another is unpickled or evaluated: no such call is in the project."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from campaign.execution import check_execution, find_execution
from torchmultiset.training.checkpoint import read_checkpoint

ROOT = Path(__file__).parents[2]


def test_no_file_of_the_project_executes_what_it_reads():
    told = check_execution(ROOT)
    assert told["failures"] == []
    assert told["files"] > 150


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
def test_each_way_to_execute_is_found(line):
    assert len(list(find_execution(f"def read(path):\n    {line}"))) == 1


@pytest.mark.parametrize(
    "line", ["model.eval()", "torch.load(path, weights_only=True)", "np.load(file, allow_pickle=False)"]
)
def test_what_executes_nothing_is_allowed(line):
    assert list(find_execution(line)) == []


class Trap:
    """When it is unpickled, it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_in_a_checkpoint_is_refused_and_never_run(tmp_path):
    torch.save({"progress": Trap(tmp_path / "sprung")}, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"checkpoint\.pt is damaged"):
        read_checkpoint(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "sprung").exists()
