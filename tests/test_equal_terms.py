"""The benchmark of all losses on equal terms: models, scores, record and page, without training."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import equal_terms
from benchmarks.equal_terms import EPOCHS, METHODS, RATES, SEEDS, SHARED
from torchmultiset._pooling import Pool
from torchmultiset.data import Examples
from torchmultiset.model.build import build_predictor, resolve_stop
from torchmultiset.model.shipped import MODEL
from torchmultiset.pipeline.config import config_of
from torchmultiset.viz.calibration import calibrate

CLASSES = ("ant", "bee", "cat", "dog")
SHAPE = (1280, 2, 2)
ON_THE_MAP = {"L_multi, transformer", "slots"}  # they attend to positions instead of pooling
PAGE = "before\n<!-- equal-terms -->\n<!-- /equal-terms -->\nafter\n"


def build(method, sizes=(1, 4)):
    torch.manual_seed(0)
    config = equal_terms.config_for(method, "photos.jsonl", 1, 2e-3, 0)
    return build_predictor(
        config.model,
        config.objective,
        shape=SHAPE,
        classes=CLASSES,
        min_size=sizes[0],
        max_size=sizes[1],
        stop=resolve_stop(None, *sizes),
        backbone=config.data.backbone,
    ).eval()


def photographs(number):
    """Random features instead of those of photographs, with one to four labels."""
    rng = np.random.default_rng(number)
    labels = rng.integers(0, len(CLASSES), (number, 4))
    labels[np.arange(4) >= rng.integers(1, 5, (number, 1))] = -1
    return Examples(rng.random((number, *SHAPE), dtype=np.float32), labels, CLASSES)


@pytest.mark.parametrize(
    "sizes", [pytest.param((2, 2), marks=pytest.mark.slow, id="easy"), pytest.param((1, 4), id="medium")]
)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_predicts_from_maps_with_the_same_pooling(method, sizes):
    predictor = build(method, sizes)
    examples = photographs(3)
    pools = {module.kind for module in predictor.modules() if isinstance(module, Pool)}
    assert pools == (set() if method in ON_THE_MAP else {"mean-max"})
    assert predictor.searchable == (method != "L_1-step")
    scores = equal_terms.scores_of(predictor, {"validation": examples, "test": examples})
    assert [*scores["decodings"]] == (["greedy", "search"] if predictor.searchable else ["greedy"])
    predicted = predictor.predict(examples.batch(range(3)).x).sum(1)
    assert predicted.min() >= sizes[0]
    assert predicted.max() <= sizes[1]
    assert (scores["nll"] is None) == (not predictor.searchable)


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].get("count_head")])
def test_counts_are_normalised_over_the_sizes_that_occur(method):
    head = build(method).head
    assert head.sizes == (1, 4)
    has_potential = head.size_scores is not None or getattr(head, "size_head", None) is not None
    assert has_potential == ("sizes" in method)
    assert getattr(head, "joint_states", 0) == (16 if "joint" in method else 0)


def test_likelihoods_of_multisets_of_four_labels_are_exact():
    predictor, examples = build("L_multi"), photographs(6)
    with torch.no_grad():
        predictor.policy.embedding.weight.mul_(20)  # the order of the labels matters
        predictor.policy.classifier.weight.mul_(20)
    counts = torch.from_numpy(examples.counts)
    x = examples.batch(range(6)).x
    exact = predictor.log_probability(x, counts, beam=1000)
    assert not torch.allclose(predictor.log_probability(x, counts, beam=8), exact)
    scores = equal_terms.scores_of(predictor, {"validation": examples, "test": examples})
    assert scores["nll"] == pytest.approx(-exact.mean().item())


@pytest.mark.parametrize("method", ["slots", "L_multi"])
def test_the_calibration_error_depends_on_the_decoding(method):
    predictor, examples = build(method), photographs(40)
    scores = equal_terms.scores_of(predictor, {"validation": examples, "test": examples})["decodings"]
    target, x = torch.from_numpy(examples.counts), examples.batch(range(40)).x
    for way, found in scores.items():
        predictor.decoding = way
        counts = predictor.predict(x)
        right = (counts == target).all(1)
        with torch.no_grad():
            confidence = predictor.log_probability(x, counts, beam=1000).exp().clamp(max=1)
        assert found["test"]["calibration_error"] == pytest.approx(calibrate(confidence, right).error)
        assert found["right"] == "".join("1" if each else "0" for each in right)
    assert scores["greedy"]["test"] != scores["search"]["test"]


def test_a_run_is_measured_once(tmp_path, monkeypatch):
    build("power").save(tmp_path / MODEL)
    task = SimpleNamespace(splits={"validation": photographs(3), "test": photographs(4)})
    equal_terms.measure("power", tmp_path, task)
    scores = json.loads((tmp_path / equal_terms.SCORES).read_text())
    assert len(scores["decodings"]["greedy"]["right"]) == 4
    monkeypatch.setattr(equal_terms, "scores_of", None)
    equal_terms.measure("power", tmp_path, task)


def fake_scores(exact_match, *, nll=2.0, decoding="greedy"):
    """Synthetic scores of a method on 1,000 images."""
    test = {"exact_match": exact_match, "f1": 0.7, "class_f1": 0.6, "rmse": 0.3, "nll": nll, "impossible": 0.0}
    right = "1" * round(1000 * exact_match) + "0" * round(1000 * (1 - exact_match))
    return {
        "rate": 2e-3,
        "decoding": decoding,
        "validation_by_decoding": {decoding: exact_match},
        "seeds": [test | {"calibration_error": None if nll is None else 0.05} for _ in SEEDS],
        "images_per_second": 12345.6,
        "minutes": 0.5,
        "right": [right for _ in SEEDS],
    }


def write_photographs(path, *, images="images", labels=("ant", "bee")):
    """Write a list of two photographs, whose images do not exist."""
    lines = [{"image": f"{images}/{name}.jpg", "labels": [*labels], "split": "train"} for name in ("1", "2")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Start the command with training replaced; return the list of the methods that were trained."""
    trained = []
    monkeypatch.setattr(equal_terms, "RECORD", tmp_path / "results" / "equal-terms.json")
    monkeypatch.setattr(equal_terms, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(equal_terms, "choose_photographs", lambda path, *_: write_photographs(path))
    monkeypatch.setenv("TORCHMULTISET_COCO", str(tmp_path))
    equal_terms.PAGE.write_text(PAGE)

    def start(*only, train=lambda method: fake_scores(0.5)):
        def compare_rates(method, *_):
            trained.append(method)
            return train(method)

        monkeypatch.setattr(equal_terms, "compare_rates", compare_rates)
        command = ["equal_terms", str(tmp_path / "runs"), "--variants", "easy", "--only", *only]
        monkeypatch.setattr("sys.argv", command)
        equal_terms.main()

    return start, trained


def test_finished_measurements_survive_an_interruption_and_are_not_repeated(started):
    start, trained = started

    def interrupted(method):
        if method == "power":
            raise KeyboardInterrupt
        return fake_scores(0.5)

    with pytest.raises(KeyboardInterrupt):
        start("slots", "power", train=interrupted)
    assert [*json.loads(equal_terms.RECORD.read_text())["easy"]["methods"]] == ["slots"]
    start("slots", "power")
    assert trained == ["slots", "power", "power"]
    record = json.loads(equal_terms.RECORD.read_text())
    assert equal_terms.PAGE.read_text() == equal_terms.document(record, PAGE)


def test_a_failing_method_does_not_stop_the_others(started, capsys):
    start, trained = started

    def failing(method):
        if method == "slots":
            raise RuntimeError("2 runs failed")
        return fake_scores(0.5)

    with pytest.raises(SystemExit, match=r"easy, slots: 2 runs failed"):
        start("slots", "power", train=failing)
    assert trained == ["slots", "power"]
    assert [*json.loads(equal_terms.RECORD.read_text())["easy"]["methods"]] == ["power"]


def test_other_settings_or_data_are_measured_again(started, monkeypatch, tmp_path):
    start, trained = started
    start("slots")
    monkeypatch.setattr(equal_terms, "SHARED", {**SHARED, "dropout": 0.5})
    start("slots")
    write_photographs(tmp_path / "runs" / "coco-easy.jsonl", labels=("ant", "ant"))
    start("slots")
    assert trained == ["slots"] * 3


def test_the_same_data_in_another_folder_is_not_measured_again(started, tmp_path):
    start, trained = started
    start("slots")
    write_photographs(tmp_path / "runs" / "coco-easy.jsonl", images="../../../elsewhere/images")
    start("slots")
    assert trained == ["slots"]


def test_the_checksum_of_the_data_covers_everything_but_folders(tmp_path):
    def checksum(**options):
        return equal_terms.data_checksum(write_photographs(tmp_path / "data.jsonl", **options))

    same = checksum()
    assert checksum(images="../images") == checksum(images="/data/coco") == same
    assert checksum(labels=("bee", "ant")) != same
    path = write_photographs(tmp_path / "data.jsonl")
    for old, new in (("train", "test"), ("2.jpg", "3.jpg")):
        path.write_text(path.read_text().replace(old, new))
        assert equal_terms.data_checksum(path) != same
        write_photographs(path)
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert equal_terms.data_checksum(path) != same


def test_the_page_states_whether_the_first_method_is_better_or_worse():
    methods = {
        "power": fake_scores(0.5, decoding="search"),
        "slots": fake_scores(0.45),
        "L_1-step": fake_scores(0.47, nll=None),
    }
    methods["slots"]["right"] = ["1" * 520 + "0" * 480 for _ in SEEDS]  # better on the test data only
    about = {"date": "2026-01-02", "git": "0123456789", "settings": {}}
    machine = {"machine": {"cores": 2, "processor": "a processor", "instructions": "AVX2"}}
    methods = {name: about | machine | one for name, one in methods.items()}
    page = equal_terms.document({"easy": {"methods": methods, "tests": equal_terms.paired_tests(methods)}}, PAGE)
    rows = {row.split("|")[1].strip(): [*map(str.strip, row.split("|"))] for row in page.splitlines() if "|" in row}
    scores = ["0.500 ±0.000", "0.700", "0.600", "2.00", "0.050", "0.300", "12,346"]
    assert rows["power"][2:-1] == [*scores, "search", "this one"]
    assert rows["slots"][-2].startswith("worse, p < 0.001")
    assert rows[r"L\_1-step"][5:7] == ["-", "-"]
    assert rows[r"L\_1-step"][-2].startswith("better, p < 0.001")
    assert "attend" in page
    assert page.count("commit 01234567") == 1


def test_the_rates_and_seeds_are_the_same_for_every_method():
    assert (len(RATES), len(SEEDS), {*EPOCHS}) == (3, 5, {"easy", "medium"})
    for method in METHODS:
        config_of({**SHARED, **METHODS[method], "epochs": 1})
        assert not {*METHODS[method]} & {*SHARED, "lr", "epochs"}
