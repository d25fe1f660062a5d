"""Tables of results, compared with calculations by hand."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from made_records import declared as about
from made_records import place, true_counts, write_record
from rich.console import Console

from paper.blocks import overviews
from paper.records import read_runs
from paper.report import result_table
from paper.scales import SCALES
from paper.summary import PARTS, scores_of, summarise

PAPER = {"em": 0.5, "f1": 0.7}
NUMBERS = ("em", "f1", "class_f1")


def row_place(number, title, paper=PAPER):
    return place("table-3", title, (number, 0), paper)


def shown(row):
    return [(s.ours, s.reach, s.papers, s.difference) for s in (row.scores[name] for name in NUMBERS)]


def exactly(right, of):
    return [True] * right + [False] * (of - right)


def printed(block, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(result_table(block))
    return console.file.getvalue()


def test_a_table_of_a_single_seed(tmp_path):
    write_record(tmp_path, "d/multi/seed-0", row_place(0, "L_multi"), exactly(3, 4))
    (block,) = summarise(read_runs(tmp_path))
    assert block.title == "Table 3, losses: MNIST Multi (4), test data"
    (row,) = block.rows
    assert [(ours, papers, difference) for ours, _, papers, difference in shown(row)] == [
        ("0.750", "0.500", "+0.250"),
        ("0.750", "0.700", "+0.050"),
        ("0.625", "0.700", "-0.075"),
    ]
    assert row.scores["em"].reach == "0.301-0.954"  # Wilson's, for 3 of 4
    low, high = row.scores["f1"].interval
    assert low < 0.95 < high <= 1  # three predictions are correct, and one has an additional label
    assert block.baseline.title == "majority baseline: cat ×2"  # noqa: RUF001  (the multiplication sign is intended)
    assert [cells[0] for cells in shown(block.baseline)] == ["0.062", "0.375", "0.250"]
    assert block.verdict == "Fewer than two rows have results: none is first."


def test_a_table_of_several_seeds_has_standard_deviations(tmp_path):
    tables = row_place(0, "Greedy", {"em": 0.475, "em_std": 0.006, "f1": 0.645, "f1_std": 0.016})
    for seed, (right, f1) in enumerate([(2, 0.5), (4, 0.6), (6, 0.7)]):
        write_record(tmp_path, f"d/multi/seed-{seed}", tables, exactly(right, 10), f1=f1, class_f1=0.25)
    (block,) = summarise(read_runs(tmp_path))
    # The mean of 0.2, 0.4 and 0.6 is 0.4, and the standard deviation sqrt(0.08 / (3 - 1)) = 0.2.
    assert shown(block.rows[0]) == [
        ("0.400", "±0.200", "0.475 ±0.006", "-0.075"),
        ("0.600", "±0.100", "0.645 ±0.016", "-0.045"),
        ("0.250", "±0.000", "0.645 ±0.016", "-0.395"),
    ]


def test_missing_rows_seeds_and_numbers_are_marked(tmp_path):
    tables = row_place(0, "L_multi")
    write_record(tmp_path, "d/multi/seed-1", tables, exactly(1, 4), class_f1=None)
    declared = [about(f"d/multi/seed-{seed}", tables) for seed in range(3)]
    declared.append(about("d/rl/seed-0", row_place(1, "L_RL", None)))
    (block,) = summarise(read_runs(tmp_path, declared))
    assert [row.name for row in block.rows] == ["L_multi (1 of 3 seeds)", "L_RL"]
    assert shown(block.rows[0])[2] == ("missing", "", "0.700", "-")
    assert shown(block.rows[1]) == [("missing", "", "-", "-")] * 3


def test_a_table_without_results_has_no_baseline(tmp_path):
    (block,) = summarise(read_runs(tmp_path, [about("d/rl/seed-0", row_place(1, "L_RL"))]))
    assert block.baseline is None
    assert [cells[0] for cells in shown(block.rows[0])] == ["missing"] * 3


def test_tables_have_the_order_and_the_splits_of_the_paper(tmp_path):
    def at(table, column, number, **more):
        return place(table, "row", (0, number), PAPER, column=column, **more)

    write_record(tmp_path, "b/seq/seed-0", at("table-3", "B", 1), [True])
    shared = at("table-3", "A", 0) | at("table-1", "A", 0, split="validation")
    write_record(tmp_path, "c/seq/seed-0", shared | at("entropy", "A", 0), [True])
    blocks = summarise(read_runs(tmp_path))
    assert [(block.table, block.column, block.split) for block in blocks] == [
        ("table-1", "A", "validation"),
        ("table-3", "A", "test"),
        ("table-3", "B", "test"),
    ]


# Verdicts


def three(tmp_path, *, rl, seq):
    write_record(tmp_path, "d/seq/seed-0", row_place(2, "L_seq"), seq)
    write_record(tmp_path, "d/multi/seed-0", row_place(0, "L_multi"), exactly(30, 40))
    write_record(tmp_path, "d/rl/seed-0", row_place(1, "L_RL"), rl)


def test_a_row_that_beats_all_others_is_first(tmp_path):
    three(tmp_path, rl=exactly(20, 40), seq=exactly(10, 40))
    (block,) = summarise(read_runs(tmp_path))
    assert [row.title for row in block.rows] == ["L_multi", "L_RL", "L_seq"]
    # Ten wins and no loss have p = 2 / 2**10, the larger of two p-values, which Holm multiplies by 1.
    assert block.verdict == "L_multi is first (p = 0.002)."
    assert [(each.other, each.wins, each.losses) for each in block.comparisons] == [("L_RL", 10, 0), ("L_seq", 20, 0)]


def test_with_several_seeds_the_number_of_seeds_is_reported(tmp_path):
    for seed, rl in enumerate((exactly(10, 40), exactly(35, 40), exactly(5, 40))):
        write_record(tmp_path, f"d/multi/seed-{seed}", row_place(0, "L_multi"), exactly(30, 40), seed=seed)
        write_record(tmp_path, f"d/rl/seed-{seed}", row_place(1, "L_RL"), rl, seed=seed)
    (block,) = summarise(read_runs(tmp_path))
    assert block.verdict == "L_multi is first (p < 0.001; against L_RL in 2 of 3 seeds)."


def test_a_missing_row_is_mentioned_in_the_verdict(tmp_path):
    three(tmp_path, rl=exactly(20, 40), seq=exactly(10, 40))
    declared = [about("d/one-step/seed-0", row_place(5, "L_1-step"))]
    (block,) = summarise(read_runs(tmp_path, declared))
    assert block.verdict == "L_multi is first among the rows that have results; missing: L_1-step."


def test_the_highest_row_is_not_first_without_a_significant_difference(tmp_path):
    # Five wins and no loss have p = 2 / 2**5.
    three(tmp_path, rl=exactly(25, 40), seq=exactly(10, 40))
    (block,) = summarise(read_runs(tmp_path))
    assert block.verdict == "No row is first: L_multi is highest, but not distinguishable from L_RL (p = 0.062)."


def test_p_values_are_corrected_by_the_method_of_holm(tmp_path):
    # Six wins and no loss have p = 2 / 2**6 = 0.031, which is significant alone, but not as one of two.
    three(tmp_path, rl=exactly(24, 40), seq=exactly(24, 40))
    (block,) = summarise(read_runs(tmp_path))
    assert [each.p for each in block.comparisons] == [2 / 2**6] * 2
    others = "L_RL (p = 0.062), L_seq (p = 0.062)"
    assert block.verdict == f"No row is first: L_multi is highest, but not distinguishable from {others}."


def test_without_a_common_seed_there_is_no_test(tmp_path):
    write_record(tmp_path, "d/multi/seed-0", row_place(0, "L_multi"), exactly(30, 40))
    write_record(tmp_path, "d/rl/seed-1", row_place(1, "L_RL"), exactly(1, 40))
    (block,) = summarise(read_runs(tmp_path))
    assert block.verdict == (
        "No row is first: L_multi is highest, but not distinguishable from L_RL (no seed in common)."
    )


def test_rows_tested_on_different_examples_are_refused(tmp_path):
    write_record(tmp_path, "d/multi/seed-0", row_place(0, "L_multi"), exactly(3, 4))
    write_record(tmp_path, "d/rl/seed-0", row_place(1, "L_RL"), exactly(2, 4), true=true_counts(4)[::-1])
    with pytest.raises(ValueError, match="d/rl/seed-0 and d/multi/seed-0 were tested on different test examples"):
        summarise(read_runs(tmp_path))


def test_rows_without_predictions_have_scores_but_no_intervals_and_tests(tmp_path):
    three(tmp_path, rl=exactly(20, 40), seq=exactly(10, 40))
    (tmp_path / "d/rl/seed-0/predictions.npz").unlink()
    (block,) = summarise(read_runs(tmp_path))
    assert [row.scores["em"].ours for row in block.rows] == ["0.750", "0.500", "0.250"]
    assert [row.scores["em"].interval is None for row in block.rows] == [False, True, False]
    assert (block.comparisons, block.verdict) == ((), "Not compared: predictions on test data were not kept.")


# Terminal


def test_the_table_fits_a_terminal(tmp_path):
    tables = row_place(0, "Random per batch", {"em": 0.475, "em_std": 0.006, "f1": 0.645, "f1_std": 0.016})
    write_record(tmp_path, "d/multi/seed-0", tables, exactly(3, 4))
    declared = [about(f"d/multi/seed-{seed}", tables) for seed in range(10)]
    text = printed(*summarise(read_runs(tmp_path, declared)))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["majority", "baseline:", "cat", "×2", "0.062", "0.125-0.875", "-", "-"] in rows  # noqa: RUF001
    assert any(row[-5:] == ["0.750", "0.301-0.954", "0.475", "±0.006", "+0.275"] for row in rows)
    titles = ["exact match", "F1 per example", "class F1"]
    assert [line.strip() for line in text.splitlines() if line.strip() in titles] == titles


def test_names_are_not_markup(tmp_path):
    write_record(tmp_path, "d/multi/seed-0", row_place(0, "[red]L[/red]"), exactly(3, 4))
    assert "[red]L[/red]" in printed(*summarise(read_runs(tmp_path)))


def test_tables_beyond_the_paper_have_more_columns_and_no_reference(tmp_path):
    for method, right, worth in (
        ("counts", 6, {"negative_log_likelihood": 0.25, "calibration": {"error": 0.125}}),
        ("one-step", 2, {}),  # has no probabilities
    ):
        at = place("beyond", method, (method == "one-step", 0), None)
        path = write_record(tmp_path, f"d/{method}/seed-0", at, [i < right for i in range(8)], epochs=(0.25, 0.5, 0.5))
        path.with_name("worth.json").write_text(json.dumps(worth))
    (block,) = summarise(read_runs(tmp_path))
    assert not block.beside_paper
    counts, one_step = block.rows
    assert [counts.scores[metric].ours for metric in block.metrics] == [
        *("0.750", "0.750", "0.625", "0.250", "0.125", "300", "87,083")  # images per second of the fastest epoch
    ]
    assert [one_step.scores[metric].ours for metric in ("nll", "ece", "speed")] == ["-", "-", "300"]
    (tmp_path / "d/one-step/seed-0/worth.json").unlink()
    (block,) = summarise(read_runs(tmp_path))
    assert [block.rows[1].scores[metric].ours for metric in ("nll", "ece")] == ["not measured", "not measured"]


def test_tables_beyond_the_paper_have_intervals_and_deviations(tmp_path):
    at = place("beyond", "counts", (0, 0), None)
    for seed in (0, 1):
        write_record(tmp_path, f"d/counts/seed-{seed}", at, [i % 4 != seed for i in range(400)])
    (block,) = summarise(read_runs(tmp_path))
    # Half of the 400 examples are correct with both seeds and half with one: the standard error is 0.25 / 20.
    spread, interval = block.rows[0].scores["em"].reach.split(", ")
    low, high = map(float, interval.split("-"))
    assert spread == "±0.000"
    assert high - low == pytest.approx(2 * 1.96 * 0.25 / 20, rel=0.15)
    one, _ = (run for run in read_runs(tmp_path))
    (block,) = summarise([one])
    assert block.rows[0].scores["em"].reach == "0.705-0.790"  # Wilson's, for 300 of 400
    assert all(block.rows[0].scores[name].interval for name in NUMBERS)


@pytest.mark.parametrize("table", PARTS)
def test_parts_of_the_test_data_are_reported_separately(tmp_path, table):
    true = np.zeros((40, 10), np.uint8)
    true[:, 0] = 1
    true[30:, 9] = 5  # more labels, and a rare class
    for number, (method, right) in enumerate({"multi": range(30), "counts": range(5, 40)}.items()):
        at = place(table, method, (number, 0), None)
        constant = {
            "multiset": {"0": 1},
            "scores": {"exact_match": 0.75, "interval": [0.1, 0.9], "f1": 0.9},
            "class_f1": 0.5,
        }
        write_record(tmp_path, f"d/{method}/seed-0", at, [i in right for i in range(40)], true=true, constant=constant)
    whole, usual, unusual = blocks = summarise(read_runs(tmp_path))
    found = [[row.scores["em"].value for row in block.rows] for block in blocks]
    assert found == [[0.75, 0.875], [1.0, pytest.approx(25 / 30)], [0.0, 1.0]]
    assert [block.examples for block in blocks] == [40, 30, 10]
    assert [block.column for block in blocks] == [whole.column, *(f"{whole.column}, {name}" for name in PARTS[table])]
    # One label too many in some of 30 images of one label: precision 1/2, recall 1.
    assert usual.rows[1].scores["f1"].value == pytest.approx((25 + 5 * 2 / 3) / 30)
    assert unusual.verdict.startswith("counts is first")
    assert usual.rows[0].scores["em"].reach == "0.886-1.000"
    assert [usual.rows[0].scores[name].ours for name in ("nll", "parameters")] == ["-", "-"]
    # One of six labels is found: precision 1, recall 1/6.
    found = [[block.baseline.scores[name].value for name in ("em", "f1")] for block in (usual, unusual)]
    assert found == [[1.0, 1.0], [0.0, pytest.approx(2 / 7)]]
    (overview,) = overviews(blocks)
    assert overview.columns == tuple(block.column for block in blocks)


def test_the_parts_match_the_data_sets():
    data = SCALES["small"].data
    tested = data["mnist-multi-larger"].tested
    assert (data["mnist-multi-larger"].digits.sizes, tested.sizes) == ((1, 4), (1, 8))
    assert data["mnist-multi-rare"].rare == (5, 6, 7, 8, 9)
    digits = np.eye(10, dtype=np.uint8)
    assert [PARTS["rare"]["with a rare digit"](digits).tolist().index(True)] == [5]
    sizes = np.arange(1, 9, dtype=np.uint8)[:, None]
    assert PARTS["larger"]["5 to 8 labels"](sizes).tolist() == [False] * 4 + [True] * 4


def test_an_older_record_gets_the_tables_of_its_declaration(tmp_path):
    table_3, beyond = (place(name, "L_multi", (0, 0), None) for name in ("table-3", "beyond"))
    write_record(tmp_path, "d/multi/seed-0", table_3, [True] * 4)
    (run,) = read_runs(tmp_path, [about("d/multi/seed-0", table_3 | beyond)])
    assert [*run.tables] == ["table-3", "beyond"]
    assert run.done


def test_a_table_of_several_data_sets_has_an_overview(tmp_path):
    for column, (data_set, right) in enumerate({"easy": 6, "hard": 2}.items()):
        for row, method in enumerate(("multi", "rl") if data_set == "easy" else ("multi",)):
            at = place("table-3", f"L_{method}", (row, column), None, column=data_set)
            write_record(tmp_path, f"{data_set}/{method}/seed-0", at, exactly(right - row, 8))
    (overview,) = overviews(summarise(read_runs(tmp_path)))
    assert (overview.title, overview.columns) == ("Table 3, losses", ("easy", "hard"))
    found = {title: [row and row.scores["em"].value for row in rows] for title, rows in overview.rows.items()}
    assert found == {"L_multi": [0.75, 0.25], "L_rl": [0.625, None], "majority baseline": [0.0625, 0.0625]}
    assert overviews(summarise([run for run in read_runs(tmp_path) if run.data_set == "easy"])) == []


def test_an_overview_leaves_out_rows_and_columns_without_a_result(tmp_path):
    at = {
        (data_set, method): place("table-3", f"L_{method}", (row, column), None, column=data_set)
        for column, data_set in enumerate(("easy", "hard", "never"))
        for row, method in enumerate(("multi", "rl", "seq"))
    }
    for key in (("easy", "multi"), ("hard", "multi"), ("easy", "rl")):
        write_record(tmp_path, "/".join([*key, "seed-0"]), at[key], exactly(6, 8))
    runs = read_runs(tmp_path, [about("/".join([*key, "seed-0"]), place) for key, place in at.items()])
    (overview,) = overviews(summarise(runs))
    assert overview.columns == ("easy", "hard")
    found = {title: [row.scores["em"].ours for row in rows] for title, rows in overview.rows.items()}
    assert found == {
        "L_multi": ["0.750", "0.750"],
        "L_rl": ["0.750", "missing"],
        "majority baseline": ["0.062", "0.062"],
    }
    assert overviews(summarise([run for run in runs if not run.done])) == []


def test_scores_of_counts_match_a_calculation_by_hand():
    predicted, true = np.array([[2, 1, 0], [0, 1, 1]], np.uint8), np.array([[1, 1, 0], [0, 1, 1]], np.uint8)
    shares = {"em": 1 / 2, "f1": (4 / 5 + 1) / 2, "class_f1": (2 * 0.5 / 1.5 + 1 + 1) / 3}
    assert scores_of((predicted, true)) == pytest.approx(shares)
