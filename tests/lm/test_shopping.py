"""The benchmark of shopping lists: data, training, record and tables."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest

pytest.importorskip("transformers", reason='install it with: pip install "torchmultiset[lm]"')
from benchmarks import lists
from benchmarks.shopping import MOST, open_shop


def test_a_list_has_the_ingredients_and_items_of_its_text():
    shop = open_shop()
    assert shop == open_shop()
    for seed in range(50):
        request = shop.request(Random(seed))
        wanted: Counter[str] = Counter()
        first, _, extras = request.text.partition("also get ")
        for dish, recipe in shop.recipes.items():
            if dish in first:
                wanted += Counter(recipe * (1 + (f"{dish} twice" in first)))
        for item in extras.removesuffix(" .").split(" and ") if extras else []:
            number, _, label = item.partition(" ")
            wanted[label] += ["", "one", "two", "three"].index(number)
        assert Counter(request.labels) == wanted
        assert 1 <= len(request.labels) <= MOST


def test_every_method_trains_and_is_scored(monkeypatch):
    for name, small in {"TRAIN": 20, "VALIDATION": 2, "TEST": 3, "WIDTH": 8, "BATCH": 2, "LONGEST": 9}.items():
        monkeypatch.setattr(lists, name, small)
    problem = lists.Problem()
    runs = [lists.train(method, 0, problem, updates=2) for method in lists.METHODS]
    assert [run["method"] for run in runs] == [*lists.METHODS]
    assert all(0 <= run["test"]["f1"] <= 1 and len(run["right"]) == 3 for run in runs)


def test_the_tables_of_the_page_match_the_record():
    record, page = json.loads(lists.RECORD.read_text()), lists.PAGE.read_text()
    assert lists.document(record, page) == page
    for run in record["runs"]:
        assert run["test"]["exact_match"] == pytest.approx(run["right"].count("1") / len(run["right"]), abs=1e-4)
