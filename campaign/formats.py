"""Mutations of the structure of binary formats: arrays, images, archives, weights, HTTP requests."""

from __future__ import annotations

import io
import random
import re
import struct
import zipfile
import zlib

from campaign.mutate import NUMBERS, WORDS, Mutate, by_bytes, change_json, text_structure

__all__ = ["by_structure"]


def by_structure(name: str) -> Mutate:
    """Return the mutation of the structure of a file of this name; for unknown formats, the mutation of bytes."""
    suffix = name.rpartition(".")[2].lower()
    return _BINARY.get(suffix) or text_structure(suffix) or by_bytes


def _npy(data: bytes, rng: random.Random) -> bytes:
    length = int.from_bytes(data[8:10], "little")
    header, body = data[10 : 10 + length].decode("latin-1"), data[10 + length :]
    kind = rng.randrange(4)
    if kind == 0:
        header = re.sub(r"'descr': '[^']*'", f"'descr': {rng.choice(_DTYPES)!r}", header)
    elif kind == 1:
        shape = tuple(rng.choice(NUMBERS) for _ in range(rng.randrange(5)))
        header = re.sub(r"'shape': \([^)]*\)", f"'shape': {shape}", header)
    elif kind == 2:
        header = header.replace("False", rng.choice(("True", "None", "1", "open('x')", "()" * 50, "(" * 300)))
    else:
        header = header.replace("shape", rng.choice(("shap", "descr", "")))
    new = header.encode("latin-1")
    return data[:8] + len(new).to_bytes(2, "little") + new + body


_DTYPES = ("|O", "<f4", ">f8", "<c16", "|S0", "<U9", "|V8", "<M8[s]", "|b1", "<f2", "<i8", "|u1", "nonsense", "<f4,<f4")


def _idx(data: bytes, rng: random.Random) -> bytes:
    at = 4 * rng.randrange(4)
    return data[:at] + struct.pack(">I", rng.choice(NUMBERS) & 0xFFFFFFFF) + data[at + 4 :]


def _png(data: bytes, rng: random.Random) -> bytes:
    """Change chunks, with the right checksums: drop, repeat, reorder, other headers, animation, garbage."""
    chunks, at = [], 8
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    place = rng.randrange(len(chunks))
    kind, body = chunks[place]
    change = rng.randrange(7)
    if change == 0:
        del chunks[place]
    elif change == 1:
        chunks.insert(place, chunks[place])
    elif change == 2:
        rng.shuffle(chunks)
    elif change == 3:
        sides = [rng.choice((0, 1, 7, 8, 9, 60_000, 9_000, 2**31 - 1)) for _ in range(2)]
        depth, colour = rng.choice((1, 2, 4, 8, 16, 3)), rng.choice((0, 2, 3, 4, 6, 7))
        chunks[0] = (b"IHDR", struct.pack(">IIBBBBB", *sides, depth, colour, 0, 0, rng.choice((0, 1, 2))))
    elif change == 4:
        chunks[place] = (kind, by_bytes(body, rng))
    elif change == 5:
        text = zlib.compress(b"x" * 10_000_000)
        chunks.insert(1, (rng.choice((b"zTXt", b"iCCP")), b"k\x00\x00" + text))
    else:
        kinds = (b"tRNS", b"acTL", b"fcTL", b"fdAT", b"eXIf", b"PLTE", b"gAMA", b"IDAT", b"IEND")
        chunks.insert(place, (rng.choice(kinds), rng.randbytes(rng.randrange(40))))
    parts = [struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in chunks]
    return data[:8] + b"".join(parts)


def _zip(data: bytes, rng: random.Random) -> bytes:
    """Change one entry and write the archive again, so that the checksums of the archive are right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    place = rng.randrange(len(entries))
    name, body = entries[place]
    change = rng.randrange(4)
    if change == 0:
        del entries[place]
    elif change == 1:
        entries[place] = (rng.choice(("../x", "data.pkl", name + "x")), body)
    else:
        entries[place] = (name, by_bytes(body, rng))
    out = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, body in dict(entries).items():
            archive.writestr(name, body)
    return out.getvalue()


def _safetensors(data: bytes, rng: random.Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = change_json(data[8 : 8 + length], rng)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def _http(data: bytes, rng: random.Random) -> bytes:
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    at = rng.randrange(len(lines))
    paths = (
        "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/api/predict", "/samples/..%5c..", "/\x00", "//x", "*",
        "/" + "a" * 9000,
    )  # fmt: skip
    kind = rng.randrange(7)
    if kind == 0:
        method = rng.choice(("GET", "PUT", "DELETE", "TRACE", "CONNECT", "POST", "\x01", "X" * 3000))
        lines[0] = f"{method} {rng.choice(paths)} {rng.choice(('HTTP/1.1', 'HTTP/9', ''))}".encode()
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        lines.insert(at, lines[at])
    elif kind == 3 and at:
        lines[at] = lines[at].partition(b":")[0] + b": " + str(rng.choice((*WORDS, *NUMBERS))).encode(errors="replace")
    elif kind == 4:
        extra = (
            "Transfer-Encoding: chunked",
            "Content-Length: 99",
            "Host: evil.example",
            "Expect: 100-continue",
            "Upgrade: h2c",
            "Range: bytes=0-",
            "Origin: http://evil.example",
            "Content-Encoding: gzip",
        )
        lines.insert(1, rng.choice(extra).encode())
    elif kind == 5:
        query = ("model=../../x", "model=%00", "model=" + "a" * 5000, "", "model=a&model=b", "model[]=x")
        lines[0] = f"POST /api/predict?{rng.choice(query)} HTTP/1.1".encode()
    else:
        body = by_bytes(body, rng)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


_BINARY: dict[str, Mutate] = {
    "npy": _npy, "idx3-ubyte": _idx, "png": _png, "pt": _zip, "npz": _zip, "safetensors": _safetensors, "http": _http,
}  # fmt: skip
