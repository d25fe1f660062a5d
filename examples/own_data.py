"""Train on your own data, a table in a CSV file: python examples/own_data.py

On the command line this is `multiset train trips.csv`. For images, use a column `image` with their file names.
"""

from pathlib import Path
from tempfile import mkdtemp

import torch

from torchmultiset.model.inputs import open_model
from torchmultiset.pipeline.config import DataConfig, RunConfig
from torchmultiset.pipeline.run import train_run
from torchmultiset.training.config import OptimConfig


def main(epochs: int | None = None) -> list[list[str]]:
    folder = Path(mkdtemp())
    trips = [(people, km) for people in (1, 2, 3) for km in range(10, 400, 10)]
    rows = [f"{people},{km},{people},{int(km > 200)}" for people, km in trips]
    (folder / "trips.csv").write_text("\n".join(["people,km,count:ticket,count:sandwich", *rows]))
    config = RunConfig(DataConfig(str(folder / "trips.csv")), optim=OptimConfig(epochs=epochs))
    result = train_run(config, folder / "run", say=print)  # prints the settings it chooses, and why
    assert result.report is not None
    print(f"exact match {result.report.overall.exact_match:.2f} on the test examples")
    answers = open_model(folder / "run").predict_labels(torch.tensor([[3.0, 350.0], [1.0, 50.0]]))
    print(answers)
    return answers


if __name__ == "__main__":
    main()
