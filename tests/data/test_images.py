from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from torchmultiset.data.examples import Examples
from torchmultiset.data.images import (
    ImageFiles,
    UnreadableImageError,
    check_files,
    image_sizes,
    letterbox,
    place_boxes,
    read_image,
    square_pixels,
    unreadable,
)


def png_header(width: int, height: int) -> bytes:
    """A PNG whose header has a size, without pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [header, b"IDAT" + zlib.compress(b""), b"IEND"]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks
    )


def extent(mask: np.ndarray) -> list[int]:
    """x, y, width and height of the True pixels."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]


@pytest.mark.parametrize(
    ("width", "height", "size", "resized", "corner"),
    [
        (640, 480, 600, (600, 450), (0, 75)),
        (480, 640, 600, (450, 600), (75, 0)),
        (10, 10, 256, (256, 256), (0, 0)),
        (3, 2, 4, (4, 3), (0, 0)),  # 2.67 rounds to 3; the remaining row is at the bottom
        (5000, 1, 64, (64, 1), (0, 31)),  # at least one pixel
        (1, 5000, 64, (1, 64), (31, 0)),
    ],
)
def test_letterbox_fills_the_larger_side_and_centres_the_other(width, height, size, resized, corner):
    placement = letterbox(np.array([[width, height]]), size)
    assert tuple(placement.resized[0]) == resized
    assert tuple(placement.corner[0]) == corner


@pytest.mark.parametrize(("width", "height"), [(64, 48), (48, 64), (301, 77), (9, 5), (50, 50)])
def test_padding_around_the_image_is_zero(tmp_path, width, height):
    Image.new("RGB", (width, height), "white").save(tmp_path / "white.png")
    pixels = read_image(tmp_path / "white.png", size=120)
    assert pixels.shape == (3, 120, 120)
    assert set(np.unique(pixels)) <= {0, 255}
    x, y, w, h = extent(pixels[0] > 0)
    assert (pixels[:, y : y + h, x : x + w] == 255).all()
    assert max(w, h) == 120
    assert min(w, h) == pytest.approx(120 * min(width, height) / max(width, height), abs=0.5)
    assert abs(x - (120 - x - w)) <= 1
    assert abs(y - (120 - y - h)) <= 1


@pytest.mark.parametrize("size", [150, 600])  # made smaller, made larger
@pytest.mark.parametrize(
    ("annotated", "stored"),
    [
        ((333, 217), (333, 217)),
        ((217, 333), (217, 333)),
        ((333, 217), (256, 256)),  # squashed
        ((217, 333), (256, 256)),
        ((640, 426), (320, 213)),
    ],
)
def test_a_coloured_rectangle_fills_its_placed_box(tmp_path, annotated, stored, size):
    x, y, w, h = 40, 90, 120, 60
    picture = Image.new("RGB", annotated, "blue")
    ImageDraw.Draw(picture).rectangle((x, y, x + w - 1, y + h - 1), fill="red")
    picture.resize(stored).save(tmp_path / "picture.png")

    pixels = ImageFiles([tmp_path / "picture.png"], size)[np.array([0])][0]
    placed = place_boxes(np.array([[x, y, w, h]], dtype=float), np.array([annotated]), np.array([stored]), size)

    assert extent(pixels[0] > 127) == pytest.approx(placed[0].tolist(), abs=1.5)


@pytest.mark.parametrize(
    ("mode", "colour", "suffix", "expected"),
    [
        ("RGB", (200, 100, 50), "png", (200, 100, 50)),
        ("1", 1, "png", (255, 255, 255)),
        ("L", 77, "png", (77, 77, 77)),
        ("L", 77, "jpg", (77, 77, 77)),
        ("LA", (77, 255), "png", (77, 77, 77)),
        ("LA", (77, 0), "png", (255, 255, 255)),
        ("RGBA", (200, 100, 50, 255), "png", (200, 100, 50)),
        ("RGBA", (200, 100, 50, 0), "png", (255, 255, 255)),  # transparency on a white background
        ("RGBA", (0, 0, 0, 51), "png", (204, 204, 204)),
        ("CMYK", (0, 255, 255, 0), "jpg", (255, 0, 0)),
        ("CMYK", (0, 255, 255, 0), "tif", (255, 0, 0)),
        ("I;16", 0x8000, "png", (128, 128, 128)),
        ("I;16", 0xFFFF, "tif", (255, 255, 255)),
    ],
)
def test_every_mode_is_converted_to_rgb(tmp_path, mode, colour, suffix, expected):
    path = tmp_path / f"image.{suffix}"
    Image.new(mode, (8, 8), colour).save(path)
    pixels = read_image(path, size=8).reshape(3, -1).astype(int)
    assert np.abs(pixels - np.array(expected)[:, None]).max() <= 2 * (suffix == "jpg")


def test_palettes_are_converted_with_transparent_entries_white(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([200, 100, 50, 9, 8, 7])
    image.putdata([0, 1])
    image.save(tmp_path / "opaque.png")
    image.save(tmp_path / "transparent.png", transparency=1)
    image.save(tmp_path / "transparent.gif", transparency=1)
    assert read_image(tmp_path / "opaque.png", size=2)[:, 0].T.tolist() == [[200, 100, 50], [9, 8, 7]]
    for name in ("transparent.png", "transparent.gif"):
        assert read_image(tmp_path / name, size=2)[:, 0].T.tolist() == [[200, 100, 50], [255, 255, 255]]


TURNS = {  # EXIF orientation -> transformation of the stored pixels for display
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a),
}


@pytest.mark.parametrize("alpha", [False, True])
@pytest.mark.parametrize("orientation", TURNS)
def test_exif_orientations_are_applied_only_on_request(tmp_path, orientation, alpha):
    stored = np.random.default_rng(0).integers(0, 255, (6, 9, 3), dtype=np.uint8)
    image, turned = Image.fromarray(stored), Image.fromarray(np.ascontiguousarray(TURNS[orientation](stored)))
    if alpha:
        image.putalpha(255)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "tagged.png", exif=exif)
    turned.save(tmp_path / "turned.png")
    Image.fromarray(stored).save(tmp_path / "stored.png")
    tagged = tmp_path / "tagged.png"
    np.testing.assert_array_equal(read_image(tagged, 12), read_image(tmp_path / "stored.png", 12))
    np.testing.assert_array_equal(read_image(tagged, 12, exif=True), read_image(tmp_path / "turned.png", 12))
    assert image_sizes([tagged]).tolist() == [[9, 6]]
    assert image_sizes([tagged], exif=True).tolist() == [list(turned.size)]
    by_files = ImageFiles([tagged], 12, exif=True)[np.array([0])][0]
    np.testing.assert_array_equal(by_files, read_image(tagged, 12, exif=True))


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(("width", "height"), [(640, 480), (483, 640), (200, 150), (600, 30)])
def test_decoding_a_large_jpeg_at_a_lower_resolution_gives_nearly_the_same_pixels(tmp_path, orientation, width, height):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8))
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "a.jpg", quality=95, exif=exif)
    with Image.open(tmp_path / "a.jpg") as whole:
        whole.load()
        expected = square_pixels(whole, 72, exif=True)
    found = read_image(tmp_path / "a.jpg", 72, exif=True)
    off = np.abs(found.astype(int) - expected)
    assert off.mean() < 1.5
    assert np.array_equal(found.any(0).any(0), expected.any(0).any(0))  # the same columns are part of the image


def test_a_batch_has_the_requested_images_in_order(tmp_path):
    for shade in (10, 20, 30):
        Image.new("L", (4, 4), shade).save(tmp_path / f"{shade}.png")
    files = ImageFiles([tmp_path / f"{shade}.png" for shade in (10, 20, 30)], size=4)
    assert len(files) == 3
    batch = files[np.array([2, 0, 2])]
    assert batch.dtype == np.uint8
    assert batch[:, 0, 0, 0].tolist() == [30, 10, 30]
    assert files[np.array([], dtype=np.int64)].shape == (0, 3, 4, 4)
    examples = Examples(files, np.array([[0], [1], [0]]), classes=("a", "b")).subset([1, 2])
    assert examples.batch([0]).x[0, :, 0, 0].tolist() == [20, 20, 20]


def test_missing_files_are_listed_in_one_error(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "there.png")
    paths = [tmp_path / "there.png", *(tmp_path / f"missing-{i}.png" for i in range(12))]
    with pytest.raises(FileNotFoundError) as error:
        check_files(paths)
    message = str(error.value)
    assert "12 of 13" in message
    assert "there.png" not in message
    assert all(f"missing-{i}.png" in message for i in range(10))
    assert "missing-10.png" not in message
    assert "2 more" in message


def test_files_that_are_not_images_are_listed_in_one_error(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "good.jpg", quality=95)
    (tmp_path / "text.jpg").write_text("not an image")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "good.jpg").read_bytes()[:-200])
    Image.new("F", (4, 4)).save(tmp_path / "float.tif")
    names = ["good.jpg", "text.jpg", "empty.png", "cut.jpg", "float.tif"]
    paths = [tmp_path / name for name in names]

    with pytest.raises(UnreadableImageError) as error:
        ImageFiles(paths, 32)[np.arange(5)]
    message = str(error.value)
    assert message.startswith("4 images")
    assert "good.jpg" not in message
    for name, reason in [
        ("text.jpg", "not an image"),
        ("empty.png", "not an image"),
        ("cut.jpg", "truncated"),
        ("float.tif", "32-bit"),
    ]:
        assert any(name in line and reason in line for line in message.splitlines())

    assert list(unreadable(paths)) == [1, 2, 3, 4]
    with pytest.raises(UnreadableImageError, match="2 images cannot be read"):
        image_sizes(paths)  # only headers are read, and those of cut.jpg and float.tif are valid


@pytest.mark.parametrize("side", [10_000, 60_000])  # Pillow warns about the first and refuses the second
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path, side):
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(side, side))
    for read in (lambda: read_image(path), lambda: image_sizes([path]), lambda: ImageFiles([path])[np.array([0])]):
        with pytest.raises(UnreadableImageError, match=r"bomb\.png: too many pixels"):
            read()
    assert "MAX_IMAGE_PIXELS" in unreadable([path])[0]


def test_a_bomb_is_refused_if_warnings_are_errors(tmp_path):
    (tmp_path / "bomb.png").write_bytes(png_header(10_000, 10_000))
    with pytest.raises(UnreadableImageError, match="too many pixels"):
        read_image(tmp_path / "bomb.png")


def test_the_limit_of_pixels_equals_that_of_pillow(tmp_path, monkeypatch):
    Image.new("L", (10, 11)).save(tmp_path / "image.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 110)
    assert read_image(tmp_path / "image.png", 4).shape == (3, 4, 4)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 109)
    with pytest.raises(UnreadableImageError):
        read_image(tmp_path / "image.png", 4)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert read_image(tmp_path / "image.png", 4).shape == (3, 4, 4)


def test_image_sizes_are_width_and_height_as_stored(tmp_path):
    paths: list[Path] = []
    for width, height in [(7, 3), (3, 7)]:
        paths.append(tmp_path / f"{width}x{height}.jpg")
        Image.new("RGB", (width, height)).save(paths[-1])
    assert image_sizes(paths).tolist() == [[7, 3], [3, 7]]
    assert image_sizes([]).shape == (0, 2)


def test_progress_is_shown_only_on_request(tmp_path, capsys):
    Image.new("RGB", (7, 3)).save(tmp_path / "image.png")
    image_sizes([tmp_path / "image.png"])
    assert capsys.readouterr() == ("", "")
    assert image_sizes([tmp_path / "image.png"], progress=True).tolist() == [[7, 3]]
    assert "Reading image sizes" in capsys.readouterr().err


def test_a_size_below_one_is_refused():
    with pytest.raises(ValueError, match="size must be at least 1"):
        ImageFiles([], size=0)
