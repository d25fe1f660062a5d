"""List the functions that `multiset train` passes before its first batch, in the order of their first calls.

    python tools/path_of_a_run.py --objective counts
    python tools/path_of_a_run.py

The arguments are those of `multiset train`, without data: it is trained on thirty small images, which are made here.
Without `--objective`, candidates are compared; the first one is then trained in this process instead of another one.

Each function of the package counts once, from the start of the command to the first call of an objective's loss.
Comprehensions and lambdas belong to the function around them. Functions that only run while a module is imported are
counted apart.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

import numpy as np
from PIL import Image

from torchmultiset.cli import main as multiset
from torchmultiset.pipeline import sweep, workers

PACKAGE = Path(workers.__file__).parents[1]


class FirstBatchError(BaseException):
    """Ends the command at its first batch."""


class Trace:
    """Profile function that collects the functions of the package."""

    def __init__(self) -> None:
        # Dictionaries keep the order of the first calls.
        self.called: dict[CodeType, None] = {}
        self.imported: dict[CodeType, None] = {}
        self.imports = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call; see `sys.setprofile`."""
        code = frame.f_code
        if code.co_name == "<module>":
            self.imports += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<"):
            if code.co_name == "loss" and "objectives" in code.co_filename:
                raise FirstBatchError
            (self.imported if self.imports else self.called)[code] = None


class SameProcess:
    """Crew that trains a run in this process."""

    def submit(self, job: workers.Job) -> None:
        """Train the run of a job."""
        workers.work(job)


@contextmanager
def same_process(*_: object, **__: object) -> Iterator[SameProcess]:
    """Replace `workers.subprocesses`."""
    yield SameProcess()


def write_pets(folder: Path) -> Path:
    """Write thirty small images and their labels."""
    rng = np.random.default_rng(0)
    lines = ["image,labels"]
    for i in range(30):
        Image.fromarray(rng.integers(256, size=(24, 24, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{'cat;cat;dog' if i % 2 else 'dog;cat;bird'}")
    path = folder / "pets.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def main() -> None:
    """Run the command up to its first batch, and print the path."""
    trace = Trace()
    sweep.subprocesses = same_process  # type: ignore[assignment]
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        tokens = ["train", str(write_pets(Path(folder))), *sys.argv[1:]]
        sys.argv = ["multiset", *tokens]
        with suppress(FirstBatchError):
            sys.setprofile(trace)
            multiset(tokens)
        sys.setprofile(None)
        os.chdir(PACKAGE)
    path = [(str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname) for code in trace.called]
    print()
    for i, (file, name) in enumerate(path, start=1):
        print(f"{i:4}  {file:32} {name}")
    print()
    files = Counter(file for file, _ in path)
    for file, functions in files.most_common():
        print(f"{functions:4}  {file}")
    print(f"\n{len(path)} functions in {len(files)} files; {len(trace.imported)} more while modules are imported")


if __name__ == "__main__":
    main()
