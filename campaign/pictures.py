"""Valid images of all formats, and unusual ones: 16 bits, CMYK, animated, rotated by EXIF, huge, empty."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["write_pictures"]


def write_pictures(folder: Path) -> None:
    """Write the images to a folder. Most are valid; ``bomb`` and ``zero`` are well-formed, but must be refused."""
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    for name in ("a.png", "a.jpg", "a.webp", "a.gif", "a.bmp", "a.tif", "a.ppm", "a.tga", "a.jp2", "a.ico", "a.pcx"):
        image.save(folder / name)
    image.save(folder / "progressive.jpg", progressive=True)
    image.save(folder / "lzw.tif", compression="tiff_lzw")
    image.convert("CMYK").save(folder / "cmyk.jpg")
    image.convert("P").save(folder / "palette.png")
    image.convert("RGBA").save(folder / "alpha.png")
    image.convert("LA").save(folder / "grey-alpha.png")
    image.convert("1").save(folder / "bits.png")
    deep = pixels[..., 0].astype(np.uint16) * 257
    Image.fromarray(deep).save(folder / "deep.png")
    Image.fromarray(deep).save(folder / "deep.tif")
    others = [image.rotate(90 * i).resize((30, 20)) for i in (1, 2)]
    for name in ("moving.gif", "moving.png", "moving.webp", "pages.tif"):
        image.save(folder / name, save_all=True, append_images=others)
    turned = Image.Exif()
    turned[0x0112] = 6
    image.save(folder / "turned.jpg", exif=turned)
    image.save(folder / "turned.png", exif=turned)
    (folder / "bomb.png").write_bytes(_png(50_000, 50_000, zlib.compress(bytes(1_000_000))))
    (folder / "large.png").write_bytes(_png(9_000, 9_000, zlib.compress(bytes(9_001 * 9_000))))
    (folder / "zero.png").write_bytes(_png(0, 0, zlib.compress(b"")))
    (folder / "zero.bmp").write_bytes(
        b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 0, 0, 1, 24, 0, 0, 0, 0, 0, 0)
    )
    (folder / "zero.gif").write_bytes(b"GIF89a" + bytes(7) + b"\x2c" + bytes(9) + b"\x02\x02L\x01\x00;")


def _png(width: int, height: int, content: bytes) -> bytes:
    """A grey PNG with a valid header and valid checksums."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")
