"""The entropy figure of a model that comes with the package: ``python tools/entropy_of_model.py mnist-multi-4 DATA``.

DATA is what it was trained with; its validation part is shown. Writes results/<name>/entropy.json and entropy.png.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torchmultiset.pipeline.inputs import open_examples, open_model
from torchmultiset.pipeline.prepare import as_trained
from torchmultiset.pipeline.record import data_record, environment
from torchmultiset.viz.entropy import entropy_curves
from torchmultiset.viz.entropy_figure import save_entropy

SPLIT = "validation"


def main(name: str, data: str) -> None:
    """Roll out, draw, write."""
    predictor = open_model(name)
    examples = as_trained(predictor, open_examples(predictor, data)[SPLIT], SPLIT, data)
    told = {
        "model": name,
        "split": SPLIT,
        "data": data_record(data),
        **environment(),
        **entropy_curves(predictor, examples),
    }
    out = Path("results") / name
    (out / "entropy.json").write_text(json.dumps(told, indent=1) + "\n")
    save_entropy(told, out / "entropy.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
