"""Training in one call: `torchmultiset.train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from torchmultiset._checks import check
from torchmultiset.data.load import is_store
from torchmultiset.model.predictor import Predictor
from torchmultiset.pipeline import auto
from torchmultiset.pipeline.config import RunConfig, config_of
from torchmultiset.pipeline.run import train_run
from torchmultiset.pipeline.standings import standings_table
from torchmultiset.viz.scores import score_tables

__all__ = ["run_folder", "time_budget", "train"]


def train(
    data: str | Path,
    *,
    minutes: int | float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    **settings: Any,
) -> Predictor:
    """Train a model on a data set, test it, and return it: `multiset train` as a function.

    Several models are compared with each other and with simple baselines, and the best one is kept. Progress and scores
    are printed; everything else goes to the run folder.

    Args:
        data: A .csv or .jsonl file, a folder of images with a labels.csv, or a folder made by `multiset data build`.
        minutes: Time budget of the comparison; None: 10. With 0, only the best guess is trained. A setting such as
            ``objective="counts"`` or a built data set trains one model, without a comparison.
        out: Run folder; None: ``runs/`` and the name of the data.
        resume: Resume the run in the folder, if there is one. A finished run is loaded.
        **settings: Any other setting of `multiset train --help-all`, with _ for -, such as ``epochs=20``.

    Returns:
        The model, as `Predictor.load` returns it.

    Raises:
        FileExistsError: The folder holds another run, and `resume` is not set.
        ValueError: A setting or the data is wrong.

    Example:
        >>> model = train("pets.csv", minutes=5)  # doctest: +SKIP
        >>> model.predict("yard.jpg")  # doctest: +SKIP
        Answer({'cat': 2, 'dog': 1})
    """
    if minutes is not None:
        check(isinstance(minutes, int | float) and minutes >= 0, "minutes", "a number of at least 0", minutes)
    config = config_of({**settings, "data": str(data)})
    folder = run_folder(data) if out is None else Path(out)
    budget = time_budget(config, minutes)
    console = Console(file=sys.stdout)
    try:
        if budget:
            result, standings = auto.train_portfolio(config, folder, minutes=budget, resume=resume, say=print)
            if standings:
                console.print(standings_table(standings))
        else:
            result = train_run(config, folder, resume=resume, say=print)
    except FileExistsError as error:
        raise FileExistsError(str(error).replace("--resume", "resume=True").replace("--out", "out=...")) from None
    if result.report is not None:
        console.print(*score_tables(result.report), sep="\n")
        if result.record.get("verdict"):
            print(result.record["verdict"])
    return Predictor.load(folder)


def run_folder(data: str | Path) -> Path:
    """Return the default run folder for a data set.

    Example:
        >>> run_folder("photos/labels.csv").as_posix(), run_folder("pets.csv").as_posix()
        ('runs/photos', 'runs/pets')
    """
    path = Path(data).resolve()
    return Path("runs") / (path.parent.name if path.name in ("labels.csv", "labels.jsonl") else path.stem)


def time_budget(config: RunConfig, minutes: int | float | None) -> float:
    """Return the minutes for comparing models; 0 if a setting or built data decide that one model is trained.

    Args:
        config: Settings as given.
        minutes: Requested budget; None: 10 minutes, if models are compared.
    """
    model = config.model
    decided = config.objective.objective or model.policy or model.start_from or model.stop == "end"
    if not decided and not is_store(str(config.data.data)):
        return auto.MINUTES if minutes is None else float(minutes)
    if minutes:
        raise ValueError(
            "minutes is the budget for comparing models on your own data: remove it, or remove objective, policy,"
            " preset and start_from"
        )
    return 0.0
