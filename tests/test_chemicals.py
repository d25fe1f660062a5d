"""The benchmark of chemical names: atoms, splits and baselines, on names made up here."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import chemicals
from torchmultiset.data import load_data

NAMES = {
    f"{'bromo' * b}{'chloro' * c}{stem}ane {i}": Counter({"C": n, "Br": b, "Cl": c}) + Counter()
    for i, (b, c, (n, stem)) in enumerate(
        (b, c, stem) for b in range(4) for c in range(4) for stem in enumerate(("meth", "eth", "prop"), 1)
    )
}


def formula(name: str) -> str:
    return "".join(f"{symbol}{number}" for symbol, number in sorted(NAMES[name].items()))


def test_heavy_atoms_of_a_formula_are_counted_without_hydrogen():
    assert chemicals.heavy_atoms("C2H5Cl") == {"C": 2, "Cl": 1}
    assert chemicals.heavy_atoms("CDCl3") == {"C": 1, "Cl": 3}
    assert chemicals.heavy_atoms("HT") == {}


@pytest.mark.parametrize("key", [str, formula])
def test_the_table_has_all_names_and_its_splits_depend_on_the_key_alone(tmp_path, key):
    splits = chemicals.write_table(tmp_path / "names.csv", NAMES, key)
    read = load_data(tmp_path / "names.csv")
    assert {name: len(examples) for name, examples in read.items()} == Counter(splits.values())
    assert sum(int(examples.counts.sum()) for examples in read.values()) == sum(map(Counter.total, NAMES.values()))
    by_key: dict[str, set[str]] = {}
    for name in NAMES:
        by_key.setdefault(key(name), set()).add(splits[name])
    assert all(len(found) == 1 for found in by_key.values())
    assert {split for found in by_key.values() for split in found} == {"train", "validation", "test"}


def test_ridge_regression_beats_the_majority_baseline_on_an_additive_problem():
    pytest.importorskip("sklearn", reason="the extra 'sklearn' brings scikit-learn")
    splits = {name: chemicals.split_of(name) for name in NAMES}
    found = chemicals.ridge_on_ngrams(NAMES, splits)
    assert found["em"] > 0.5
    assert found["em"] > chemicals.majority(NAMES, splits)
