"""`Predictor.predict` on paths, images, arrays and tables."""

from __future__ import annotations

import base64
import copy
import io
import pickle
import re
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from torchmultiset import Predictor
from torchmultiset.encoders import ConvEncoder, MLPEncoder
from torchmultiset.heads import CellCounts, CountTable, OneStep
from torchmultiset.model.answers import Answer, Answers
from torchmultiset.policies import LSTMPolicy

SIDE = 16
CLASSES = ("apple", "pear")
COLUMNS = [
    {"name": "weight", "categories": [], "mean": 3.0, "empty": 0},
    {"name": "colour", "categories": ["blue", "red"], "mean": 0.0, "empty": 0},
]


def of_images(channels: int = 3, dtype: str = "uint8") -> Predictor:
    torch.manual_seed(0)
    encoder = ConvEncoder(channels, (4,))
    head = CellCounts(2, encoder.memory_shape(SIDE, SIDE)[0], hidden=8)
    predictor = Predictor(encoder, head, CLASSES, max_size=3, min_size=1)
    with torch.no_grad():
        for weight in predictor.parameters():  # so that predictions differ
            weight.mul_(5)
    predictor.record = {"input": {"shape": [channels, SIDE, SIDE], "dtype": dtype, "exif": False}}
    return predictor.eval()


def of_tables(columns: list[dict] = COLUMNS) -> Predictor:
    torch.manual_seed(0)
    head = CountTable(2, memory=8, most=3)
    predictor = Predictor(MLPEncoder(3, (8,)), head, CLASSES, max_size=3)
    predictor.record = {"input": {"shape": [3], "dtype": "float32", "exif": True}, "columns": columns}
    return predictor.eval()


def picture(seed: int = 0, shape: tuple[int, ...] = (SIDE, SIDE, 3)) -> np.ndarray:
    """Noise whose brightness depends on position and channel."""
    generator = np.random.default_rng(seed)
    height, width, *colours = shape
    spots = generator.random((-(-height // 4), -(-width // 4), *colours)) ** 2
    return (255 * spots.repeat(4, 0).repeat(4, 1)[:height, :width] * generator.random(shape)).astype(np.uint8)


def counts_of(predictor: Predictor, pixels: np.ndarray) -> Counter:
    """Prediction for the tensor of these pixels (H, W, 3), by class name."""
    row = predictor.predict(torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None])[0].tolist()
    return Counter({name: count for name, count in zip(CLASSES, row, strict=True) if count})


@pytest.fixture
def folder(tmp_path):
    for i in range(3):
        Image.fromarray(picture(i)).save(tmp_path / f"{i}.png")
    return tmp_path


def test_a_tensor_is_predicted_as_a_tensor_of_counts():
    counts = of_images().predict(torch.zeros(2, 3, SIDE, SIDE, dtype=torch.uint8))
    assert (counts.shape, counts.dtype) == ((2, 2), torch.int64)


def test_one_image_in_every_form_gives_one_answer(folder):
    predictor, pixels = of_images(), picture()
    expected = counts_of(predictor, pixels)
    forms = [
        str(folder / "0.png"),
        folder / "0.png",
        Image.fromarray(pixels),
        pixels,
        pixels / np.float32(255),
        pixels / 255.0,
        pixels.astype(np.int64),
        np.dstack([pixels, np.full((SIDE, SIDE), 255, dtype=np.uint8)]),
        pixels.transpose(2, 0, 1),  # channels first
    ]
    for form in forms:
        answer = predictor.predict(form)
        assert isinstance(answer, Answer)
        assert answer == expected
        assert 0 < answer.proba < 1


def test_hidden_files_of_a_folder_are_not_read(folder):
    (folder / "._0.png").write_bytes(b"metadata of macOS")
    (folder / "__MACOSX").mkdir()
    (folder / "__MACOSX" / "1.png").write_bytes(b"metadata in an archive")
    assert [answer.name for answer in of_images().predict(folder)] == [str(folder / f"{i}.png") for i in range(3)]


def test_several_images_in_every_form_give_answers_in_order(folder):
    predictor, stack = of_images(), np.stack([picture(i) for i in range(3)])
    expected = [counts_of(predictor, pixels) for pixels in stack]
    paths = [folder / f"{i}.png" for i in range(3)]
    images = [Image.fromarray(pixels) for pixels in stack]
    for form in (folder, str(folder / "*.png"), paths, [*map(str, paths)], images, stack, [*stack], tuple(stack)):
        answers = predictor.predict(form)
        assert isinstance(answers, Answers)
        assert answers == expected
    assert predictor.predict([paths[0], images[1], stack[2]]) == expected  # mixed
    assert [answer.name for answer in predictor.predict(paths)] == [*map(str, paths)]
    assert predictor.predict([]) == []


def test_images_may_have_other_sizes_and_modes(folder):
    predictor = of_images()
    wide = picture(4, (20, 40, 3))
    Image.fromarray(wide).save(folder / "wide.png")
    assert predictor.predict(wide) == predictor.predict(str(folder / "wide.png"))
    grey = picture(5, (SIDE, SIDE))
    assert predictor.predict(grey) == predictor.predict(np.dstack([grey] * 3)) == predictor.predict(grey[..., None])
    black_or_white = grey > 127
    assert predictor.predict(black_or_white) == predictor.predict(black_or_white.astype(np.float64))


def test_a_model_of_grey_images_accepts_colour_and_grey():
    predictor, pixels = of_images(channels=1), picture(1, (SIDE, SIDE))
    (row,) = predictor.predict(torch.from_numpy(pixels)[None, None]).tolist()
    expected = Counter({name: count for name, count in zip(CLASSES, row, strict=True) if count})
    for form in (pixels, pixels[None], pixels[..., None], np.dstack([pixels] * 3), Image.fromarray(pixels)):
        assert predictor.predict(form) == expected


def test_the_answer_is_a_counter_with_probability_and_alternatives():
    predictor, pixels = of_images(), picture(2)
    answer = predictor.predict(pixels)
    x = torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None]
    counts = torch.tensor([[answer["apple"], answer["pear"]]])
    assert answer.proba == pytest.approx(float(predictor.log_probability(x, counts).exp()))
    top = answer.top(3)
    ranked = predictor.search(x, k=3)
    assert [[one["apple"], one["pear"]] for one in top] == ranked.counts[0].tolist()
    assert [one.proba for one in top] == pytest.approx(ranked.log_probability[0].exp().tolist())
    assert sum(one.proba for one in answer.top(100)) == pytest.approx(1)  # all nine multisets of one to three labels
    assert len(answer.top(100)) == 9
    assert answer["cherry"] == 0
    assert answer.total() == int(counts.sum())


def test_a_copy_keeps_counts_and_probability():
    answer = of_images().predict(picture())
    for other in (pickle.loads(pickle.dumps(answer)), copy.copy(answer), copy.deepcopy(answer)):
        assert (other, other.proba, other.name, type(other)) == (answer, answer.proba, answer.name, Answer)
        with pytest.raises(ValueError, match="copy without its model"):
            other.top(2)


def test_answers_of_models_without_probabilities_have_none():
    torch.manual_seed(0)
    record = {"input": {"shape": [3], "dtype": "float32", "exif": True}}
    policy = Predictor(MLPEncoder(3, (8,)), LSTMPolicy(2, 8, hidden=4), CLASSES, max_size=2)
    policy.record = record
    answer = policy.predict(np.ones(3))
    assert sum(one.proba for one in answer.top(20)) == pytest.approx(1)
    one_step = Predictor(MLPEncoder(3, (8,)), OneStep(2, 8), CLASSES, max_size=2)
    one_step.record = record
    answer = one_step.predict(np.ones(3))
    assert answer.proba is None
    with pytest.raises(ValueError, match="no probabilities"):
        answer.top(2)


def test_tables_in_every_form_give_the_same_answers(tmp_path):
    pandas = pytest.importorskip("pandas")
    predictor = of_tables()
    rows = [{"weight": 1.5, "colour": "red"}, {"weight": None, "colour": "blue"}]
    encoded = torch.tensor([[1.5, 0.0, 1.0], [3.0, 1.0, 0.0]])
    expected = [
        Counter({name: count for name, count in zip(CLASSES, row, strict=True) if count})
        for row in predictor.predict(encoded).tolist()
    ]
    file = tmp_path / "new.csv"
    file.write_text("weight,colour\n1.5,red\n,blue\n")
    frame = pandas.DataFrame(rows)
    for form in (frame, frame.assign(note="x"), frame[["colour", "weight"]], rows, file, encoded.numpy()):
        answers = predictor.predict(form)
        assert isinstance(answers, Answers)
        assert answers == expected
        assert [one.proba for one in answers] == pytest.approx([one.proba for one in predictor.predict(rows)])
    for form in (rows[0], encoded[0].numpy(), encoded[0].numpy().astype(np.float64)):
        assert isinstance(predictor.predict(form), Answer)
        assert predictor.predict(form) == expected[0]
    assert [answer.name for answer in predictor.predict(frame)] == ["row 0", "row 1"]


def test_a_category_that_was_not_seen_is_reported():
    with pytest.warns(UserWarning, match="category not seen in training, such as 'green'"):
        of_tables().predict({"weight": 1, "colour": "green"})


def test_predict_labels_accepts_every_form_of_images(folder):
    predictor = of_images()
    labels = predictor.predict_labels(folder)
    assert labels == [sorted(counts_of(predictor, picture(i)).elements()) for i in range(3)]
    assert predictor.predict_labels(Image.fromarray(picture())) == labels[:1]
    assert predictor.predict_labels(picture()) == labels[:1]
    assert predictor.predict_labels(torch.from_numpy(picture().transpose(2, 0, 1).copy())[None]) == labels[:1]


def assert_refused(model, given, message):
    with pytest.raises((ValueError, OSError)) as caught:
        model.predict(given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_invalid_inputs_are_refused_in_one_sentence(folder):
    table = folder / "table.csv"
    table.write_text("weight,colour\n1,red\n")
    listed = folder / "pictures.csv"
    listed.write_text("image\n0.png\n")
    images, tables = of_images(), of_tables()
    assert_refused(images, table, "this model reads images, but " + str(table) + " is a table: pass image files")
    assert_refused(images, {"weight": 1}, "this model reads images, but was given a table with the columns weight")
    assert_refused(images, None, "this model reads images, but was given None")
    assert_refused(images, {1, 2}, "this model reads images, but was given an object of class set")
    assert_refused(images, folder / "no.png", "there is no file or folder")
    assert_refused(
        images, np.zeros((5, SIDE, SIDE, 7)), "an image array must have shape (height, width) or (height, width, 1,"
    )
    assert_refused(images, np.zeros((9, SIDE, SIDE)), f"but this one has (9, {SIDE}, {SIDE})")
    assert_refused(
        images,
        200.0 * np.ones((SIDE, SIDE)),
        "floats must range from 0 to 1, but this one is from 200 to 200: divide it by 255",
    )
    assert_refused(images, np.full((SIDE, SIDE), np.nan), "floats must range from 0 to 1")
    assert_refused(images, np.full((SIDE, SIDE), 300), "integers must range from 0 to 255")
    assert_refused(images, np.full((SIDE, SIDE), "a"), "an image array must be numeric")
    reads = "this model reads tables with the columns weight, colour, but"
    assert_refused(tables, folder / "0.png", f"{reads} {folder / '0.png'} is an image")
    assert_refused(tables, folder, f"{reads} {folder / '0.png'} is an image")
    assert_refused(tables, listed, f"{reads} {listed} lists images")
    assert_refused(tables, Image.new("L", (4, 4)), f"{reads} was given an image")
    assert_refused(tables, picture(), f"{reads} was given a uint8 array of shape (16, 16, 3)")
    assert_refused(tables, {"weight": 1}, "this model reads the columns weight, colour, but the table has no colour")
    assert_refused(of_tables([]), {"weight": 1}, "this model reads vectors of 3 numbers, but was given a table")
    unknown = of_images()
    unknown.record = {}
    assert_refused(unknown, picture(), "the model's record does not describe its inputs")


def test_unknown_classes_are_refused_in_one_sentence(folder):
    file = folder / "pets.csv"
    file.write_text("image,labels\n0.png,cat;dog\n1.png,cat\n")
    assert_refused(of_images(), file, f"{file} has classes that this model does not know: cat, dog")


def test_a_model_is_loaded_from_its_run_folder(tmp_path):
    of_images().save(tmp_path / "run" / "model", record=of_images().record)
    assert Predictor.load(tmp_path / "run").predict(picture()) == of_images().predict(picture())
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "run.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="not finished"):
        Predictor.load(tmp_path / "unfinished")


def test_the_html_of_an_answer_has_image_counts_and_confidence(tmp_path):
    predictor = of_images()
    predictor.classes = ("<apple>", "pear & co")
    answer = predictor.predict(picture(3))
    assert answer.total() > 0
    html = answer._repr_html_()
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), picture(3))
    assert "<apple>" not in html
    assert "&lt;apple&gt;" in html or "pear &amp; co" in html
    assert f"{answer.proba:.1%}" in html
    many = predictor.predict(np.stack([picture(i, (SIDE, SIDE, 3)) for i in range(23)]))._repr_html_()
    assert (many.count("<tr>"), "and 3 more" in many) == (20, True)
    assert "<img" not in of_tables().predict({"weight": 1, "colour": "red"})._repr_html_()
    assert "nothing" in Answer()._repr_html_()
