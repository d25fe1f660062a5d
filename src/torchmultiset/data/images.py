"""Image files as inputs of one size: the larger side resized, the other zero-padded, centred (Appendix E)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float, Float32, Int, Int64, UInt8
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from torchmultiset._checks import check
from torchmultiset.data._progress import progress_bar
from torchmultiset.data.examples import Inputs

__all__ = [
    "Grey",
    "ImageFiles",
    "Placement",
    "UnreadableImageError",
    "check_files",
    "image_sizes",
    "letterbox",
    "place_boxes",
    "read_image",
    "unreadable",
]

_SHOWN = 10  # how many files an error names before it only counts them
_QUARTER_TURNS = (5, 6, 7, 8)  # EXIF orientations that swap width and height

_T = TypeVar("_T")


class UnreadableImageError(ValueError):
    """A file that cannot be read as an image; the message names it and says why."""


class ImageFiles:
    """The `Inputs` of a folder of images: uint8 (B, 3, size, size), decoded when a batch is read.

    Every image becomes RGB: grey ones repeat their channel, 16-bit ones keep their high byte, transparent ones
    are laid on white. An image of more than ``PIL.Image.MAX_IMAGE_PIXELS`` pixels is refused before it is
    decoded.

    Args:
        paths: The files, one for each input. All must be there; what is in them is looked at when it is read.
        size: Side of the square inputs, in pixels.
        exif: Turn each image the way its EXIF tag says, as a viewer shows it: right for photographs that come
            from a phone. Off by default, since boxes that refer to the pixels as stored (COCO's do) would no
            longer fit.
    """

    def __init__(self, paths: Sequence[str | Path], size: int = 600, *, exif: bool = False) -> None:
        check(size >= 1, "size", "at least 1 pixel", size)
        self.paths = tuple(Path(path) for path in paths)
        self.size = size
        self.exif = exif
        check_files(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> UInt8[np.ndarray, "b 3 size size"]:
        """Read the images at these positions; one error lists all of them that cannot be read."""
        images = np.empty((len(indices), 3, self.size, self.size), dtype=np.uint8)

        def fill(row: int) -> None:
            images[row] = read_image(self.paths[indices[row]], self.size, exif=self.exif)

        _, problems = _attempt(fill, range(len(indices)))
        _refuse(problems)
        return images


def read_image(path: str | Path, size: int = 600, *, exif: bool = False) -> UInt8[np.ndarray, "3 size size"]:
    """Read one image as `ImageFiles` does.

    Args:
        path: The file.
        size: Side of the square result, in pixels.
        exif: Turn the image the way its EXIF tag says.

    Returns:
        Pixels (3, size, size), red, green and blue.

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
        upright = _to_rgb(ImageOps.exif_transpose(image) if exif else image)
        placement = letterbox(np.array([upright.size]), size)
        (width, height), (left, top) = placement.resized[0].tolist(), placement.corner[0].tolist()
        small = upright.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.zeros((size, size, 3), dtype=np.uint8)
    pixels[top : top + height, left : left + width] = np.asarray(small)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


@dataclass(frozen=True, eq=False)
class Grey:
    """Colour images as grey ones, (B, 1, H, W)."""

    inputs: Inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, indices: Int[np.ndarray, " b"], /) -> UInt8[np.ndarray, "b 1 h w"]:
        # The weights of ITU-R 601, as Pillow's: what is grey already stays as it is.
        grey = np.tensordot(self.inputs[indices].astype(np.float64), np.array([0.299, 0.587, 0.114]), (1, 0))
        return np.rint(grey).astype(np.uint8)[:, None]


class Placement(NamedTuple):
    """Where images lie in their square inputs, as width and height, x and y in pixels of the input."""

    resized: Int64[np.ndarray, "n 2"]
    """Width and height of the image in the input."""
    corner: Int64[np.ndarray, "n 2"]
    """Position of its upper left corner."""


def letterbox(sizes: Int[np.ndarray, "n 2"], size: int) -> Placement:
    """Fit images into squares: the larger side fills the square, the other one is centred.

    Args:
        sizes: Width and height of each image (N, 2).
        size: Side of the square.

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
    """Move boxes from the pixels of the annotated images to the pixels of the inputs.

    Args:
        boxes: x, y, width and height of each box (N, 4).
        annotated: Width and height of the image that the box refers to (N, 2).
        stored: Width and height of the image as its file holds it (N, 2). It may be smaller than the annotated
            one, and squeezed: each axis has a scale of its own.
        size: Side of the inputs.

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
    """Width and height of each image; only the headers are read.

    Args:
        paths: The files.
        exif: Turn each image the way its EXIF tag says. Otherwise the sizes are those of the pixels as stored.
        progress: Show a progress bar.

    Raises:
        UnreadableImageError: Some files are not images; all of them in one message.
    """

    def size(path: str | Path) -> tuple[int, int]:
        with _opened(path) as image:
            turned = exif and image.getexif().get(ExifTags.Base.Orientation) in _QUARTER_TURNS
            return (image.height, image.width) if turned else image.size

    sizes, problems = _attempt(size, paths, bar="Reading image sizes" if progress else None)
    _refuse(problems)
    return np.array(sizes, dtype=np.int64).reshape(len(paths), 2)


def unreadable(paths: Sequence[str | Path], *, progress: bool = False) -> dict[int, str]:
    """Decode each file and report those that fail: position in `paths` -> file and reason.

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

    _, problems = _attempt(decode, paths, bar="Checking images" if progress else None)
    return problems


def check_files(paths: Sequence[str | Path]) -> None:
    """Raise one FileNotFoundError for all files that are not there."""
    missing = [str(path) for path in paths if not Path(path).is_file()]
    if missing:
        raise FileNotFoundError(f"{len(missing)} of {len(paths)} image files are missing: {_some(missing)}")


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
            f"{path}: too many pixels to be opened safely ({error}); if you trust the file, make it smaller or "
            f"raise PIL.Image.MAX_IMAGE_PIXELS = {Image.MAX_IMAGE_PIXELS}"
        ) from error
    except UnidentifiedImageError as error:
        raise UnreadableImageError(f"{path}: not an image, or of a kind that Pillow cannot read") from error
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow's decoders raise on damaged files
        reason = f"[Errno {error.errno}] {error.strerror}" if isinstance(error, OSError) and error.errno else error
        raise UnreadableImageError(f"{path}: {reason}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits have no fixed range; save it with 8 or 16 bits a channel")
    if image.mode.startswith("I;16"):  # Pillow would cut at 255 instead of scaling
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _attempt(
    function: Callable[[_T], object], items: Sequence[_T], *, bar: str | None = None
) -> tuple[list[object], dict[int, str]]:
    """Call for each item; keep the results, and the messages of those that could not be read."""
    results: list[object] = []
    problems: dict[int, str] = {}
    with progress_bar(bar is not None, bar or "", len(items)) as advance:
        for position, item in enumerate(items):
            try:
                results.append(function(item))
            except UnreadableImageError as error:
                problems[position] = str(error)
            advance(1)
    return results, problems


def _refuse(problems: Mapping[int, str]) -> None:
    if problems:
        raise UnreadableImageError(
            f"{len(problems)} image{'s' * (len(problems) > 1)} cannot be read: {_some(list(problems.values()))}"
        )


def _some(lines: Sequence[str]) -> str:
    """The first few, one a line, and how many more there are."""
    more = [f"... and {len(lines) - _SHOWN} more"] * (len(lines) > _SHOWN)
    return "".join(f"\n  {line}" for line in [*lines[:_SHOWN], *more])
