from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from torchmultiset.data._columns import Column
from torchmultiset.data.examples import Examples
from torchmultiset.viz.describe import describe, headline, splits_table, summary_tables


def examples_of(rows: list[list[int]], classes: tuple[str, ...]) -> Examples:
    """Examples with these labels, padded, and one number as input."""
    width = max(map(len, rows), default=0) + 1
    labels = np.full((len(rows), width), -1, dtype=np.int64)
    for i, row in enumerate(rows):
        labels[i, : len(row)] = row
    return Examples(np.zeros((len(rows), 1), dtype=np.float32), labels, classes)


def printed(*renderables: object) -> list[str]:
    text = io.StringIO()
    console = Console(file=text, width=80)
    for renderable in renderables:
        console.print(renderable)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def rows_of(lines: list[str]) -> dict[str, list[str]]:
    """First cell -> the others. Cells are separated by two spaces or more."""
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    return {row[0]: row[1:] for row in cells if len(row) > 1}


PETS = {
    "train": examples_of([[0, 0, 2], [2], [], [2, 0, 0]], ("cat", "cow", "dog")),
    "validation": examples_of([], ("cat", "cow", "dog")),
    "test": examples_of([[2, 2, 2, 2], [0, 2]], ("cat", "cow", "dog")),
}


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=12))
def test_the_statistics_equal_those_of_counters(rows):
    names = ("a", "b", "c", "d")
    described = describe({"train": examples_of(rows, names)}).splits["train"]
    multisets = [Counter(names[i] for i in row) for row in rows]
    assert described.examples == len(rows)
    assert described.labels == sum(map(len, rows))
    assert described.sizes == Counter(map(len, rows))
    assert described.distinct == len({frozenset(multiset.items()) for multiset in multisets})
    assert described.repeats == sum(any(count > 1 for count in multiset.values()) for multiset in multisets)
    for name in names:
        counts = [multiset[name] for multiset in multisets]
        found = described.classes[name]
        assert (found.labels, found.examples, found.most) == (sum(counts), sum(c > 0 for c in counts), max(counts))


def test_the_json_has_the_same_content_in_plain_types():
    plain = json.loads(json.dumps(asdict(describe(PETS))))
    assert plain["classes"] == ["cat", "cow", "dog"]
    assert (plain["input_dtype"], plain["input_shape"]) == ("float32", [1])
    assert (plain["boxes"], plain["areas"]) == (False, False)
    assert plain["splits"]["train"] == {
        "examples": 4,
        "labels": 7,
        "distinct": 3,
        "repeats": 2,
        "sizes": {"0": 1, "1": 1, "3": 2},
        "classes": {
            "cat": {"labels": 4, "examples": 2, "most": 2},
            "cow": {"labels": 0, "examples": 0, "most": 0},
            "dog": {"labels": 3, "examples": 3, "most": 1},
        },
    }
    assert plain["splits"]["validation"]["examples"] == 0
    assert plain["splits"]["validation"]["sizes"] == {}


def test_the_tables_show_the_splits_their_sizes_and_classes():
    splits, sizes, classes = (rows_of(printed(table)) for table in summary_tables(describe(PETS)))
    assert splits["train"] == ["4", "7", "0 to 3", "1.75", "50.0%", "3"]
    assert splits["validation"] == ["0", "0", "-", "-", "-", "0"]
    assert splits["test"] == ["2", "6", "2 to 4", "3.00", "50.0%", "2"]

    assert sizes["size"] == ["train", "test", "share"]  # an empty split has no column
    assert sizes["0"][:3] == ["1", "0", "16.7%"]
    assert sizes["2"][:3] == ["0", "1", "16.7%"]
    assert sizes["3"][:3] == ["2", "0", "33.3%"]
    assert len(sizes["3"][3]) == 2 * len(sizes["2"][3])  # the bar

    assert classes["cat"][:3] == ["4", "1", "38.5%"]
    assert classes["cow"] == ["0", "0", "0.0%", "0"]
    assert classes["dog"][:3] == ["3", "5", "61.5%"]
    assert classes["dog"][-1] == "4"


def test_many_sizes_share_rows_and_none_is_omitted():
    rows = [[0] * size for size in (0, 1, 7, 99, 100, 100)]
    _, sizes, _ = (printed(table) for table in summary_tables(describe({"train": examples_of(rows, ("cat",))})))
    found = rows_of(sizes)
    assert found.pop("size") == ["train", "share"]
    assert len(found) <= 20
    assert found["0 to 5"][0] == "2"
    assert sum(int(row[0]) for row in found.values()) == len(rows)


def test_of_many_classes_the_most_frequent_are_shown():
    names = tuple(f"class {i}" for i in range(100))
    rows = [[i] * (1 + i % 2) for i in range(100)]  # odd classes occur twice
    table = printed(summary_tables(describe({"train": examples_of(rows, names)}))[2])
    assert table[0] == "Labels by class, top 40 of 100"
    found = rows_of(table)
    assert "class 1" in found
    assert "class 0" not in found
    assert found["class 79"][:2] == ["2", "1.3%"]  # the share of all labels, including those not shown


def test_tables_with_long_names_and_large_numbers_fit_80_columns():
    long = "a class with a name that is much longer than a table can be wide in a terminal"
    names = (long, "[red]cat[/red]", "犬" * 30)
    rows = [[0] * 3, [1] * 3, [2] * 1000] * 1000
    splits = {name: examples_of(rows, names) for name in ("train", "validation", "test")}
    described = describe(splits)
    lines = printed(*summary_tables(described), headline(described))
    assert max(map(cell_len, lines)) <= 80
    assert "[red]cat[/red]" in "\n".join(lines)  # names are not interpreted as markup
    (largest,) = (line for line in lines if "99.4%" in line)
    assert largest.split()[-6:-1] == ["1,000,000"] * 3 + ["99.4%", "█" * 10]
    column = " ".join(line.split("  ")[0] for line in printed(summary_tables(described)[2]))
    assert long in column


def test_a_data_set_without_any_example_is_refused():
    with pytest.raises(ValueError, match="at least one example"):
        describe({"train": PETS["validation"]})


def test_the_headline_describes_inputs_and_objects():
    pixels = np.zeros((1, 3, 8, 9), dtype=np.uint8)
    labels, areas = np.array([[0]]), np.ones((1, 1), dtype=np.float32)
    examples = Examples(pixels, labels, ("cat",), areas=areas)
    assert headline(describe({"train": examples})) == "1 class, inputs uint8 of shape 3 x 8 x 9, areas known"
    columns = tuple(Column(f"c{i}", categories=("x", "y")) for i in range(10))
    table = Examples(np.zeros((1, 20), dtype=np.float32), labels, ("cat",), columns=columns)
    assert headline(describe({"train": table})) == (
        "1 class, rows with the columns c0, c1, c2, c3, c4, c5, c6, c7 and 2 more"
    )


def test_the_table_of_a_build_has_a_row_for_each_split():
    assert [*rows_of(printed(splits_table(describe(PETS))))][1:] == ["train", "validation", "test"]
