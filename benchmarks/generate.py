"""MNIST Multi: images per second compared with a plain loop over images, and memory of a full build."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from torchmultiset.data.digits import DigitPools, Digits, load_digits
from torchmultiset.data.mnist_multi import VARIANTS, MnistMulti, build, generate

Resize = Callable[[UInt8[np.ndarray, "28 28"], int], UInt8[np.ndarray, "px px"]]


def measure_all(images: int = 1000, rounds: int = 5) -> dict[str, Any]:
    """Time both implementations in turn and keep the best round of each; then build `4` in another process."""
    pools = load_digits()
    resize, library = _resize()
    result: dict[str, Any] = {"digits": pools.name, "plain loop resizes with": library, "speed": {}}
    for name, parameters in VARIANTS.items():
        plain, ours = [], []
        generate(parameters, pools.train, "train", range(images))
        for _ in range(rounds):
            start = time.perf_counter()
            for i in range(images):
                plain_image(parameters, pools.train, i, resize)
            middle = time.perf_counter()
            generate(parameters, pools.train, "train", range(images))
            plain.append(middle - start)
            ours.append(time.perf_counter() - middle)
        result["speed"][name] = {
            "plain loop, images/s": images / min(plain),
            "generate, images/s": images / min(ours),
            "ratio": min(plain) / min(ours),
        }
    result["build of 4"] = _measure_build(pools)
    return result


def plain_image(parameters: MnistMulti, digits: Digits, i: int, resize: Resize) -> UInt8[np.ndarray, "h h"]:
    """Generate one image by the same rules with a straightforward loop."""
    rng = np.random.default_rng([parameters.seed, i])
    canvas = np.zeros((parameters.canvas, parameters.canvas), dtype=np.uint8)
    px = parameters.clutter_px
    for digit in rng.integers(len(digits.images), size=parameters.clutter):
        y, x = rng.integers(28 - px + 1, size=2)
        patch = digits.images[digit, y : y + px, x : x + px]
        y, x = rng.integers(parameters.canvas - px + 1, size=2)
        np.copyto(canvas[y : y + px, x : x + px], patch, where=patch > 0)
    count = rng.integers(parameters.sizes[0], parameters.sizes[1] + 1)
    sizes = rng.integers(parameters.digit_px[0], parameters.digit_px[1] + 1, size=count)
    chosen = rng.integers(len(digits.images), size=count)
    cell = sizes.max()
    side = parameters.canvas // cell
    for px, digit, place in zip(sizes.tolist(), chosen, rng.permutation(side * side), strict=False):
        y, x = np.array(divmod(place, side)) * cell + rng.integers(cell - px + 1, size=2)
        patch = resize(digits.images[digit], px)
        np.copyto(canvas[y : y + px, x : x + px], patch, where=patch > 0)
    return canvas


def _resize() -> tuple[Resize, str]:
    if importlib.util.find_spec("cv2"):
        import cv2

        cv2.setNumThreads(1)
        return lambda image, px: cv2.resize(image, (px, px), interpolation=cv2.INTER_LINEAR), "OpenCV"
    from PIL import Image

    return lambda image, px: np.asarray(Image.fromarray(image).resize((px, px), Image.Resampling.BILINEAR)), "Pillow"


def _measure_build(pools: DigitPools) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        # Passed as arrays, so that the memory for reading MNIST is not counted.
        for split in ("train", "test"):
            digits: Digits = getattr(pools, split)
            np.save(f"{folder}/{split}-images.npy", digits.images)
            np.save(f"{folder}/{split}-labels.npy", digits.labels)
        done = subprocess.run([sys.executable, __file__, folder], capture_output=True, text=True, check=True)
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def _build(folder: Path) -> dict[str, Any]:
    """Build `4` and return the peak memory of this process; the output is on disk and not included."""

    def digits(split: str) -> Digits:
        return Digits(np.load(folder / f"{split}-images.npy"), np.load(folder / f"{split}-labels.npy"))

    train, test = digits("train"), digits("test")
    pools = DigitPools(train, train, test, name="benchmark")
    before, start = _peak_mb(), time.perf_counter()
    splits = build(folder / "out", VARIANTS["4"], pools)
    return {
        "images": sum(map(len, splits.values())),
        "output, MB": sum(file.stat().st_size for file in (folder / "out").rglob("*.npy")) / 1e6,
        "seconds": time.perf_counter() - start,
        "peak memory of the process, MB": _peak_mb(),
        "of which before the build (Python, PyTorch, digits), MB": before,
    }


def _peak_mb() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage, which on Linux includes the memory of the parent process before exec.
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024 / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # in bytes on macOS


if __name__ == "__main__":  # in a separate process, for `_measure_build`
    print(json.dumps(_build(Path(sys.argv[1]))))
