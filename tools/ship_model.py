"""Put the model of a finished run into the package: ``python tools/ship_model.py results/mnist-multi-4``.

It takes the run's name, and its model card says where the data is from and under what licence.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline.inputs import MODEL
from torchmultiset.viz.card import CARD, model_card

MODELS = Path(__file__).parents[1] / "src" / "torchmultiset" / "model" / "shipped"
REMARKS = """
## Data and licence

The images are generated from the digits of MNIST (Yann LeCun, Corinna Cortes; CC BY-SA 3.0): digits of 20 to 50 pixels,
or of 20 where there are ten, on a canvas of 100x100 with clutter, as the paper describes. Test images have no digit in
common with those for training and validation, which share theirs. The weights have the licence of this package,
Apache-2.0; but for a few samples for the page, the images are not part of it.

It expects one grey channel, light digits on dark ground. Handwriting of another kind, photographs, and digits much
larger or smaller than these are outside of what it has seen.
"""


def main(run: Path) -> None:
    """Write ``models/<name>/``."""
    record = json.loads((run / "run.json").read_text())
    predictor = Predictor.load(run / MODEL)
    target = MODELS / run.name
    predictor.save(target)
    objective = predictor.record["config"]["objective"]
    (target / CARD).write_text(model_card(run.name, record, predictor, objective=objective, remarks=REMARKS))
    print(f"{target}: {sum(path.stat().st_size for path in target.iterdir()):,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
