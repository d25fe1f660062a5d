"""Copy the model of a finished run into the package: ``python tools/ship_model.py results/mnist-multi-4``.

The model is named after the run; its model card states the origin and licence of the data. Without arguments, the cards
of all shipped models are written again from their records in results/.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torchmultiset.model.predictor import Predictor
from torchmultiset.model.shipped import MODEL, NAMES
from torchmultiset.viz.card import CARD, model_card

MODELS = Path(__file__).parents[1] / "src" / "torchmultiset" / "model" / "shipped"
RESULTS = Path(__file__).parents[1] / "results"
REMARKS = """
## Data and licence

The images are generated from the digits of MNIST (Yann LeCun, Corinna Cortes; CC BY-SA 3.0): digits of 20 to 50 pixels,
or of 20 pixels for ten digits, on a 100x100 canvas with clutter, as in the paper. Training and validation
images share their digits; test images have other ones. The weights are licensed under Apache-2.0, like this package;
except for a few samples for the demo page, the images are not part of it.

The model expects one grey channel with light digits on a dark background. Other handwriting styles, photographs, and
much larger or smaller digits are outside its training distribution.
"""


def card(name: str, predictor: Predictor) -> str:
    """Return the model card of a shipped model.

    Args:
        name: Name of the model, and of its run in results/.
        predictor: The model.
    """
    record = json.loads((RESULTS / name / "run.json").read_text())
    return model_card(name, record, predictor, remarks=REMARKS)


def ship(run: Path) -> None:
    """Write the folder of the shipped model."""
    predictor = Predictor.load(run / MODEL)
    target = MODELS / run.name
    predictor.save(target)
    (target / CARD).write_text(card(run.name, predictor))
    print(f"{target}: {sum(path.stat().st_size for path in target.iterdir()):,} bytes")


def write_cards() -> None:
    """Write the cards of all shipped models."""
    for name in NAMES:
        (MODELS / name / CARD).write_text(card(name, Predictor.load(name)))


if __name__ == "__main__":
    ship(Path(sys.argv[1])) if len(sys.argv) > 1 else write_cards()
