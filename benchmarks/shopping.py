"""Generated shopping requests: a text mentions dishes and items, and the shopping list has all that they need.

    "we cook lentil stew and garden curry twice . also get two smoked trout ."

Each dish stands for ingredients that the text does not mention, some of them several times, and "twice" doubles them: a
model has to know recipes, add them up, and count. Labels such as "red onion" and "red lentils" share tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

_KINDS = """red green yellow white brown black fresh frozen dried smoked whole ground sliced salted sweet sour wild baby
    organic roasted"""
_FOODS = """onion pepper lentils beans rice apple tomato potato carrot cabbage trout salmon cheese butter milk bread
    flour sugar garlic mushroom spinach corn peas almonds walnuts grapes cherry plum lemon ginger chili olives yogurt
    oats honey turkey beef shrimp tofu noodles"""
KINDS, FOODS = _KINDS.split(), _FOODS.split()
STYLES = ["garden", "winter", "island", "village", "golden"]
DISHES = ["stew", "curry", "soup", "pie"]
NUMBERS = {1: "one", 2: "two", 3: "three"}
OPENINGS = ("we cook", "tonight there is", "the guests want", "please plan", "on sunday i make")
LABELS, MOST = 200, 10


@dataclass(frozen=True)
class Request:
    """A text and the labels of its shopping list, in the order in which the text implies them."""

    text: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Shop:
    """Labels, and the recipe of each dish."""

    labels: tuple[str, ...]
    recipes: dict[str, tuple[str, ...]]

    def request(self, random: Random) -> Request:
        """Draw a request of 1 to 10 items."""
        while True:
            parts: list[str] = []
            labels: list[str] = []
            for dish in random.sample([*self.recipes], random.choice((0, 1, 1, 2))):
                times = random.choice((1, 1, 2))
                parts.append(dish + " twice" * (times == 2))
                labels += self.recipes[dish] * times
            extras = []
            for label in random.sample(self.labels, random.choice((0, 1, 1, 2))):
                number = random.choice((1, 1, 2, 3))
                extras.append(f"{NUMBERS[number]} {label}")
                labels += [label] * number
            text = f"{random.choice(OPENINGS)} {' and '.join(parts)} ." if parts else ""
            text += f" also get {' and '.join(extras)} ." if extras else ""
            if 1 <= len(labels) <= MOST:
                return Request(text.strip(), tuple(labels))


def open_shop(seed: int = 0) -> Shop:
    """Draw the labels and the recipes."""
    random = Random(seed)
    labels = tuple(sorted(random.sample([f"{kind} {food}" for kind in KINDS for food in FOODS], LABELS)))
    names = [f"{style} {dish}" for style in STYLES for dish in DISHES]
    recipes = {}
    for name in names:
        chosen = random.sample(labels, random.choice((2, 3, 4)))
        recipes[name] = tuple(label for label in chosen for _ in range(random.choice((1, 1, 1, 2))))
    return Shop(labels, recipes)


def train_tokenizer(texts: list[str], size: int) -> Any:
    """Train a byte-level BPE tokenizer, like GPT-2's, on these texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=["<pad>", "</s>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=bpe, pad_token="<pad>", eos_token="</s>")
