"""docs/campaign.md, written from the record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["page"]

FOUND = (
    ("A damaged checkpoint ended `train --resume` with a traceback, or was read with other numbers", "6a4e4c4", "tests/training/test_checkpoint.py"),
    ("Changed arrays or a changed manifest of a stored data set were read without an error", "afc4c46", "tests/data/test_store.py"),
    ("Changed rows of a feature cache were noticed only if they were among 16 that are checked; an odd number of bytes at its end was an unclear error", "3ac332f", "tests/data/test_features.py"),
    ("Changes of `predictor.json`, such as another class name, were read without an error", "92a0d8f", "tests/model/test_predictor_files.py"),
    ("A damaged `run.json` or `leaderboard.json` ended with a traceback; so did numbers too large for a network in a config; messages of seven readers did not name the file or what to do", "a036e58", "tests/campaign/test_found.py"),
    ("VOC and COCO import: an image width of 30 digits, and a `category_id` that is a list, ended with a traceback", "6a120c6", "tests/campaign/test_found.py"),
    ("Two runs in one folder at once overwrote each other's files: one ended with an unclear error, and the weights of the other were not those of one run alone", "a18da0c", "tests/test_files.py"),
    ("COCO build: the message about missing images did not tell what to do", "34e337b", "tests/campaign/test_found.py"),
    ("On a full disk, `No space left on device` was reported without the file", "7996e5c", "tests/campaign/test_campaign.py"),
    ("A feature cache whose file vanished while it was filled ended with an IndexError", "a862912", "tests/data/test_features.py"),
    ("Tables: messages about a duplicate column, or one without a name, did not tell what to do", "ddabbe7", "tests/campaign/test_found.py"),
    ("A file name of more than 255 characters in a list, COCO or YOLO file ended with the system's message alone", "984ad7c", "tests/campaign/test_found.py"),
    ("Two builds of a data set in one folder at once: one ended with an unclear error", "51c7fdc", "tests/data/test_store.py"),
)  # fmt: skip
LIMITS = (
    ("pixels of an image that is read from a file", "89,478,485 (`PIL.Image.MAX_IMAGE_PIXELS`), refused before it is decoded"),
    ("pixels of an image that is sent to the page", "25,000,000"),
    ("bytes of an upload to the page", "10,000,000; more are refused before they are read"),
    ("predictions of one client of the page", "60 in a minute"),
    ("predictions of the page at a time", "2; others wait"),
    ("count of one label in a table or list", "10,000"),
    ("array files (.npy), idx files", "header and length of the file must agree before anything is allocated"),
)  # fmt: skip


def page(record: Mapping[str, Any]) -> str:
    """Return the page."""
    tried = sum(part.get("tried", 0) for part in record.values())  # the static check tries no faults
    failed = sum(len(part["failures"]) for part in record.values())
    parts = [
        [name, f"{part['tried']:,}" if 'tried' in part else f"{part['files']} files", str(len(part["failures"])), f"{part['minutes']:g}", str(part["git"])[:8], part["date"][:10]]
        for name, part in record.items()
    ]  # fmt: skip
    lines = [
        "# Campaign of faults",
        "",
        "What happens to files, runs and the server when something goes wrong: damaged inputs, kills, full disks, abuse of",
        "the server, and data on which training could fail. `make campaign` repeats all of it with fixed seeds and writes",
        'this page and its record, `results/campaign.json`; `make campaign ARGS="--minutes 30"` sets its length,',
        '`ARGS="damage --inputs 500"` a part and its count. A form of about a minute is part of `make test`',
        "(`tests/campaign/`).",
        "",
        f"**{tried:,} faults tried, {tried - failed:,} survived, {failed} failures** in the recorded run. The failures that the",
        "campaign found before it are listed [below](#failures-found), each with the commit that mended it and its test.",
        "",
        *_table(("part", "tried", "failures", "minutes", "commit", "date"), parts),
        "",
        _machine(record),
        "",
    ]
    missing = [name for name in _PARTS if name not in record]
    if missing:
        again = f'make campaign ARGS="{" ".join(missing)}"'
        lines += [f"**Not recorded yet: {', '.join(missing)}** (`{again}`).", ""]
    for name, write in _PARTS.items():
        if name in record:
            lines += [*write(record[name]), ""]
            if record[name]["failures"]:
                lines += ["Failures:", "", *(f"- {failure}" for failure in record[name]["failures"]), ""]
    lines += ["## Failures found", "", "Each has a test of its own.", ""]
    lines += _table(("what happened", "commit", "test"), [(what, commit, f"`{test}`") for what, commit, test in FOUND])
    return "\n".join(lines) + "\n"


def _machine(record: Mapping[str, Any]) -> str:
    machine = next(iter(record.values()))["machine"] if record else {"cores": 0, "processor": ""}
    return f"*Run on {machine['cores']} cores of {machine['processor']}, which were busy with other work, too.*"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return ["| " + " | ".join(map(str, row)) + " |" for row in (header, ["---"] * len(header), *rows)]


def _damage(part: Mapping[str, Any]) -> list[str]:
    limits = part["limits"]
    rows = []
    for name, kind in part["kinds"].items():
        bad = sum(kind.get(one, 0) for one in ("uncaught", "crash", "slow"))
        number = sum(value for key, value in kind.items() if not key.startswith("most"))
        wrong, unclear = kind.get("wrong success", 0), kind.get("unclear", 0)
        rows.append([name, number, kind.get("refused", 0), kind.get("read", 0), bad, wrong, unclear, f"{kind['most seconds']:.1f}", f"{kind['most megabytes']:.0f}"])  # fmt: skip
    header = ("input", "tried", "refused", "read", "uncaught", "wrong success", "unclear", "most seconds", "most MB")
    return [
        "## Damaged input",
        "",
        f"Mutations of valid files with seed {part['seed']}, half of them of bytes and half of structure: keys, types, numbers,",
        "encodings, chunks, headers, entries of archives. Each is read by the command line in a worker process. *Refused*: an",
        "exit code, and a message that names the file (or the setting of a config) and what to do. *Read*: the damage does",
        "not matter, or left a valid file. *Wrong success*: a file that carries a checksum (models, stored data, feature",
        "caches, checkpoints) was read with another result. *Unclear*: the message lacks the file or what to do, judged by",
        "the name and a list of verbs.",
        "",
        f"Limits of one input: {limits['seconds']:.0f} seconds of processor time (a worker that hangs is killed) and {limits['megabytes']:,} MB of memory in",
        "addition, enforced by the system (`RLIMIT_AS`). The last columns are the most that any input took. A read of a",
        "run folder or checkpoint includes the training that is resumed.",
        "",
        *_table(header, rows),
        "",
        "The library's own limits:",
        "",
        *_table(("what", "limit"), LIMITS),
    ]


def _kills(part: Mapping[str, Any]) -> list[str]:
    rows = [[name, one["kills"], one["chains"], len(one["failures"])] for name, one in part["scenarios"].items()]
    return [
        "## Kills",
        "",
        "SIGKILL at random moments, up to five in a row, each followed by the same command; then the command runs to its",
        "end. Its outcome must equal that of a command that was never killed: the weights to the bit, the bytes of data sets",
        "and caches, the winner of a portfolio. After each kill, every file under its final name must be whole, and no lock",
        "may be held; a finished candidate of a portfolio must not be trained again.",
        "",
        *_table(("what was killed", "kills", "chains", "failures"), rows),
    ]


def _conditions(part: Mapping[str, Any]) -> list[str]:
    rows = [[name, number] for name, number in part["conditions"].items()]
    skipped = [f"Skipped: {name}: {reason}." for name, reason in part["skipped"].items()]
    return [
        "## Adverse conditions",
        "",
        "Disks that are full after 0 to 1,200 kB, and read-only ones, are small file systems in memory (tmpfs), mounted for",
        "each case: training, data build, feature cache, save and export must end with a clear error or correctly, leave no",
        "half-written file, and succeed once there is space. Files and folders vanish at random moments. Two processes run in",
        "one folder: each ends correctly, or is refused.",
        "",
        *_table(("condition", "cases"), rows),
        *["", *skipped] * bool(skipped),
    ]


def _server(part: Mapping[str, Any]) -> list[str]:
    rows = [[kind, number] for kind, number in sorted(part["requests"].items(), key=lambda pair: -pair[1])]
    memory, damaged = part["megabytes"], part["damaged requests"]
    return [
        "## The server under load and abuse",
        "",
        f"{sum(part['requests'].values()):,} requests from {part['clients']} clients at once, half of them good, with the rate limit raised for it:",
        "every good one must be answered, and every bad one refused with the right status.",
        f"Memory was {memory['before']} MB before, {memory['after']} MB after, {memory['most']} MB at most.",
        f"Then {sum(damaged.values()):,} mutations of a valid HTTP request: {damaged.get('refused', 0):,} refused, {damaged.get('read', 0):,} answered, {damaged.get('no answer', 0):,} left without an answer (the connection was closed, or the rest of the request never came).",
        f"With the default rate limit, of 70 predictions in a row {part['default rate'].get('200', 0)} were answered and {part['default rate'].get('429', 0)} refused.",
        f"Security headers in a real browser: {part['browser']} (an injected script, a request and an image from another",
        "origin are blocked). The server must not answer at another address than loopback, and serve no file outside of its",
        "folder.",
        "",
        *_table(("request", "number"), rows),
    ]  # fmt: skip


def _numbers(part: Mapping[str, Any]) -> list[str]:
    rows = [[name, counts.get("finite", 0), counts.get("refused", 0), counts.get("failed", 0)] for name, counts in part["data"].items()]  # fmt: skip
    return [
        "## Numbers that stay numbers",
        "",
        f"Two epochs with each of {len(part['objectives'])} objectives ({', '.join(part['objectives'])}) in {', '.join(part['precisions'])} at a",
        "learning rate of 0.1: losses, weights and predictions must be finite, or training must stop with an error.",
        "",
        *_table(("data", "finite", "stopped with an error", "failures"), rows),
    ]


def _execution(part: Mapping[str, Any]) -> list[str]:
    return [
        "## Nothing executes",
        "",
        f"A static check of {part['files']} Python files: no pickle, `eval`, `exec`, `torch.load` without `weights_only=True`,",
        "`np.load` with pickles, shell command or remote code (`tests/campaign/test_execution.py`).",
    ]


_PARTS = {
    "damage": _damage, "kills": _kills, "conditions": _conditions, "server": _server, "numbers": _numbers,
    "execution": _execution,
}  # fmt: skip
