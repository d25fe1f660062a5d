"""Draw the entropy figure of a shipped model: ``python tools/entropy_of_model.py mnist-multi-4 DATA``.

DATA is the model's training data; its validation split is used. Writes results/<name>/entropy.json and entropy.png.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torchmultiset.model.inputs import open_examples, open_model
from torchmultiset.pipeline.prepare import as_trained
from torchmultiset.pipeline.record import data_record, environment
from torchmultiset.viz.entropy import entropy_curves
from torchmultiset.viz.entropy_figure import save_entropy

SPLIT = "validation"


def main(name: str, data: str) -> None:
    """Compute the entropy curves, and write the record and the figure."""
    predictor = open_model(name)
    examples = as_trained(predictor, open_examples(predictor, data)[SPLIT], SPLIT, data)
    record = {
        "model": name,
        "split": SPLIT,
        "data": data_record(data),
        **environment(),
        **entropy_curves(predictor, examples),
    }
    out = Path("results") / name
    (out / "entropy.json").write_text(json.dumps(record, indent=1) + "\n")
    save_entropy(record, out / "entropy.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
