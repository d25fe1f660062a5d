from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from rich.console import Console

from torchmultiset.viz.scores import best_constant, report, score_tables, wilson

CLASSES = ["ant", "bee", "cat"]
TARGET = [[2, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 1, 0]]
COUNTS = [[2, 0, 0], [1, 1, 0], [0, 0, 0], [0, 2, 1], [1, 0, 0]]


def make_report(**options):
    return report(torch.tensor(COUNTS), torch.tensor(TARGET), CLASSES, **options)


def printed(shown, columns: int = 80) -> list[str]:
    console = Console(width=columns, no_color=True, record=True)
    with console.capture() as captured:
        for table in score_tables(shown):
            console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_scores_equal_those_calculated_by_hand():
    overall = make_report().overall
    assert overall.examples == 5
    assert overall.exact_match == pytest.approx(3 / 5)
    # {bee, bee, cat} for {bee}: precision 1/3, recall 1. {ant} for {ant, bee}: precision 1, recall 1/2.
    assert overall.precision == pytest.approx((3 + 1 / 3 + 1) / 5)
    assert overall.recall == pytest.approx((3 + 1 + 1 / 2) / 5)
    assert overall.f1 == pytest.approx((3 + 2 / 4 + 2 / 3) / 5)


def test_count_errors_equal_those_calculated_by_hand():
    # Errors: bee +1 and cat +1 in the fourth example, bee -1 in the last; bee is true in three examples.
    errors = make_report(constant=torch.tensor([1, 1, 0])).errors
    assert errors.mae == pytest.approx(3 / 15)
    assert errors.rmse == pytest.approx(((2 / 5) ** 0.5 + (1 / 5) ** 0.5) / 3)
    assert errors.rmse_nonzero == pytest.approx((2 / 3) ** 0.5 / 2)  # ant and bee occur
    assert errors.relative_rmse == pytest.approx(((1 / 5) ** 0.5 + (1 / 5) ** 0.5) / 3)
    assert errors.relative_rmse_nonzero == pytest.approx((1 / 3) ** 0.5 / 2)
    lines = printed(make_report(constant=torch.tensor([1, 1, 0])))
    (row,) = (line.split()[1:] for line in lines if line.startswith("model "))
    assert row == ["0.200", "0.360", "0.408", "0.298", "0.289"]
    rows = [line.split()[1:] for line in lines if line.startswith("majority ")]
    assert rows[-1][0] == f"{5 / 15:.3f}"  # ant -1, bee +1; both +1; ant +1


def test_scores_are_broken_down_by_size_and_class():
    shown = make_report()
    assert {size: (s.examples, s.exact_match) for size, s in shown.sizes.items()} == {
        0: (1, 1.0),
        1: (1, 0.0),
        2: (3, pytest.approx(2 / 3)),
    }
    ant, bee, cat = shown.classes.values()
    assert (ant.labels, ant.predicted, ant.precision, ant.recall, ant.f1) == (4, 4, 1, 1, 1)
    assert (bee.labels, bee.predicted) == (3, 3)
    assert (bee.precision, bee.recall, bee.f1) == (pytest.approx(2 / 3),) * 3
    assert (cat.labels, cat.predicted, cat.precision, cat.recall, cat.f1) == (0, 1, 0, None, 0)


def test_wilson_agrees_with_its_definition():
    # The bounds are the shares p at which the observed share is 1.96 standard deviations of p away.
    for right, of in [(0, 10), (3, 10), (10, 10), (912, 1000)]:
        for bound in wilson(right, of):
            distance = abs(right / of - bound)
            assert distance == pytest.approx(1.959964 * (bound * (1 - bound) / of) ** 0.5, abs=1e-6)
        low, high = wilson(right, of)
        assert 0 <= low <= right / of <= high <= 1


def test_the_best_constant_is_the_most_frequent_multiset_of_the_training_data():
    train = torch.randint(3, (200, 2), generator=torch.Generator().manual_seed(0))
    most = Counter(map(tuple, train.tolist())).most_common(1)[0][0]
    assert tuple(best_constant(train).tolist()) == most
    shown = make_report(constant=torch.tensor([1, 1, 0]))
    assert shown.constant.multiset == {"ant": 1, "bee": 1}
    assert shown.constant.scores.exact_match == pytest.approx(2 / 5)
    # Averages over the examples with the class: ant has precision 3/3 and recall (1/2 + 1 + 1)/3, bee is right.
    ant = 2 * 1 * (2.5 / 3) / (1 + 2.5 / 3)
    assert shown.constant.class_f1 == pytest.approx((ant + 1) / 2)


def test_the_json_has_the_content_of_the_report():
    shown = make_report(constant=torch.tensor([1, 1, 0]), split="validation")
    plain = json.loads(json.dumps(shown.to_json(), allow_nan=False))
    assert plain["split"] == "validation"
    assert plain["overall"]["exact_match"] == shown.overall.exact_match
    assert plain["sizes"]["2"]["examples"] == 3
    assert plain["classes"]["cat"]["recall"] is None
    assert plain["constant"]["multiset"] == {"ant": 1, "bee": 1}
    assert plain["errors"]["rmse"] == shown.errors.rmse
    assert plain["constant"]["errors"]["mae"] == shown.constant.errors.mae


def test_empty_multisets_have_no_class_f1():
    nothing = torch.zeros(2, 3, dtype=torch.int64)
    shown = report(nothing, nothing, CLASSES)
    assert (shown.overall.exact_match, shown.class_f1) == (1.0, None)
    json.dumps(shown.to_json(), allow_nan=False)
    assert "this model" in "\n".join(printed(shown))


def test_tables_fit_80_columns_with_long_names_and_many_classes():
    names = [f"{i} [bold]a class with a name that goes on and on" for i in range(100)]
    target = torch.eye(100, dtype=torch.int64) * torch.arange(1, 101)[:, None]
    shown = report(target, target, names, constant=target[-1])
    lines = printed(shown)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "[bold]" in text
    assert "the 40 most frequent of 100" in text
    assert "×100" in text.replace("\n", " ")  # noqa: RUF001


def test_the_table_has_model_and_baseline_rows():
    lines = printed(make_report(constant=torch.tensor([1, 1, 0])))
    (model,) = (line for line in lines if line.startswith("this model"))
    # The class F1 of ant is 1; that of bee is 4/7 from precision (1 + 1/2 + 0)/3 and recall (1 + 1 + 0)/3.
    assert model.split()[2:] == ["0.600", "0.231-0.882", "0.867", "0.900", "0.833", f"{(1 + 4 / 7) / 2:.3f}"]
    assert any(line.startswith("majority baseline") and "0.400" in line for line in lines)
    assert any("ant, bee, the most frequent in training" in line for line in lines)


def test_invalid_input_is_refused():
    with pytest.raises(ValueError, match="classes must be 3 names"):
        report(torch.tensor(COUNTS), torch.tensor(TARGET), ["ant"])
    none = torch.zeros(0, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="at least one example"):
        report(none, none, CLASSES)
