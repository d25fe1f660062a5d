from __future__ import annotations

import json
import math
import os
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from torchmultiset.data import coco
from torchmultiset.data.coco import CocoRules, build
from torchmultiset.data.images import UnreadableImageError
from torchmultiset.viz.stages import stages_table

CATEGORIES = {7: "cow", 1: "cat", 9: "emu", 2: "dog"}  # not in the order of the ids, and with gaps
IDS = {name: number for number, name in CATEGORIES.items()}


def annotations(prefix: str, contents: dict[int, list[tuple]], *, first_id: int = 1) -> dict:
    """An annotation file: image id -> its objects as (class, area) or (class, area, "crowd")."""
    objects = []
    for image, items in contents.items():
        for name, area, *crowd in items:
            objects.append(
                {
                    "id": first_id + len(objects),
                    "image_id": image,
                    "category_id": IDS[name],
                    "bbox": [0, 0, area / 2, 2],
                    "area": area,
                    "iscrowd": int(bool(crowd)),
                    "segmentation": [[0, 0, area / 2, 0, area / 2, 2]],
                }
            )
    return {
        "images": [{"id": image, "file_name": f"{prefix}{image}.png", "width": 40, "height": 20} for image in contents],
        "annotations": objects,
        "categories": [{"id": number, "name": name} for number, name in CATEGORIES.items()],
    }


# Areas are 10 or 100. Of the 26 objects that are not crowds, 12 have area 10, which is therefore the 40th percentile.
TRAINING = {
    11: [("cat", 100), ("cat", 100)],
    12: [("dog", 100), ("cat", 100), ("dog", 100, "crowd")],
    13: [("dog", 100), ("dog", 100), ("cow", 10)],
    14: [("emu", 100), ("cat", 100)],  # with two objects to an image emu and cow are rare: 2 and 1 of 10 objects
    15: [("cow", 100), ("emu", 100)],
    16: [("dog", 100), ("dog", 100), ("dog", 100)],
    17: [("cat", 100)],
    18: [("cat", 10)] * 11,
    19: [],
}
# The 40th percentile of these areas is 1000, and emu would be common among them.
TEST = {
    21: [("cat", 11), ("dog", 100), ("cat", 10)],
    22: [("emu", 100), ("emu", 100)],
    23: [("cat", 100), ("cow", 100)],
    24: [("cat", 100), ("emu", 100)],
    25: [("dog", 100), ("dog", 11), ("cat", 5, "crowd")],
    26: [("cat", 1000)] * 20,
    27: [("cat", 1000), ("cat", 1000)],
}


@pytest.fixture
def make(tmp_path):
    """Write annotation files and tiny images, and build a data set."""

    def make(rules=None, training=TRAINING, test=TEST, **options):
        train_file = training if "images" in training else annotations("a", training)
        test_file = test if "images" in test else annotations("b", test)
        for name, content in (("train.json", train_file), ("test.json", test_file)):
            (tmp_path / name).write_text(json.dumps(content))
            for image in content["images"]:
                Image.new("L", (40, 20)).save(tmp_path / image["file_name"])
        files = tmp_path / "train.json", tmp_path / "test.json", tmp_path
        return build(rules or CocoRules(validation_share=0.0), *files, **{"size": 40, **options})

    return make


def label_names(examples) -> dict[str, list[str]]:
    """Image id -> names of its labels, in the order of the annotations."""
    return {
        image: [examples.classes[label] for label in row if label >= 0]
        for image, row in zip(examples.ids, examples.labels.tolist(), strict=True)
    }


def stages(built, split: str) -> list[tuple]:
    return [tuple(stage[1:]) for stage in built.stages if stage.split == split]


def test_every_stage_for_two_objects_matches_a_calculation_by_hand(make):
    built = make()
    assert built.min_area == 10
    assert stages(built, "training") == [
        ("all annotations", 9, 27, 4),
        ("no crowds", 8, 26, 4),  # image 19 has no objects
        ("large objects: area above 10.00", 7, 14, 4),  # above, not at: image 18 goes
        ("2 of them in an image", 5, 10, 4),  # 16 has three, 17 one
        ("not only rare classes", 4, 8, 3),  # 15 goes and with it the only large cow
        ("mixed images: drop-label", 3, 6, 2),  # 14 goes
    ]
    assert label_names(built.train) == {"11": ["cat", "cat"], "12": ["dog", "cat"], "13": ["dog", "dog"]}
    assert built.train.classes == ("cat", "dog")
    assert built.train.labels.tolist() == [[0, 0], [1, 0], [1, 1]]
    assert len(built.validation) == 0


def test_the_test_set_takes_threshold_and_classes_from_the_training_set(make):
    built = make()
    assert stages(built, "test") == [
        ("all annotations", 7, 34, 4),
        ("no crowds", 7, 33, 4),
        ("large objects: area above 10.00", 7, 32, 4),
        ("2 of them in an image", 6, 12, 4),
        ("not only rare classes", 5, 10, 4),
        ("mixed images: drop-label", 3, 6, 2),
    ]
    assert label_names(built.test) == {"21": ["cat", "dog"], "25": ["dog", "dog"], "27": ["cat", "cat"]}
    assert built.test.classes == built.train.classes == built.validation.classes


def test_images_of_one_to_three_objects_lose_their_rare_labels(make):
    rules = CocoRules(sizes=(1, 3), mixed="drop-label", validation_share=0.0)
    built = make(rules)  # 14 objects in 7 images: 5 cats, 6 dogs, 2 emus, a cow; rare below 3.5
    assert [stage[1:] for stage in stages(built, "training")[3:]] == [(7, 14, 4), (6, 12, 3), (6, 11, 2)]
    assert label_names(built.train) == {
        "11": ["cat", "cat"],
        "12": ["dog", "cat"],
        "13": ["dog", "dog"],
        "14": ["cat"],
        "16": ["dog", "dog", "dog"],
        "17": ["cat"],
    }
    assert built.train.labels.tolist()[3] == [0, -1, -1]
    assert label_names(built.test) == {
        "21": ["cat", "dog"],
        "23": ["cat"],
        "24": ["cat"],
        "25": ["dog", "dog"],
        "27": ["cat", "cat"],
    }


def test_an_image_with_too_few_labels_left_is_dropped(make):
    built = make(CocoRules(mixed="drop-label", validation_share=0.0))
    assert list(label_names(built.train)) == ["11", "12", "13"]
    assert list(label_names(built.test)) == ["21", "25", "27"]


def test_kept_mixed_images_keep_their_rare_classes(make):
    built = make(CocoRules(mixed="keep", validation_share=0.0))
    assert label_names(built.train)["14"] == ["emu", "cat"]
    assert built.train.classes == ("cat", "dog", "emu")  # by category id; the cow was only with an emu
    assert list(label_names(built.test)) == [
        "21",
        "24",
        "25",
        "27",
    ]  # 22 is only rare, 23 has a cow: no class here


def test_crowds_count_on_request_only(make):
    built = make(CocoRules(crowds=True, validation_share=0.0))
    assert "no crowds" not in [stage.name for stage in built.stages]
    assert list(label_names(built.train)) == ["11", "13", "14"]  # 12 has three; of 8 objects 2 emus are no longer rare
    assert stages(built, "training")[1] == ("large objects: area above 10.00", 7, 15, 4)


def test_objects_are_large_strictly_above_the_threshold(make):
    assert list(label_names(make(CocoRules(min_area=99.9, validation_share=0.0)).train)) == ["11", "12", "13"]
    with pytest.raises(ValueError, match=r"train\.json: no training image is left after .*area above 100\.00"):
        make(CocoRules(min_area=100.0))


def test_the_percentile_is_of_the_training_objects_without_crowds(make):
    areas = [3, 1, 4, 1.5, 9, 2.6, 5]
    training = {1: [("cat", area) for area in areas], 2: [("cat", 1e6, "crowd")], 3: [("cat", 50), ("cat", 60)]}
    rules = CocoRules(validation_share=0.0, area_percentile=50.0)
    # 1 1.5 2.6 3 | 4 | 5 9 50 60: the median is 4
    assert make(replace(rules, sizes=(1, 5)), training).min_area == 4
    assert make(replace(rules, sizes=(1, 6), crowds=True), training).min_area == 4.5


def test_areas_may_be_those_of_boxes(make):
    training = annotations("a", TRAINING)
    for entry in training["annotations"]:
        entry["area"] = 1  # boxes keep their areas
    built = make(CocoRules(area="box", validation_share=0.0), training)
    assert built.min_area == 10
    assert list(label_names(built.train)) == ["11", "12", "13"]
    for entry in training["annotations"]:
        del entry["area"]
    assert list(label_names(make(CocoRules(area="box", validation_share=0.0), training).train)) == ["11", "12", "13"]
    with pytest.raises(ValueError, match=r"train\.json: not all annotations have an 'area'.*area='box'"):
        make(CocoRules(area="annotation"), training)


def test_a_class_is_rare_strictly_below_the_share(make):
    # Of 10 objects in images of two: 4 cats, 3 dogs, 2 emus, 1 cow.
    for rare_below, classes in [(0.1, "cat dog cow emu"), (0.2, "cat dog emu"), (0.21, "cat dog"), (0.4, "cat")]:
        built = make(CocoRules(rare_below=rare_below, validation_share=0.0))
        assert built.train.classes == tuple(classes.split())


def test_the_default_share_is_one_over_all_categories_of_the_file(make):
    training, test = annotations("a", TRAINING), annotations("b", TEST)
    more = [{"id": 100 + i, "name": f"unused {i}"} for i in range(6)]  # 10 categories: rare below 0.1, no longer 0.25
    training["categories"] += more
    test["categories"] += more
    assert make(None, training, test).train.classes == ("cat", "dog", "cow", "emu")


MANY = {image: [("cat", 100), ("dog", 100), ("cow", 10), ("cow", 10)] for image in range(100, 140)}


def test_the_validation_set_is_held_out_by_seed(make):
    built, again, other = (make(CocoRules(seed=seed), MANY) for seed in (3, 3, 4))
    train, validation = set(built.train.ids), set(built.validation.ids)
    assert len(validation) == 6  # 15% of 40
    assert train | validation == {str(image) for image in MANY}
    assert not train & validation
    assert again.validation.ids == built.validation.ids
    assert again.train.ids == built.train.ids
    assert set(other.validation.ids) != validation
    assert set(other.test.ids) == set(built.test.ids)
    assert stages(built, "train") == [("held out", 34, 68, 2)]
    assert stages(built, "validation") == [("held out", 6, 12, 2)]


def test_a_share_that_leaves_one_side_empty_is_refused(make):
    with pytest.raises(ValueError, match=r"validation_share = 0\.15 of the 3 training images"):
        make(CocoRules())
    with pytest.raises(ValueError, match=r"validation_share = 0\.9 of the 3 training images"):
        make(CocoRules(validation_share=0.9))


def test_boxes_and_areas_are_in_pixels_of_the_inputs(make, tmp_path):
    boxes = [[10, 5, 70, 20], [100, 30, 90, 60]]
    picture = Image.new("RGB", (200, 130), "blue")
    for (x, y, w, h), colour in zip(boxes, ("red", "lime"), strict=True):
        ImageDraw.Draw(picture).rectangle((x, y, x + w - 1, y + h - 1), fill=colour)
    content = annotations("a", {1: [("cat", 100), ("cat", 200)], 2: [("cat", 100), ("cat", 200)]})
    for image in content["images"]:
        image["width"], image["height"] = picture.size
    for entry, box in zip(content["annotations"], boxes * 2, strict=True):
        entry["bbox"] = box

    rules = CocoRules(min_area=10.0, validation_share=0.0)
    make(rules, content)
    picture.save(tmp_path / "a1.png")
    picture.resize((256, 256)).save(tmp_path / "a2.png")  # squashed
    built = build(rules, tmp_path / "train.json", tmp_path / "test.json", tmp_path, size=300)

    batch = built.train.batch([0, 1])
    assert batch.boxes[0].tolist() == [
        pytest.approx([15, 52 + 7.5, 105, 30]),  # 200 x 130 becomes 300 x 195 with 52 rows of padding above
        pytest.approx([150, 52 + 45, 135, 90]),
    ]
    for image, place in [(0, 0), (0, 1), (1, 0), (1, 1)]:  # red is channel 0, lime is channel 1
        mask = batch.x[image, place].numpy() > 127
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        found = [columns[0], rows[0], columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]]
        assert batch.boxes[image, place].tolist() == pytest.approx(found, abs=1.5)
    assert batch.areas[0].tolist() == pytest.approx([100 * 1.5 * 1.5, 200 * 1.5 * 1.5])
    assert batch.areas[1].tolist() == pytest.approx([100 * 1.5 * 300 / 130, 200 * 1.5 * 300 / 130])


def test_padding_is_zero_and_minus_one(make):
    built = make(CocoRules(sizes=(1, 3), validation_share=0.0))
    row = built.train.ids.index("17")
    assert built.train.labels[row].tolist() == [0, -1, -1]
    assert built.train.areas[row, 1:].tolist() == [0, 0]
    assert not built.train.boxes[row, 1:].any()
    assert built.train.counts[row].tolist() == [1, 0]


def test_inputs_belong_to_their_labels(make, tmp_path):
    built = make(CocoRules(sizes=(1, 3), validation_share=0.5, seed=1))
    for image in range(11, 18):
        Image.new("L", (40, 20), image).save(tmp_path / f"a{image}.png")
    for split in (built.train, built.validation):
        shades = split.batch(range(len(split))).x[:, 0, 20, 20].tolist()
        assert [str(shade) for shade in shades] == split.ids


def plain(training: dict, test: dict, rules: CocoRules) -> list[dict[int, list[tuple]]]:
    """The rules in plain loops: for training and test, image id -> (class, annotation id) of its objects."""

    def area(entry):
        return entry["area"] if rules.area == "annotation" else entry["bbox"][2] * entry["bbox"][3]

    def objects(file):
        return [entry for entry in file["annotations"] if rules.crowds or not entry["iscrowd"]]

    names = {category["id"]: category["name"] for category in training["categories"]}
    ordered = sorted(map(area, objects(training)))
    position = rules.area_percentile / 100 * (len(ordered) - 1)
    below, above = ordered[math.floor(position)], ordered[math.ceil(position)]
    threshold = below + (above - below) * (position - math.floor(position))

    def right_images(file):
        images = defaultdict(list)
        for entry in objects(file):
            if area(entry) > threshold:
                images[entry["image_id"]].append((names[entry["category_id"]], entry["id"]))
        return {image: items for image, items in images.items() if rules.sizes[0] <= len(items) <= rules.sizes[1]}

    right = right_images(training)
    frequency = Counter(name for items in right.values() for name, _ in items)
    common = {name for name, number in frequency.items() if number * len(names) >= frequency.total()}

    def last_stage(images, allowed):
        kept = {}
        for image, items in images.items():
            if not any(name in common for name, _ in items):
                continue
            if rules.mixed == "drop-label":
                items = [item for item in items if item[0] in allowed]
            if all(name in allowed for name, _ in items) and rules.sizes[0] <= len(items) <= rules.sizes[1]:
                kept[image] = items
        return kept

    kept = last_stage(right, set(names.values()) if rules.mixed == "keep" else common)
    classes = {name for items in kept.values() for name, _ in items}
    return [kept, last_stage(right_images(test), classes)]


def assert_same(built, expected: list[dict[int, list[tuple]]]) -> None:
    for splits, kept in zip(((built.train, built.validation), (built.test,)), expected, strict=True):
        found = {image: names for split in splits for image, names in label_names(split).items()}
        assert found == {str(image): [name for name, _ in items] for image, items in kept.items()}


@pytest.mark.parametrize("mixed", ["drop-image", "drop-label", "keep"])
@pytest.mark.parametrize("seed", range(5))
def test_random_files_give_the_same_data_set_as_plain_loops(make, seed, mixed):
    rng = np.random.default_rng(seed)

    def random_file(prefix, first):
        names = ["cat", "dog", "cow", "emu"]
        return annotations(
            prefix,
            {
                image: [
                    (names[rng.choice(4, p=[0.45, 0.35, 0.15, 0.05])], float(rng.integers(1, 30)))
                    + (("crowd",) if rng.random() < 0.1 else ())
                    for _ in range(rng.integers(0, 7))
                ]
                for image in rng.permutation(np.arange(first, first + 40)).tolist()
            },
        )

    training, test = random_file("a", 1), random_file("b", 1)  # the ids of the two files overlap, the images do not
    for content in (training, test):
        rng.shuffle(content["annotations"])
    sizes = ((2, 2), (1, 4), (1, 1), (2, 3), (1, 6))[seed]
    area = "box" if seed % 2 else "annotation"
    rules = CocoRules(sizes=sizes, mixed=mixed, area=area, crowds=seed == 3, validation_share=0.25)
    assert_same(make(rules, training, test), plain(training, test, rules))


def change(key, **values):
    def apply(content):
        content[key][1].update(values)

    return apply


def without(key, field):
    def apply(content):
        del content[key][1][field]

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content.pop("images"), "list of objects 'images'"),
        (lambda content: content.pop("annotations"), "list of objects 'annotations'"),
        (lambda content: content.update(categories={}), "list of objects 'categories'"),
        (lambda content: content.update(annotations=[]), "non-empty list of objects 'annotations'"),
        (without("images", "file_name"), r"1 of 9 images have no 'file_name': images\[1\]"),
        (without("annotations", "bbox"), r"1 of 27 annotations have no 'bbox': annotations\[1\]"),
        (without("categories", "name"), "categories have no 'name'"),
        (change("annotations", category_id=3), "1 of 27 annotations have an unknown category_id: ids 2"),
        (change("annotations", image_id=99), "1 of 27 annotations have an unknown image_id: ids 2"),
        (change("annotations", id=1), "2 of 27 annotations have a duplicate id: ids 1, 1"),
        (change("images", id=11), "2 of 9 images have a duplicate id: ids 11, 11"),
        (change("images", file_name="a11.png"), "2 of 9 images have a duplicate file_name: ids 11, 12"),
        (change("images", width=0), "1 of 9 images have a width or height below 1: ids 12"),
        (change("images", height="20"), "'height' must be an integer in all images"),
        (change("categories", name="cow"), "2 of 4 categories have a duplicate name: ids 7, 1"),
        (change("annotations", bbox=[0, 0, -5, 2]), "bbox that is not finite or has a negative width or height: ids 2"),
        (change("annotations", bbox=[0, float("nan"), 5, 2]), "not finite .*: ids 2"),
        (change("annotations", bbox=[0, 0, 5]), "'bbox' must be four numbers"),
        (change("annotations", bbox=[0, 0, 0, 2]), "1 large objects have a bbox of zero width or height.* id 2"),
        (change("annotations", area=-1), "area that is negative or not finite: ids 2"),
        (change("annotations", area=[1]), "'area' must be a number"),
        (change("annotations", image_id=1.5), "'image_id' must be an integer"),
    ],
)
def test_an_invalid_annotation_file_is_refused_with_its_name(make, tmp_path, damage, message):
    make()
    content = annotations("a", TRAINING)
    damage(content)
    (tmp_path / "train.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"train\.json.*{message}"):
        build(CocoRules(validation_share=0.0), tmp_path / "train.json", tmp_path / "test.json", tmp_path)


def test_many_wrong_entries_are_counted(make):
    content = annotations("a", TRAINING)
    for entry in content["annotations"]:
        entry["category_id"] = 3
    with pytest.raises(
        ValueError, match=r"27 of 27 annotations have an unknown category_id: ids 1, 2, 3, 4, 5 and 22 more"
    ):
        make(None, content)


def test_small_objects_may_have_flat_boxes_as_in_coco(make):
    content = annotations("a", TRAINING)
    small = next(entry for entry in content["annotations"] if entry["area"] == 10)
    small.update(bbox=[3, 3, 1.03, 0.0], area=0.0)
    assert list(label_names(make(None, content).train)) == ["11", "12", "13"]


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"images": nonsense}', b"\xff\xfe\x00"])
def test_invalid_json_is_refused(make, tmp_path, text):
    make()
    (tmp_path / "train.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"train\.json is not a JSON file"):
        build(CocoRules(), tmp_path / "train.json", tmp_path / "test.json", tmp_path)


def test_json_that_is_not_an_object_is_refused(make, tmp_path):
    make()
    (tmp_path / "train.json").write_text("[]")
    with pytest.raises(ValueError, match=r"train\.json must contain a JSON object"):
        build(CocoRules(), tmp_path / "train.json", tmp_path / "test.json", tmp_path)


def test_missing_annotation_files_are_reported_with_their_names(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no annotation file .*absent"):
        build(CocoRules(), tmp_path / "absent.json", tmp_path / "absent.json", tmp_path)


def test_missing_images_of_all_splits_are_in_one_error(make, tmp_path):
    make()
    for name in ("a11.png", "a13.png", "b25.png", "a18.png"):
        (tmp_path / name).unlink()
    rules = CocoRules(validation_share=0.3)
    with pytest.raises(FileNotFoundError) as error:
        build(rules, tmp_path / "train.json", tmp_path / "test.json", tmp_path)
    message = str(error.value)
    assert "3 of 6 image files are missing" in message  # a18.png is not needed
    assert all(name in message for name in ("a11.png", "a13.png", "b25.png"))


def test_files_that_are_not_images_are_reported_with_their_names(make, tmp_path):
    make()
    (tmp_path / "a12.png").write_text("no image")
    with pytest.raises(UnreadableImageError, match=r"a12\.png: not an image"):
        build(CocoRules(validation_share=0.0), tmp_path / "train.json", tmp_path / "test.json", tmp_path)


def test_an_image_cannot_be_in_training_and_test(make, tmp_path):
    make()
    files = tmp_path / "train.json", tmp_path / "train.json"
    with pytest.raises(ValueError, match=r"3 images, such as .*a11\.png.*must not be a training image"):
        build(CocoRules(validation_share=0.0), *files, tmp_path)
    (tmp_path / "test").mkdir()
    for name in ("a11.png", "a12.png", "a13.png"):
        Image.new("L", (40, 20)).save(tmp_path / "test" / name)
    built = build(CocoRules(validation_share=0.0), *files, tmp_path, tmp_path / "test")  # other files of the same names
    assert len(built.test) == 3


def test_both_files_must_list_the_same_categories(make):
    test = annotations("b", TEST)
    test["categories"][0]["name"] = "bull"
    with pytest.raises(ValueError, match=r"same categories, but differ in .*bull.*cow"):
        make(None, TRAINING, test)


def test_a_stage_without_images_left_is_reported(make):
    with pytest.raises(ValueError, match=r"train\.json: no training image is left after .*'9 of them in an image'"):
        make(CocoRules(sizes=(9, 9)))
    with pytest.raises(ValueError, match=r"test\.json: no test image is left after .*'large objects"):
        make(None, TRAINING, {21: [("cat", 1), ("cat", 1)]})


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    "wrong",
    [
        {"sizes": (0, 2)},
        {"sizes": (3, 2)},
        {"area_percentile": 101.0},
        {"min_area": -1.0},
        {"area": "segment"},
        {"rare_below": 1.5},
        {"mixed": "drop"},
        {"validation_share": 1.0},
    ],
)
def test_invalid_rules_are_refused_with_their_names(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CocoRules(**wrong)


def markdown(built, variant):
    """Return the rows of the table in Markdown."""
    columns = [column._cells for column in stages_table(built, coco.PAPER[variant]).columns]
    return [f"| {' | '.join(cells)} |" for cells in zip(*columns, strict=True)]


def test_the_table_shows_each_stage_and_the_counts_of_the_paper(make):
    built = make(CocoRules(validation_share=0.3))
    lines = markdown(built, "coco-easy")
    assert lines[0] == "| all annotations | 9 | 27 | 4 | 7 | 34 | 4 |"
    assert lines[5:] == [
        "| mixed images: drop-label | 3 | 6 | 2 | 3 | 6 | 2 |",
        f"| of these for train | 2 | 4 | {len(np.unique(built.train.labels))} |  |  |  |",
        f"| of these for validation | 1 | 2 | {len(np.unique(built.validation.labels))} |  |  |  |",
        "| the paper, of train2014 and val2014 | 10,230 |  | 24 | 5,107 |  |  |",
    ]


@pytest.mark.skipif("TORCHMULTISET_COCO" not in os.environ, reason="TORCHMULTISET_COCO is not set")
@pytest.mark.parametrize("variant", coco.VARIANTS)
def test_the_coco_subset_gives_the_recorded_tables(variant):
    folder, rules = Path(os.environ["TORCHMULTISET_COCO"]), coco.VARIANTS[variant]
    files = folder / "instances_train.json", folder / "instances_val.json"
    built = build(rules, *files, folder / "images", size=256)
    page = Path(__file__).parents[2] / "docs" / "coco.md"
    assert "\n".join(markdown(built, variant)) in page.read_text()
    assert_same(built, plain(*(json.loads(file.read_text()) for file in files), rules))
