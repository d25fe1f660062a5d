"""Image files as square inputs: the longer side is resized, the shorter one centred and zero-padded (Appendix E)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float, Float32, Int, Int64, Shaped, UInt8
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from torchmultiset._checks import check, listed
from torchmultiset.data._progress import progress_bar
from torchmultiset.data.examples import Inputs

__all__ = [
    "Grey",
    "ImageFiles",
    "Placement",
    "UnreadableImageError",
    "array_to_image",
    "check_files",
    "image_size",
    "image_sizes",
    "letterbox",
    "place_boxes",
    "read_image",
    "square_pixels",
    "unreadable",
]

_QUARTER_TURNS = (5, 6, 7, 8)  # EXIF orientations that swap width and height

_T = TypeVar("_T")


class UnreadableImageError(ValueError):
    """Error raised for a file that cannot be read as an image; the message gives the file and the reason."""


class ImageFiles:
    """`Inputs` from image files: uint8 (B, 3, size, size), decoded when a batch is read.

    Every image is converted to RGB: grey images repeat their channel, 16-bit images keep their high byte, transparent
    images are composited on white. An image with more than ``PIL.Image.MAX_IMAGE_PIXELS`` pixels is rejected before
    it is decoded.

    Args:
        paths: The files, one per input, which are checked when they are read.
        size: Side length of the square inputs, in pixels.
        exif: Apply the EXIF orientation, as image viewers do; use it for photographs from phones. Off by default,
            because boxes may refer to the pixels as stored, as COCO's do.
    """

    def __init__(self, paths: Sequence[str | Path], size: int = 600, *, exif: bool = False) -> None:
        check(size >= 1, "size", "at least 1 pixel", size)
        self.paths = tuple(Path(path) for path in paths)
        self.size = size
        self.exif = exif

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> UInt8[np.ndarray, "b 3 size size"]:
        """Read the images with these indices; one error lists all that cannot be read."""
        images = np.empty((len(indices), 3, self.size, self.size), dtype=np.uint8)
        problems = []
        for row, i in enumerate(indices):
            try:
                images[row] = read_image(self.paths[i], self.size, exif=self.exif)
            except UnreadableImageError as error:
                problems.append(str(error))
        if problems:
            raise _unreadable_error(problems)
        return images


def read_image(path: str | Path, size: int = 600, *, exif: bool = False) -> UInt8[np.ndarray, "3 size size"]:
    """Read one image like `ImageFiles`.

    Args:
        path: The file.
        size: Side length of the square result, in pixels.
        exif: Apply the EXIF orientation.

    Returns:
        RGB pixels (3, size, size).

    Raises:
        UnreadableImageError: The file is not an image, is damaged or has too many pixels.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     Image.new("RGB", (4, 2), "red").save(f"{folder}/red.png")
        ...     pixels = read_image(f"{folder}/red.png", size=4)
        >>> pixels[0]  # the red channel
        array([[  0,   0,   0,   0],
               [255, 255, 255, 255],
               [255, 255, 255, 255],
               [  0,   0,   0,   0]], dtype=uint8)
    """
    with _opened(path) as image:
        # A JPEG file of a large photograph is decoded at a half, a quarter or an eighth of its size, if that is enough.
        image.draft(None, (size, size))
        return square_pixels(image, size, exif=exif)


def square_pixels(image: Image.Image, size: int, *, exif: bool = False) -> UInt8[np.ndarray, "3 size size"]:
    """Convert a Pillow image to a square input, like `read_image`.

    Args:
        image: The image, of any mode except those with 32-bit pixels.
        size: Side length of the square result, in pixels.
        exif: Apply the EXIF orientation.

    Example:
        >>> square_pixels(Image.new("L", (2, 1), 255), 2)[0]
        array([[255, 255],
               [  0,   0]], dtype=uint8)
    """
    upright = _to_rgb(ImageOps.exif_transpose(image) if exif else image)
    placement = letterbox(np.array([upright.size]), size)
    (width, height), (left, top) = placement.resized[0].tolist(), placement.corner[0].tolist()
    pixels = np.zeros((size, size, 3), dtype=np.uint8)
    small = upright.resize((width, height), Image.Resampling.BILINEAR)
    pixels[top : top + height, left : left + width] = np.asarray(small)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def array_to_image(array: Shaped[np.ndarray, "*pixels"]) -> Image.Image:
    """Convert an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) to a Pillow image.

    Args:
        array: Pixels from 0 to 255 as integers, or from 0 to 1 as floats or booleans.

    Raises:
        ValueError: The array has another shape or other values.

    Example:
        >>> array_to_image(np.ones((2, 4, 3), dtype=np.float32)).getpixel((0, 0))
        (255, 255, 255)
    """
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or array.size == 0:
        what = "an image array must have shape (height, width) or (height, width, 1, 3 or 4)"
        raise ValueError(f"{what}, but this one has {tuple(array.shape)}")
    if array.dtype.kind not in "buif":
        raise ValueError(f"an image array must be numeric, but this one has dtype {array.dtype}")
    low, high = float(array.min()), float(array.max())
    top = 1 if array.dtype.kind in "bf" else 255
    if not (low >= 0 and high <= top):  # also true for NaN
        fix = "divide it by 255" if 1 < high <= 255 and low >= 0 else "scale it"
        kind = "float" if top == 1 else "integer"
        raise ValueError(
            f"an image array of {kind}s must range from 0 to {top}, but this one is from {low:g} to {high:g}: {fix}"
        )
    pixels = np.rint(array * 255.0) if top == 1 else array
    pixels = pixels.astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)


@dataclass(frozen=True, eq=False)
class Grey:
    """`Inputs` that convert RGB images (B, 3, H, W) to grey (B, 1, H, W)."""

    inputs: Inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> UInt8[np.ndarray, "b 1 h w"]:
        # ITU-R 601 weights, as in Pillow; images that are already grey are unchanged.
        grey = np.tensordot(self.inputs[indices].astype(np.float64), np.array([0.299, 0.587, 0.114]), (1, 0))
        return np.rint(grey).astype(np.uint8)[:, None]


class Placement(NamedTuple):
    """Size and position of images inside their square inputs, in pixels of the input."""

    resized: Int64[np.ndarray, "n 2"]
    """Width and height of each resized image."""
    corner: Int64[np.ndarray, "n 2"]
    """x and y of each image's upper left corner."""


def letterbox(sizes: Int[np.ndarray, "n 2"], size: int) -> Placement:
    """Fit images into squares: the longer side fills the square, the shorter one is centred.

    Args:
        sizes: Width and height of each image (N, 2).
        size: Side length of the square.

    Example:
        >>> letterbox(np.array([[640, 480], [100, 300]]), size=600)
        Placement(resized=array([[600, 450],
               [200, 600]]), corner=array([[  0,  75],
               [200,   0]]))
    """
    resized = np.rint(sizes * (size / sizes.max(1, keepdims=True))).astype(np.int64).clip(min=1)
    return Placement(resized, (size - resized) // 2)


def place_boxes(
    boxes: Float[np.ndarray, "n 4"],
    annotated: Int[np.ndarray, "n 2"],
    stored: Int[np.ndarray, "n 2"],
    size: int,
) -> Float32[np.ndarray, "n 4"]:
    """Transform boxes from pixels of the annotated images to pixels of the inputs.

    Args:
        boxes: x, y, width and height of each box (N, 4).
        annotated: Width and height of the image that each box refers to (N, 2).
        stored: Width and height of the image in the file (N, 2). It may differ from the annotated size, also in aspect
            ratio: each axis is scaled separately.
        size: Side length of the inputs.

    Returns:
        x, y, width and height in pixels of the inputs (N, 4).

    Example:
        >>> half_left = np.array([[0.0, 0.0, 320.0, 480.0]])
        >>> place_boxes(half_left, np.array([[640, 480]]), np.array([[640, 480]]), size=600)
        array([[  0.,  75., 300., 450.]], dtype=float32)
        >>> place_boxes(half_left, np.array([[640, 480]]), np.array([[256, 256]]), size=600)  # squashed
        array([[  0.,   0., 300., 600.]], dtype=float32)
    """
    resized, corner = letterbox(stored, size)
    scale = resized / annotated
    placed = np.concatenate([boxes[:, :2] * scale + corner, boxes[:, 2:] * scale], axis=1)
    return placed.astype(np.float32)


def image_sizes(paths: Sequence[str | Path], *, exif: bool = False, progress: bool = False) -> Int64[np.ndarray, "n 2"]:
    """Return the width and height of each image (N, 2); only the headers are read.

    Args:
        paths: The files.
        exif: Apply the EXIF orientation; otherwise the sizes are those of the pixels as stored.
        progress: Show a progress bar.

    Raises:
        UnreadableImageError: Some files are not images; the message lists all of them.
    """
    sizes, problems = _attempt(partial(image_size, exif=exif), paths, "Reading image sizes", progress)
    if problems:
        raise _unreadable_error([*problems.values()])
    return np.array(sizes, dtype=np.int64).reshape(len(paths), 2)


def image_size(path: str | Path, *, exif: bool = False) -> tuple[int, int]:
    """Return the width and height of one image, like `image_sizes`."""
    with _opened(path) as image:
        turned = exif and image.getexif().get(ExifTags.Base.Orientation) in _QUARTER_TURNS
        return (image.height, image.width) if turned else image.size


def unreadable(paths: Sequence[str | Path], *, progress: bool = False) -> dict[int, str]:
    """Decode each file and return the failures: index in `paths` -> file and reason.

    Args:
        paths: The files.
        progress: Show a progress bar.

    Example:
        >>> unreadable(["no-such-file.png"])
        {0: 'no-such-file.png: [Errno 2] No such file or directory'}
    """

    def decode(path: str | Path) -> None:
        with _opened(path) as image:
            _to_rgb(image)

    _, problems = _attempt(decode, paths, "Checking images", progress)
    return problems


def check_files(paths: Sequence[str | Path]) -> None:
    """Raise a FileNotFoundError that lists all missing files."""
    missing = [str(path) for path in paths if not Path(path).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(paths)} image files are missing: {listed(missing)}\nCorrect their paths"
        )


@contextmanager
def _opened(path: str | Path) -> Iterator[Image.Image]:
    try:
        with Image.open(path) as image:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and image.width * image.height > limit:
                raise Image.DecompressionBombError(f"it has {image.width} x {image.height} pixels")
            yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableImageError(
            f"{path}: too many pixels to open safely ({error}); if you trust the file, resize it or raise "
            f"PIL.Image.MAX_IMAGE_PIXELS = {Image.MAX_IMAGE_PIXELS}"
        ) from error
    except UnidentifiedImageError as error:
        raise UnreadableImageError(f"{path}: not an image, or in a format that Pillow cannot read") from error
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow's decoders raise on damaged files
        reason = f"[Errno {error.errno}] {error.strerror}" if isinstance(error, OSError) and error.errno else error
        raise UnreadableImageError(f"{path}: {reason}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F"):
        raise ValueError("32-bit pixels have no fixed range; save the image with 8 or 16 bits per channel")
    if image.mode.startswith("I;16"):  # Pillow would clip at 255 instead of scaling
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _attempt(
    function: Callable[[_T], object], items: Sequence[_T], title: str, progress: bool
) -> tuple[list[object], dict[int, str]]:
    """Call the function for each item; return the results and the messages of unreadable items by position."""
    results: list[object] = []
    problems: dict[int, str] = {}
    with progress_bar(progress, title, len(items)) as advance:
        for position, item in enumerate(items):
            try:
                results.append(function(item))
            except UnreadableImageError as error:
                problems[position] = str(error)
            advance(1)
    return results, problems


def _unreadable_error(problems: Sequence[str]) -> UnreadableImageError:
    return UnreadableImageError(
        f"{len(problems)} image{'s' * (len(problems) > 1)} cannot be read:{listed(problems)}\n"
        "Save them again as PNG or JPEG, or remove them"
    )
