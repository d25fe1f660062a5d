"""Build, train, save, load and use a predictor: python examples/predictor.py"""

from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch

from torchmultiset import Predictor
from torchmultiset.data import Examples
from torchmultiset.encoders import MLPEncoder
from torchmultiset.model.objectives import MultisetObjective
from torchmultiset.policies import LSTMPolicy
from torchmultiset.training import fit
from torchmultiset.training.config import OptimConfig


def main(epochs: int = 20) -> list[list[str]]:
    torch.manual_seed(0)
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * 50, dtype=np.float32)
    labels = np.array([[-1, -1, -1], [1, -1, -1], [0, 0, -1], [0, 0, 1]] * 50)  # two cats if x_0, a dog if x_1
    examples = Examples(x, labels, classes=("cat", "dog"))
    predictor = Predictor(MLPEncoder(2), LSTMPolicy(2, memory=128), ("cat", "dog"), max_size=3)
    folder = Path(mkdtemp())
    fit(predictor, MultisetObjective(), examples, examples, OptimConfig(epochs=epochs), folder)
    predictor.save(folder / "pets")
    answers = Predictor.load(folder / "pets").predict_labels(torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]))
    print(answers)
    return answers


if __name__ == "__main__":
    main()
