"""Word pieces with pretrained embeddings, compared with their package."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from torchmultiset import Predictor
from torchmultiset.data import Examples
from torchmultiset.data.joined import joined_epochs
from torchmultiset.data.tokens import TokenText
from torchmultiset.encoders import WordEncoder, words
from torchmultiset.export import to_onnx
from torchmultiset.heads import GaussianCounts
from torchmultiset.model.build import build_predictor
from torchmultiset.model.config import ModelConfig, ObjectiveConfig
from torchmultiset.model.inputs import InputKind
from torchmultiset.model.objectives import CountsObjective
from torchmultiset.training import fit
from torchmultiset.training.config import OptimConfig

TEXTS = ["two cats and a dog", "", "€uro 漢字", "\ud800 alone", "x" * 40, "a\nb"]


def inputs(some: list[str], columns: np.ndarray | None = None) -> Tensor:
    return torch.from_numpy(TokenText(some, columns)[np.arange(len(some))])


@pytest.fixture(scope="module")
def package():
    """The package's own tokenizer and embeddings."""
    from wordllama import WordLlama

    return WordLlama.load(cache_dir=words._folder(), disable_download=True)


def test_pieces_and_embeddings_equal_those_of_the_package(package):
    some = ["Two cats and a dog.", "naïve 漢字", "1,2-dichloroethane"]
    for ids, theirs in zip(words.tokenise([text.encode() for text in some]), package.tokenize(some), strict=True):
        first, *others = ids  # the package omits the start token
        assert first == 1
        assert others == [piece for piece, used in zip(theirs.ids, theirs.attention_mask, strict=True) if used]
    ours = words._vectors(torch.device("cpu"))[ids]
    torch.testing.assert_close(ours.float(), torch.from_numpy(package.embedding[ids]).float())


@pytest.mark.parametrize("attention", [0, 1])
def test_features_do_not_depend_on_padding_or_the_rest_of_the_batch(attention):
    torch.manual_seed(0)
    encoder, x = WordEncoder(width=8, attention=attention).double().eval(), inputs(TEXTS).double()
    together = encoder(x)
    for i, row in enumerate(x):
        n = int((row[:, 0] > 0).sum())
        for length in (n, n + 25):
            alone = torch.zeros(1, length, 1, dtype=torch.float64)
            alone[0, :n] = row[:n]
            values, mask = encoder(alone)
            torch.testing.assert_close(values[mask], together.values[i][together.mask[i]])


def test_texts_without_words_are_encoded():
    encoder = WordEncoder(width=8).eval()
    assert encoder(inputs([""])).mask.tolist() == [[True]]  # the start token
    padding = encoder(torch.zeros(2, 3, 1))
    assert not padding.mask.any()
    assert padding.values.isfinite().all()
    assert encoder(torch.zeros(0, 3, 1)).values.shape == (0, 1, 8)


def test_joined_texts_are_read_as_lines():
    encoder = WordEncoder(width=8)
    examples = Examples(TokenText(["two cats", "a dog"]), np.array([[0, -1], [1, 1]]), ("cat", "dog"), tokens="text")
    joined = joined_epochs(examples, 1.0, max_size=3, seed=0)(0).batch([0, 1])
    assert joined.target.tolist() == [[1, 2], [1, 2]]
    lines = words.tokenise([b"two cats\na dog", b"a dog\ntwo cats"])
    assert all(pieces in lines for pieces in encoder._pieces(joined.x)[0].tolist())


def test_columns_of_a_table_with_text_are_standardised_and_encoded():
    encoder = WordEncoder(2, width=8).eval()
    some = inputs(["a cat"] * 3, np.array([[1.0, 50.0], [2.0, 70.0], [2.0, 70.0]], dtype=np.float32))
    encoder.fit_inputs([some])
    first, second, third = encoder(some).values
    assert not torch.allclose(first, second)
    torch.testing.assert_close(second, third)
    shifted = some.clone()
    shifted[:, 0, 1:] = shifted[:, 0, 1:] * 10 + 3  # another unit changes nothing
    encoder.fit_inputs([shifted])
    torch.testing.assert_close(encoder(shifted).values[0], first)


SEEN = {
    "animal": "cat dog horse cow sheep pig goat lion bear fox rabbit mouse monkey deer",
    "vehicle": "car truck bus train bicycle motorcycle ship plane van tram jeep yacht",
}
UNSEEN = {"animal": "elephant wolf donkey tiger", "vehicle": "helicopter taxi boat tractor"}


def sentences(number: int, seed: int, *, unseen: bool) -> Examples:
    """Sentences with up to three animals and three vehicles, from the words seen in training or from others."""
    rng = np.random.default_rng(seed)
    chosen = {kind: names.split() for kind, names in (UNSEEN if unseen else SEEN).items()}
    texts, labels = [], np.full((number, 6), -1)
    for i in range(number):
        counts = rng.integers(0, 4, 2)
        words = [str(rng.choice(chosen[kind])) for kind, n in zip(chosen, counts, strict=True) for _ in range(n)]
        rng.shuffle(words)
        texts.append("there was a " + " and a ".join(words or ["wall"]))
        labels[i, : sum(counts)] = [0] * counts[0] + [1] * counts[1]
    return Examples(TokenText(texts), labels, classes=("animal", "vehicle"), tokens="text")


@pytest.mark.slow
def test_words_absent_from_training_are_counted(tmp_path):
    train, unseen = sentences(400, 0, unseen=False), sentences(200, 1, unseen=True)
    torch.manual_seed(0)
    encoder = WordEncoder(width=32, layers=0)
    head = GaussianCounts(2, 32, most=6, pool="sum", dropout=0.3, sizes=(0, 6))
    predictor = Predictor(encoder, head, train.classes, max_size=6, min_size=0)
    optim = OptimConfig(epochs=6, batch_size=16, lr=5e-3, weight_decay=0.05, select="last")
    fit(predictor, CountsObjective(), train, train.subset(np.arange(50)), optim, tmp_path / "run")
    counts = predictor.eval().predict(unseen.batch(np.arange(200)).x)
    right = (counts == torch.from_numpy(unseen.counts)).all(1).float().mean()
    assert right > 0.6  # counting words without knowing their kinds would be correct for 7 of 16


def built() -> Predictor:
    torch.manual_seed(0)
    model = ModelConfig(encoder="words", units=(8,))
    objective = ObjectiveConfig("counts", count_head="gaussian")
    return build_predictor(model, objective, shape=(0, 1), classes=["a", "b"], max_size=3, stop="policy").eval()


def test_a_saved_model_has_the_fingerprint_of_the_embeddings_but_not_the_embeddings(tmp_path, monkeypatch):
    predictor = built()
    predictor.save(tmp_path / "model")
    assert sum(file.stat().st_size for file in (tmp_path / "model").iterdir()) < 100_000
    x = inputs(TEXTS)
    torch.testing.assert_close(Predictor.load(tmp_path / "model").scores(x), predictor.scores(x))
    monkeypatch.setattr(words, "_fingerprint", lambda: 64 * "0")
    with pytest.raises(ValueError, match=r"word embeddings are not those this model was trained with.*train the model"):
        Predictor.load(tmp_path / "model")


def test_without_the_extra_the_error_has_its_name(monkeypatch):
    monkeypatch.setattr(words, "_PACKAGE", "not_installed_at_all")
    words._fingerprint.cache_clear()
    assert not words.words_installed()
    with pytest.raises(ImportError, match=r"word embeddings require an extra: .*text"):
        built()


def test_export_is_refused_with_an_alternative():
    kind = InputKind((0, 1), "float32", exif=False)
    with pytest.raises(ValueError, match=r"encoder must be one that reads bytes \(train with --encoder text\)"):
        to_onnx(built(), kind=kind)
