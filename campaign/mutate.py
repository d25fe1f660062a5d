"""Mutations of valid files, by bytes and by structure. Each is a function of the content and a random generator."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import struct
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

__all__ = ["ENCODINGS", "Mutate", "by_bytes", "change_json", "text_structure"]

Mutate = Callable[[bytes, random.Random], bytes]

NUMBERS = (0, 1, -1, 2, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**30, -(2**31))
WORDS = (
    "", " ", "nan", "inf", "-inf", "1e309", "null", "true", "\u0000", "\ufeff", "é", "日本", "🙂", "\u202e", "a" * 5000,
    "../../../etc/passwd", "/dev/zero", "C:\\x", "%s%n", "{}", "[]", "'", '"', ";", ",", ":", "=", "\n", "\r\n", "\t",
)  # fmt: skip
ENCODINGS = (
    "utf-16", "utf-16-be", "utf-32", "utf-7", "latin-1", "cp1252", "cp500", "shift_jis", "gb18030", "utf-8-sig",
)  # fmt: skip


def by_bytes(data: bytes, rng: random.Random) -> bytes:
    """Apply one to four changes of bytes: flips, deletions, insertions, copies, truncation."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(_BYTES)(data, rng)
    return data


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 1, 2, 4, 8, 16, 64, 256)))


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _overwrite(data: bytes, rng: random.Random) -> bytes:
    start, stop = _span(data, rng)
    fill = rng.choice((b"\x00", b"\xff", b"\x80", None))
    new = rng.randbytes(stop - start) if fill is None else fill * (stop - start)
    return data[:start] + new + data[stop:]


def _delete(data: bytes, rng: random.Random) -> bytes:
    start, stop = _span(data, rng)
    return data[:start] + data[stop:]


def _insert(data: bytes, rng: random.Random) -> bytes:
    start, _ = _span(data, rng)
    return data[:start] + rng.choice((rng.randbytes(rng.randint(1, 16)), rng.choice(WORDS).encode())) + data[start:]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    start, stop = _span(data, rng)
    return data[:stop] + data[start:stop] * rng.choice((1, 2, 50)) + data[stop:]


def _move(data: bytes, rng: random.Random) -> bytes:
    start, stop = _span(data, rng)
    rest = data[:start] + data[stop:]
    at = rng.randrange(len(rest) + 1)
    return rest[:at] + data[start:stop] + rest[at:]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.choice((0, 1, len(data) // 2, max(len(data) - 1, 0), rng.randrange(len(data) + 1)))]


def _integer(data: bytes, rng: random.Random) -> bytes:
    """Overwrite four bytes, often a length, with an extreme number."""
    if len(data) < 8:
        return data
    at = rng.randrange(min(len(data) - 4, 200) if rng.random() < 0.5 else len(data) - 4)
    number = rng.choice(NUMBERS) & 0xFFFFFFFF
    return data[:at] + struct.pack(rng.choice((">I", "<I")), number) + data[at + 4 :]


def _number(data: bytes, rng: random.Random) -> bytes:
    """Replace a number in the text by an extreme one."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data[:20_000]))
    if not found:
        return _flip(data, rng)
    one = rng.choice(found)
    return data[: one.start()] + str(rng.choice(NUMBERS)).encode() + data[one.end() :]


_BYTES: tuple[Mutate, ...] = (_flip, _overwrite, _delete, _insert, _repeat, _move, _truncate, _integer, _number)


def text_structure(suffix: str) -> Mutate | None:
    """Return the mutation of the structure of a text format, which may also change the encoding; None for others."""
    mutate = _TEXTS.get(suffix)
    if mutate is None:
        return None

    def text(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.15:
            return data.decode().encode(rng.choice(ENCODINGS), errors="replace")
        return mutate(data, rng)

    return text


def _value(rng: random.Random) -> Any:
    deep: Any = []
    for _ in range(rng.choice((3, 200))):
        deep = [deep]
    number = rng.choice(NUMBERS)
    special: tuple[Any, ...] = float(number), 0.5, float("nan"), float("inf"), [], {}, [[]], [None], {"": None}
    plain: tuple[Any, ...] = (None, True, False, number, *special)
    return rng.choice((*plain, rng.choice(WORDS), rng.choice(WORDS), deep))


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    """List all places in a JSON value, as a container and a key."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [place for key in keys for place in ((value, key), *_nodes(value[key]))]


def _change(value: Any, rng: random.Random) -> Any:
    places = _nodes(value)
    if not places or rng.random() < 0.03:
        return _value(rng)
    container, key = rng.choice(places)
    kind = rng.randrange(5)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        container[rng.choice((key.upper(), key + "s", "", "class"))] = container.pop(key)
    elif kind == 2 and isinstance(container, list):
        container += [container[key]] * rng.choice((1, 3, 100))
    elif kind == 3:
        other, place = rng.choice(places)
        container[key] = (
            other[place] if not isinstance(other[place], (dict, list)) else json.loads(json.dumps(other[place]))
        )
    else:
        container[key] = _value(rng)
    return value


def change_json(data: bytes, rng: random.Random) -> bytes:
    return json.dumps(_change(json.loads(data), rng), ensure_ascii=rng.random() < 0.5).encode(errors="replace")


def _jsonl(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = change_json(lines[at], rng)
    return b"\n".join(_lines(lines, rng)) + b"\n"


def _lines(lines: list[bytes], rng: random.Random) -> list[bytes]:
    """Sometimes also drop, repeat or swap lines."""
    kind, at = rng.randrange(8), rng.randrange(len(lines))
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[at])
    elif kind == 2:
        rng.shuffle(lines)
    return lines


def _csv(data: bytes, rng: random.Random) -> bytes:
    rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
    row = rng.choice(rows)
    at = rng.randrange(len(row))
    kind = rng.randrange(4)
    if kind == 0:
        row[at] = str(rng.choice((*WORDS, *NUMBERS)))
    elif kind == 1:
        del row[at]
    elif kind == 2:
        row.insert(at, rng.choice(rng.choice(rows))) if row else None
    else:
        row[at] += rng.choice((*WORDS, ":3", ":-1", ":1e9", ";;", ":99999999"))
    out = io.StringIO(newline="")
    csv.writer(
        out, quoting=rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)), lineterminator=rng.choice(("\n", "\r\n", "\r"))
    ).writerows(rows)
    return b"\n".join(_lines(out.getvalue().encode(errors="replace").split(b"\n"), rng))


def _toml(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines()
    at = rng.choice([i for i, line in enumerate(lines) if b"=" in line] or [0])
    key, _, value = lines[at].decode().partition("=")
    new = rng.choice((json.dumps(_value(rng)), str(rng.choice(NUMBERS)), rng.choice(WORDS), value.strip(' "')))
    lines[at] = f"{rng.choice((key, key, key, key + 'x', 'data'))} = {new}".encode(errors="replace")
    return b"\n".join(_lines(lines, rng)) + b"\n"


def _tokens(data: bytes, rng: random.Random) -> bytes:
    lines = data.decode().splitlines() or [""]
    at = rng.randrange(len(lines))
    words = lines[at].split(" ")
    words[rng.randrange(len(words))] = str(rng.choice((*WORDS, *NUMBERS)))
    lines[at] = " ".join(words)
    return b"\n".join(_lines([line.encode(errors="replace") for line in lines], rng)) + b"\n"


def _xml(data: bytes, rng: random.Random) -> bytes:
    root = ElementTree.fromstring(data)
    nodes = [(parent, child) for parent in root.iter() for child in parent]
    parent, child = rng.choice(nodes)
    kind = rng.randrange(5)
    if kind == 0:
        parent.remove(child)
    elif kind == 1:
        parent.append(child)
    elif kind == 2:
        child.tag = rng.choice(("name", "object", "bndbox", "xmin", "x"))
    elif kind == 3 and rng.random() < 0.3:
        entity = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "lol" * 10}">' for i in range(9))
        return f"<?xml version='1.0'?><!DOCTYPE a [{entity}]>".encode() + re.sub(rb">[^<>]+<", b">&e8;<", data, count=1)
    else:
        child.text = re.sub(r"[\x00-\x08]", "?", str(rng.choice((*WORDS, *NUMBERS))))
    content: bytes = ElementTree.tostring(root, encoding=rng.choice(("utf-8", "utf-16", "latin-1", "us-ascii")))
    return content


_TEXTS: dict[str, Mutate] = {
    "json": change_json, "jsonl": _jsonl, "csv": _csv, "toml": _toml, "txt": _tokens, "yaml": _tokens, "xml": _xml,
}  # fmt: skip
