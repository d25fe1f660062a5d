from __future__ import annotations

import base64
import io
import json
import math
import re
import struct
import warnings
import zlib
from collections import Counter

import httpx
import numpy as np
import pytest
import torch
from page_models import CLASSES, SIDE, STATIC, predictor, samples, save
from PIL import Image
from served_page import serving

from torchmultiset.encoders import MLPEncoder
from torchmultiset.model.predictor import Predictor
from torchmultiset.model.shipped import NAMES, locate
from torchmultiset.page import server
from torchmultiset.page.server import Rate, create_app
from torchmultiset.page.watching import PageModel
from torchmultiset.policies import LSTMPolicy

pytestmark = pytest.mark.slow

with warnings.catch_warnings():  # Starlette recommends the successor of httpx
    warnings.filterwarnings("ignore", "Using `httpx`")
    from fastapi.testclient import TestClient

LOCAL = "http://127.0.0.1"


def client(*models, **options):
    return TestClient(create_app([PageModel.open(name) for name in models], **options), base_url=LOCAL)


@pytest.fixture(scope="module")
def digits():
    """A client of the page with one included model and a high rate limit."""
    with client("mnist-multi-4", rate=Rate(number=10_000)) as ready:
        yield ready


@pytest.fixture(scope="module")
def shipped():
    """A client of the page with all included models and a high rate limit."""
    with client(*NAMES, rate=Rate(number=10_000)) as ready:
        yield ready


@pytest.fixture
def page(tmp_path):
    """Return a function that opens a client of the page with the given models."""

    def ready(*models):
        return client(*(save(model, tmp_path / str(i)) for i, model in enumerate(models)))

    return ready


def send(page, image, model=None, kind="image/png"):
    name = model or page.get("/api/models").json()["models"][0]["name"]
    return page.post("/api/predict", params={"model": name}, content=image, headers={"Content-Type": kind})


def png(pixels, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", **options)
    return file.getvalue()


def noise(channels=1, seed=0):
    shape = (SIDE, SIDE) if channels == 1 else (SIDE, SIDE, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def as_input(pixels):
    return torch.from_numpy(pixels.reshape(SIDE, SIDE, -1).transpose(2, 0, 1)[None].copy())


def label_list(multiset):
    return [name for name, count in multiset for _ in range(count)]


# Steps and predictions


def shipped_samples():
    """Included models, each with the samples of its input size that have a multiset it can predict."""
    for name in NAMES:
        description = json.loads((locate(name) / "predictor.json").read_text())
        side, most = description["record"]["input"]["shape"][-1], description["max_size"]
        for size in range(most if description["stop"] == "fixed" else 1, most + 1):
            for path, labels in samples(side, size).items():
                yield pytest.param(name, path, labels, id=f"{name} {path.stem}")


def test_each_included_model_has_samples():
    assert {case.values[0] for case in shipped_samples()} == {*NAMES}


@pytest.mark.parametrize(("name", "path", "labels"), shipped_samples())
def test_samples_are_predicted_correctly(shipped, name, path, labels):
    result = send(shipped, path.read_bytes(), name).json()
    assert label_list(result["answer"]) == labels
    emitted = [step["named"] for step in result["steps"] if step["named"] is not None]
    one_by_one = Predictor.load(name).steps > 0
    assert sorted(result["classes"][label] for label in emitted) == (labels if one_by_one else [])
    assert result["best"][0] == {"multiset": result["answer"], "probability": result["probability"], "answer": True}
    assert 0.67 ** len(labels) < result["probability"] <= 1


@pytest.mark.parametrize("stop", ["fixed", "policy", "end"])
@pytest.mark.parametrize("seed", range(3))
def test_steps_equal_those_of_the_predictor(page, stop, seed):
    model = predictor(stop, seed=seed)
    pixels = noise(seed=seed)
    explained = model.explain(as_input(pixels))
    sequence = [model.classes[label] for label in explained.sequence[0].tolist() if label >= 0]
    result = send(page(model), png(pixels)).json()
    emitted = [step["named"] for step in result["steps"]]
    kept = emitted if result["ends"] == "fixed" else emitted[:-1]
    assert [result["classes"][label] for label in kept] == sequence
    assert Counter(label_list(result["answer"])) == Counter(sequence)
    for step, row in zip(result["steps"], explained.probabilities[0].tolist(), strict=False):
        assert step["probabilities"] == pytest.approx(row, abs=1e-4)
        assert step["entropy"] == pytest.approx(-sum(p * math.log(p) for p in row), abs=1e-3)
        assert (step["stop"] is None) == (stop != "policy")
    probabilities = [one["probability"] for one in result["best"]]
    assert probabilities == sorted(probabilities, reverse=True)
    assert result["probability"] == pytest.approx(float(explained.confidence[0]), abs=1e-4)


@pytest.mark.parametrize(("bias", "size", "ends"), [(9.0, 0, "policy"), (-9.0, 3, "full")])
def test_a_stop_head_may_stop_at_once_or_never(page, bias, size, ends):
    model = predictor("policy")
    for parameter in model.stop_head.parameters():
        torch.nn.init.constant_(parameter, bias if parameter.ndim == 1 else 0.0)
    result = send(page(model), png(noise())).json()
    assert (len(label_list(result["answer"])), result["ends"], len(result["steps"])) == (size, ends, size + 1)
    assert result["steps"][0]["stop"] == pytest.approx(1 / (1 + math.exp(-bias)), abs=1e-4)


def test_a_one_step_model_has_one_step_and_no_probability(page):
    model = predictor("one-step")
    result = send(page(model), png(noise())).json()
    assert (result["ends"], result["probability"], result["best"]) == ("at once", None, [])
    assert [step["named"] for step in result["steps"]] == [None]
    assert label_list(result["answer"]) == model.predict_labels(as_input(noise()))[0]


def test_a_count_model_has_probabilities_of_classes_and_multisets(page):
    model = predictor("counts")
    result = send(page(model), png(noise())).json()
    x = as_input(noise())
    belief = model.belief(x)
    exactly = belief.count_probabilities()[0]
    (step,) = result["steps"]
    assert (result["ends"], step["named"], step["stop"]) == ("at once", None, None)
    assert result["classes"] == ["apple", "pear", "plum"]
    assert step["probabilities"] == pytest.approx([1 - row[0] for row in exactly.tolist()], abs=1e-4)
    entropy = -sum(p * math.log(p) for row in exactly.tolist() for p in row if p > 0)
    assert step["entropy"] == pytest.approx(entropy, abs=1e-3)
    assert label_list(result["answer"]) == model.predict_labels(x)[0]
    assert result["probability"] == pytest.approx(belief.log_probability(belief.best()).exp().item(), rel=1e-3)
    assert [one["answer"] for one in result["best"]] == [True, False, False, False, False]
    chances = belief.ranked(5).log_probability[0].exp().tolist()
    assert [one["probability"] for one in result["best"]] == pytest.approx(chances, rel=1e-3)


def test_an_image_for_a_count_model_is_encoded_once(tmp_path):
    model, encoded = PageModel.open(save(predictor("counts"), tmp_path)), []
    model.predictor.encoder.register_forward_hook(lambda *_: encoded.append(1))
    result = model.watch(png(noise()))
    assert encoded == [1]
    places = model.predictor.places(as_input(noise()))[0].sum(0)
    assert np.array(result["places"]) == pytest.approx(places.numpy(), abs=1e-3)


def test_the_most_probable_of_many_classes_of_a_count_model_are_shown(page):
    model = predictor("counts", classes=tuple(f"thing {i}" for i in range(40)))
    result = send(page(model), png(noise())).json()
    assert (len(result["classes"]), result["others"]) == (12, 28)
    occurs = (1 - model.belief(as_input(noise())).count_probabilities()[0, :, 0]).tolist()
    (step,) = result["steps"]
    assert sorted(step["probabilities"], reverse=True) == pytest.approx(sorted(occurs, reverse=True)[:12], abs=1e-4)
    absent = math.prod(1 - p for i, p in enumerate(occurs) if f"thing {i}" not in result["classes"])
    assert step["rest"] == pytest.approx(1 - absent, abs=1e-3)


def test_the_most_probable_of_many_classes_of_a_policy_are_shown(page):
    model = predictor("fixed", classes=tuple(f"thing {i}" for i in range(40)))
    result = send(page(model), png(noise())).json()
    assert (len(result["classes"]), result["others"]) == (12, 28)
    rows = model.explain(as_input(noise())).probabilities[0]
    for step, row in zip(result["steps"], rows, strict=True):
        shown = dict(zip(result["classes"], step["probabilities"], strict=True))
        assert {name: round(float(row[int(name.split()[1])]), 4) for name in shown} == shown
        assert sum(shown.values()) + step["rest"] == pytest.approx(1, abs=1e-3)
        assert f"thing {int(row.argmax())}" in shown


# Images


def test_images_are_scaled_to_fit_their_larger_side(digits):
    wide = np.full((50, 200, 3), 255, dtype=np.uint8)
    seen = send(digits, png(wide)).json()["seen"]
    with Image.open(io.BytesIO(base64.b64decode(seen.removeprefix("data:image/png;base64,")))) as image:
        pixels = np.asarray(image)
    assert pixels.shape == (100, 100)
    rows = np.flatnonzero(pixels.all(1))
    assert rows.tolist() == list(range(37, 62))
    assert not np.delete(pixels, rows, 0).any()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_common_image_formats_are_accepted(page, kind):
    file = io.BytesIO()
    Image.fromarray(noise(3)).save(file, kind)
    response = send(page(predictor("fixed", channels=3)), file.getvalue(), kind="application/octet-stream")
    assert response.status_code == 200
    assert response.json()["seen"].startswith("data:image/jpeg;base64,")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
WHOLE = png(noise())


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"", "not an image"),
        (b"some text", "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        (EPS, "not an image"),
        (WHOLE[:8], "not an image"),
        (WHOLE[: len(WHOLE) // 2], "damaged"),
    ],
)
def test_files_that_are_not_images_are_refused_with_a_clear_message(digits, image, message):
    response = send(digits, image)
    assert response.status_code == 422
    assert message in response.json()["detail"]
    assert not re.search(r"/|Error|Traceback", response.json()["detail"])


def claiming(width, height):
    """A PNG whose header has another size than its data."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(5001, 5000), (10_000, 10_000), (60_000, 60_000)])
def test_an_image_of_too_many_pixels_is_not_decoded(digits, size):
    response = send(digits, claiming(*size))
    assert (response.status_code, response.json()["detail"]) == (
        422,
        "This image has too many pixels. The limit is 25 million: make it smaller.",
    )


# Limits


@pytest.mark.parametrize("with_length", [True, False], ids=["with length", "chunked"])
def test_a_large_file_is_refused(digits, monkeypatch, with_length):
    monkeypatch.setattr(server, "MAX_BYTES", 1000)
    pieces = [WHOLE[:500], bytes(501)]
    response = send(digits, b"".join(pieces) if with_length else iter(pieces))
    assert response.status_code == 413
    assert "too large" in response.json()["detail"]


def test_a_file_of_the_maximum_size_is_accepted(digits, monkeypatch):
    monkeypatch.setattr(server, "MAX_BYTES", len(WHOLE))
    assert send(digits, WHOLE).status_code == 200


def test_too_many_requests_are_rejected(tmp_path):
    now = [0.0]
    page = client(save(predictor("fixed"), tmp_path), rate=Rate(number=2, seconds=10, clock=lambda: now[0]))
    codes = []
    for now[0] in (0.0, 4.0, 7.5, 9.0, 10.0, 10.5):
        response = send(page, WHOLE)
        codes.append(response.status_code)
        if now[0] == 7.5:
            assert response.json() == {"detail": "Too many requests. Try again in 3 seconds."}
            assert response.headers["Retry-After"] == "3"
    assert codes == [200, 200, 429, 429, 200, 429]


def test_the_rate_forgets_clients():
    now = [0.0]
    rate = Rate(number=1, seconds=10, clock=lambda: now[0])
    for client_number in range(1500):
        assert rate.wait(str(client_number)) == 0
    now[0] = 20.0
    assert rate.wait("one more") == 0
    assert len(rate._requests) == 1


def test_invalid_requests_are_refused(digits):
    assert send(digits, WHOLE, model="no-such-model").status_code == 404
    assert send(digits, WHOLE, kind="text/plain").status_code == 415
    assert send(digits, WHOLE, kind="multipart/form-data; boundary=x").status_code == 415
    assert digits.get("/api/predict").status_code in (404, 405)


# Other hosts


GUARDED = """if True:
    import socket, sys

    elsewhere = []

    def guard(event, arguments):
        if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"):
            address = arguments[1]
            host = address[0] if isinstance(address, tuple) else None  # None: a file, or an existing connection
        elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
            host = arguments[0]
        else:
            return
        if host not in (None, "127.0.0.1", "::1", "localhost"):
            elsewhere.append((event, arguments))
            raise ConnectionRefusedError

    sys.addaudithook(guard)
    for attempt in (lambda: socket.socket().connect(("192.0.2.1", 9)), lambda: socket.getaddrinfo("example.org", 80)):
        try:
            attempt()
        except ConnectionRefusedError:
            elsewhere.pop()
        else:
            sys.exit("the guard does not work")
    from torchmultiset.cli import main
    code = main(["demo", "--port", "0"])
    print(*elsewhere, end="", file=sys.stderr)
    sys.exit(code)
"""
"""A program that runs `multiset demo`, refuses connections to other hosts and reports attempts."""


def test_the_server_connects_to_no_other_host(tmp_path):
    with (
        serving("-c", GUARDED, cwd=tmp_path) as address,
        httpx.Client(base_url=address, trust_env=False, timeout=60) as page,
    ):
        assert page.get("/").status_code == 200
        models = page.get("/api/models").json()["models"]
        assert [model["name"] for model in models] == [*NAMES]
        for model in models:
            sample = page.get(model["samples"][0]["file"])
            assert send(page, sample.content, model["name"]).json()["answer"]


def test_every_response_forbids_requests_to_other_hosts(digits):
    for address in ("/", "/app.js", "/style.css", "/api/models", "/no-such-file"):
        policy = digits.get(address).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
    assert "default-src 'none'" in send(digits, b"").headers["Content-Security-Policy"]


def test_the_page_refers_to_no_other_host():
    files = [path for path in STATIC.rglob("*") if path.suffix in (".html", ".css", ".js", ".svg")]
    assert len(files) >= 5
    for path in files:
        text = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|url\(|@import|//[a-z]", text), path.name
        assert " style=" not in text, path.name
        assert "<script>" not in text, path.name


@pytest.mark.parametrize("address", ["/docs", "/redoc", "/openapi.json", "/../server.py", "/%2e%2e/server.py"])
def test_no_other_path_is_served(digits, address):
    assert digits.get(address).status_code == 404


def test_requests_with_other_host_names_are_refused(tmp_path):
    model = save(predictor("fixed"), tmp_path)
    page = client(model)
    for host, code in {"localhost:8000": 200, "[::1]:8000": 200, "127.0.0.1": 200, "evil.example": 421}.items():
        assert page.get("/api/models", headers={"Host": host}).status_code == code
    assert client(model, hosts=None).get("/", headers={"Host": "my.computer"}).status_code == 200


# Models


def test_models_are_described(page):
    first, second = page(predictor("fixed"), predictor("policy", channels=3)).get("/api/models").json()["models"]
    assert (first["fixed"], first["channels"], first["side"], first["max_size"]) == (True, 1, SIDE, 3)
    assert first["classes"] == ["apple", "pear", "plum"]
    assert first["samples"] == []
    assert (second["fixed"], second["channels"]) == (False, 3)


def test_models_are_described_with_their_samples(digits):
    (described,) = digits.get("/api/models").json()["models"]
    assert described["exact_match"] == pytest.approx(0.9548)
    assert {sample["file"]: sample["labels"] for sample in described["samples"]} == {
        f"samples/{path.name}": labels for path, labels in samples().items()
    }
    for sample in described["samples"]:
        served = digits.get(sample["file"])
        assert served.headers["Content-Type"] == "image/png"
        assert len(served.content) < 3500


def test_models_that_the_page_cannot_use_are_refused(tmp_path):
    vectors = Predictor(MLPEncoder(7, (8,)), LSTMPolicy(2, 8, hidden=4), ("a", "b"), max_size=2)
    with pytest.raises(ValueError, match="reads vectors of 7 numbers, not images"):
        PageModel.open(save(vectors, tmp_path / "vectors", (7,)))
    predictor("fixed").save(tmp_path / "silent")
    with pytest.raises(ValueError, match="silent: the model's record does not describe its inputs"):
        PageModel.open(str(tmp_path / "silent"))
    with pytest.raises(FileNotFoundError, match="there is no model"):
        PageModel.open("no-such-model")


# Count heads, hints, and samples of user data


def test_a_count_head_has_distributions_of_counts_and_a_map_of_positions(page):
    model = predictor("counts")
    result = send(page(model), png(noise())).json()
    x = as_input(noise())
    chances = model.belief(x).count_probabilities()[0]
    for name, row in zip(result["classes"], result["counts"], strict=True):
        assert row == pytest.approx(chances[CLASSES.index(name), : len(row)].tolist(), abs=1e-4)
    assert len(result["counts"][0]) >= 3
    places = np.array(result["places"])
    scores = model.head(model.encoder(x))
    counted = 1 - scores.softmax(-1)[0, :, -1]
    height, width = model.encoder(x).shape[2:]
    left, right, top, bottom = model.encoder.missing_cells(*x.shape[2:])
    assert places.shape == (top + height + bottom, left + width + right)
    inner = places[top : top + height, left : left + width]
    assert inner.ravel().tolist() == pytest.approx(counted.tolist(), abs=1e-3)
    assert places.sum() == pytest.approx(inner.sum())


def test_a_policy_has_no_distributions_of_counts_and_no_map(page):
    result = send(page(predictor("policy")), png(noise())).json()
    assert (result["counts"], result["places"]) == ([], None)
    kinds = page(predictor("policy"), predictor("counts"), predictor("one-step")).get("/api/models").json()["models"]
    assert [model["kind"] for model in kinds] == ["policy", "counts", "shares"]


def test_unusual_images_get_hints(digits, page):
    path = next(iter(samples()))
    with Image.open(path) as image:
        dark = np.asarray(image)
    assert send(digits, png(dark)).json()["hints"] == []
    (hint,) = send(digits, png(255 - dark)).json()["hints"]
    assert hint == "The model was trained on images with a dark background, but this one is light: invert it."
    wide = np.zeros((40, 90), np.uint8)
    assert "not square (90 x 40 pixels)" in send(digits, png(wide)).json()["hints"][0]
    assert "enlarged to 100 x 100" in send(digits, png(dark[:30, :30])).json()["hints"][0]
    assert send(page(predictor("counts")), png(noise())).json()["hints"] == []  # its training data is unknown


def test_a_run_has_samples_of_its_test_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    lines = ["image,labels,split"]
    for i in range(12):
        Image.fromarray(noise(3, seed=i)).save(tmp_path / "pictures" / f"{i}.png")
        lines.append(f"{i}.png,{'pear;apple' if i % 2 else 'plum'},{'test' if i > 1 else 'train'}")
    (tmp_path / "pictures" / "labels.csv").write_text("\n".join(lines))
    save(predictor("counts", channels=3), tmp_path / "run" / "model")
    (tmp_path / "run" / "config.toml").write_text("data = 'pictures'\n")
    with client("run") as ready:
        (described,) = ready.get("/api/models").json()["models"]
        assert described["from_own_data"]
        assert [sample["labels"] for sample in described["samples"]] == 4 * [["plum"], ["apple", "pear"]]
        third = ready.get(described["samples"][2]["file"])
        assert third.headers["content-type"] == "image/png"
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(third.content))), noise(3, seed=4))
        for wrong in ("model=run&index=8", "model=run&index=-1", "model=no&index=0"):
            assert ready.get(f"/api/sample?{wrong}").status_code == 404
    (tmp_path / "pictures" / "labels.csv").unlink()
    with client("run") as ready:
        (described,) = ready.get("/api/models").json()["models"]
        assert (described["samples"], described["from_own_data"]) == ([], False)


def test_the_api_works_without_the_page(tmp_path):
    names = [save(predictor(stop), tmp_path / stop) for stop in ("counts", "policy")]
    with client(*names, page=False) as ready:
        assert ready.get("/").status_code == 404
        assert [model["name"] for model in ready.get("/api/models").json()["models"]] == names
        headers = {"Content-Type": "image/png"}
        result = ready.post("/api/predict", content=png(noise()), headers=headers).json()
        assert result["answer"] == send(ready, png(noise()), names[0]).json()["answer"]
        assert result["counts"]  # the first model, a count head
        wrong = ready.post("/api/predict?model=no", content=png(noise()), headers=headers)
        assert (wrong.status_code, wrong.json()["detail"]) == (
            404,
            "There is no model no here. GET /api/models lists the models.",
        )
        codes = [ready.post("/api/predict", content=b"", headers=headers).status_code for _ in range(59)]
        assert codes == [422] * 58 + [429]  # 60 predictions per minute, including the two above
