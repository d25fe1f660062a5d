"""The page of `multiset demo` in a real browser."""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_models import predictor, samples, save
from PIL import Image, ImageOps
from real_browser import chromium, needs_chromium, sync_api, watch
from served_page import serving

pytestmark = [needs_chromium, pytest.mark.slow]

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}
FRUIT, COUNTS = "fruit", "counts"


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("models")
    save(predictor("policy", channels=3), folder / FRUIT)
    save(predictor("counts"), folder / COUNTS)
    models = ("mnist-multi-4", FRUIT, COUNTS, "mnist-multi-10")
    with serving("-m", "torchmultiset", "demo", *models, "--port", "0", cwd=folder) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def visit(browser, address):
    """Open the page; after the test, check that there were no errors and no requests to other hosts."""
    contexts = []
    problems = []

    def open_page(viewport=DESKTOP, *, motion="reduce", theme="light"):
        context = browser.new_context(viewport=viewport, reduced_motion=motion, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        watch(page, problems, within=f"{address}/")
        page.goto(address)
        page.wait_for_selector("#answer-block:visible")  # the answer for the first sample
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [problem for problem in problems if "422" not in problem] == []  # the browser logs refusals


def answer(page, act):
    """Perform an action that leads to a prediction; return the labels of the answer on the page."""
    with page.expect_response(lambda response: "/api/predict" in response.url):
        act()
    page.wait_for_selector("#work[aria-busy=false]")
    page.wait_for_selector("#answer-block:visible", timeout=60_000)
    labels = page.get_attribute("#answer", "data-labels").split(", ")
    chips = [f"{name} \N{MULTIPLICATION SIGN}{count}" if count > 1 else name for name, count in Counter(labels).items()]
    assert page.locator("#answer > *").all_inner_texts() == chips
    return labels


# Inputs


def test_a_sample_is_predicted(visit):
    page = visit()
    path, labels = list(samples().items())[1]
    assert answer(page, page.locator(f"#samples img[src$='{path.name}']").click) == labels
    assert "Correct" in page.inner_text("#verdict")
    assert re.search(r"\d %", page.inner_text("#probability"))
    first = page.locator("#best li").first
    assert first.locator(".name").inner_text().split(", ") == labels
    assert page.locator("#best li").count() == 5


def photo(path: Path) -> bytes:
    """A sample as a larger colour photograph that is not square."""
    file = io.BytesIO()
    with Image.open(path) as image:
        canvas = Image.new("RGB", (500, 400))
        canvas.paste(image.resize((400, 400), Image.Resampling.BICUBIC), (50, 0))
    canvas.save(file, "JPEG", quality=90)
    return file.getvalue()


def test_an_uploaded_image_is_predicted(visit):
    page = visit()
    path, labels = list(samples().items())[2]
    file = {"name": "digits.jpg", "mimeType": "image/jpeg", "buffer": photo(path)}
    assert answer(page, lambda: page.set_input_files("#file", file)) == labels
    assert page.is_hidden("#verdict")
    assert page.inner_text("#caption").startswith("digits.jpg at 100")


def drop(page, content):
    """Drop a file with these bytes, or with this number of bytes."""
    script = """content => {
        const transfer = new DataTransfer();
        transfer.items.add(new File([new Uint8Array(content)], "digits.png", { type: "image/png" }));
        return transfer;
    }"""
    page.dispatch_event("#stage", "drop", {"dataTransfer": page.evaluate_handle(script, content)})


def test_a_dropped_file_is_predicted(visit):
    page = visit()
    path, labels = list(samples().items())[3]
    assert answer(page, lambda: drop(page, list(path.read_bytes()))) == labels


RING = [(0.5 + 0.4 * math.sin(math.pi * t / 8), 0.5 - 0.5 * math.cos(math.pi * t / 8)) for t in range(17)]


# Strokes of digits in the unit square, with x to the right and y downwards.
STROKES = {
    "0": [RING],
    "1": [[(0.55, 0), (0.45, 1)]],
    "4": [[(0.25, 0), (0.15, 0.55), (0.85, 0.5)], [(0.75, 0.1), (0.65, 1)]],
    "7": [[(0.1, 0.05), (0.9, 0.05), (0.4, 1)]],
}


def draw(page, digit, left, top, size):
    """Draw a digit with the mouse; position and size are fractions of the drawing area."""
    box = page.locator("#pad").bounding_box()
    for stroke in STROKES[digit]:
        x, y, side = box["x"], box["y"], box["width"]
        points = [(x + side * (left + size * right), y + side * (top + size * down)) for right, down in stroke]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point)
        page.mouse.up()


def test_a_drawing_is_predicted(visit):
    page = visit()
    page.click("#draw")
    assert page.is_disabled("#read")
    for digit, left, top in (("7", 0.1, 0.1), ("1", 0.55, 0.1), ("0", 0.1, 0.55), ("4", 0.55, 0.55)):
        draw(page, digit, left, top, 0.33)
    assert answer(page, lambda: page.click("#read")) == ["0", "1", "4", "7"]
    assert page.is_visible("#pad")


def test_the_keyboard_can_draw(visit):
    page = visit()
    page.focus("#draw")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "pad"
    page.keyboard.press("Space")
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    assert len(answer(page, lambda: page.keyboard.press("Enter"))) == 4
    page.click("#undo")
    assert page.is_disabled("#read")


# Steps


def test_the_steps_are_shown_in_order(visit):
    page = visit(motion="no-preference")
    responses = []
    page.on("response", lambda response: responses.append(response.json()) if "/api/predict" in response.url else None)
    path, labels = list(samples().items())[4]
    page.evaluate(
        """() => {
            window.seen = [];
            const running = document.getElementById("running");
            const note = () => window.seen.push(running.dataset.labels);
            new MutationObserver(note).observe(running, { attributes: true });
        }"""
    )
    assert answer(page, page.locator(f"#samples img[src$='{path.name}']").click) == labels
    sizes = [0 if text == "nothing" else len(text.split(", ")) for text in page.evaluate("window.seen")]
    assert sorted(set(sizes)) == [0, 1, 2, 3, 4]
    assert sizes == sorted(sizes)
    entropies = [float(text) for text in page.locator("#moments .value").all_inner_texts()]
    assert entropies == [round(step["entropy"], 2) for step in responses[0]["steps"]]
    assert entropies[-1] < entropies[0]
    assert page.inner_text("#status").startswith("Answer: " + ", ".join(labels))


def test_a_step_shows_its_distribution(visit):
    page = visit()
    responses = []
    page.on("response", lambda response: responses.append(response.json()) if "/api/predict" in response.url else None)
    answer(page, page.locator("#samples button").nth(1).click)
    page.locator("#moments button").first.click()
    assert page.is_hidden("#answer-block")
    step = responses[0]["steps"][0]
    widths = page.eval_on_selector_all("#bars .fill", "fills => fills.map(fill => parseFloat(fill.style.width) / 100)")
    assert widths == pytest.approx(step["probabilities"], abs=1e-4)
    named = page.locator("#bars .named .name").all_inner_texts()
    assert named == [responses[0]["classes"][step["named"]]]
    for _ in range(3):
        page.click("#on")
    assert page.is_visible("#answer-block")
    assert page.is_disabled("#on")


def test_another_model_predicts_the_same_image(visit):
    page = visit()
    labels = answer(page, lambda: page.select_option("#model", FRUIT))
    assert set(labels) <= {"apple", "pear", "plum", "nothing"}
    assert page.is_hidden("#samples-block")
    assert page.is_hidden("#verdict")  # the true labels are classes of the first model
    assert page.get_attribute("#seen", "alt") == "The image as the model sees it"
    assert "stop?" in page.inner_text("#bars")
    answer(page, lambda: page.select_option("#model", "mnist-multi-4"))
    assert "Correct" in page.inner_text("#verdict")


def test_a_sample_is_replaced_by_one_of_the_other_model(visit):
    page = visit()
    assert len(answer(page, lambda: page.select_option("#model", "mnist-multi-10"))) == 10
    assert page.locator("#samples [aria-pressed=true]").count() == 1
    assert page.is_visible("#verdict")


def test_the_page_of_a_one_shot_model_shows_no_partial_multiset(visit):
    page = visit()
    assert page.inner_text("#work-title") == "One label at a time"
    assert page.is_visible("#running")
    answer(page, lambda: page.select_option("#model", COUNTS))
    assert page.inner_text("#work-title") == "How many of each"
    for hidden in ("#running", "#bars", "#moments", "#player"):  # elements of sequential models
        assert page.is_hidden(hidden)
    rows = page.locator("#counts tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["label", "apple", "pear", "plum"]
    assert rows[0].split()[1:4] == ["0", "1", "2"]
    assert page.locator("#counts td.chosen").count() == 3
    assert page.is_visible("#heat")
    page.uncheck("#heat-on")
    assert page.is_hidden("#heat")
    answer(page, lambda: page.select_option("#model", FRUIT))
    assert page.inner_text("#work-title") == "One label at a time"
    assert page.is_visible("#running")


def test_an_inverted_image_gets_a_hint(visit):
    page = visit()
    assert page.is_hidden("#hints")
    assert "light objects on a dark background" in page.inner_text("#about")
    path = next(iter(samples()))
    file = io.BytesIO()
    with Image.open(path) as image:
        ImageOps.invert(image.convert("L")).save(file, "PNG")
    upload = {"name": "paper.png", "mimeType": "image/png", "buffer": file.getvalue()}
    answer(page, lambda: page.set_input_files("#file", upload))
    assert page.inner_text("#hints").endswith("this one is light: invert it.")
    answer(page, page.locator("#samples button").first.click)
    assert page.is_hidden("#hints")


@pytest.mark.parametrize("model", ["mnist-multi-4", COUNTS])
def test_the_answer_is_visible_on_a_phone(visit, model):
    page = visit({"width": 390, "height": 844})
    if model != "mnist-multi-4":
        answer(page, lambda: page.select_option("#model", model))
    for scrolled in (0, 600):
        page.evaluate(f"window.scrollTo(0, {scrolled})")
        box = page.locator("#answer").bounding_box()
        assert 0 <= box["y"] <= 844 - box["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_errors_are_reported(visit):
    page = visit()
    before = page.get_attribute("#answer", "data-labels")
    with page.expect_response(lambda response: response.status == 422):
        page.set_input_files("#file", {"name": "notes.png", "mimeType": "image/png", "buffer": b"no image"})
    page.wait_for_selector("#error:visible")
    assert page.inner_text("#error").startswith("This is not an image")
    drop(page, 10_000_001)
    sync_api.expect(page.locator("#error")).to_have_text("This file is too large. The limit is 10 MB.")
    assert page.get_attribute("#answer", "data-labels") == before
    assert page.inner_text("#caption").startswith("The sample")
    answer(page, page.locator("#samples button").nth(1).click)
    assert page.is_hidden("#error")


# Accessibility


@pytest.mark.parametrize(("viewport", "theme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"])
def test_the_page_fits_the_screen(visit, viewport, theme, tmp_path):
    page = visit(viewport, theme=theme)
    page.click("#draw")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    with Image.open(tmp_path / "page.png") as shot:
        assert shot.width == viewport["width"]
        corner = shot.convert("L").getpixel((2, 2))
    assert corner > 200 if theme == "light" else corner < 60


def test_every_control_has_a_name_and_is_reached_by_keyboard(visit):
    page = visit()
    page.click("#draw")
    shown = "button:visible, select:visible, input:not([type=color])"
    nameless = page.eval_on_selector_all(
        shown,
        """controls => controls.filter(
            control => !control.getAttribute("aria-label") && !control.innerText.trim() && !control.labels?.length
                && !control.querySelector("img[alt]:not([alt=''])")
        ).map(control => control.id)""",
    )
    assert nameless == []
    page.focus("#model")
    reached = []
    for _ in range(5 + len(samples())):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    assert reached == ["pad", "file", "draw", *[""] * len(samples()), "back", "play"]
