"""Use the scikit-learn interface: pipeline, cross-validation, and probabilities of counts.

    python examples/estimator.py

Needs an extra: pip install "torchmultiset[sklearn]"
"""

from collections import Counter

import numpy as np
from sklearn.decomposition import PCA
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

from torchmultiset.estimator import MultisetClassifier


def main(epochs: int = 40) -> float:
    rng = np.random.default_rng(0)
    things, vectors = np.array(["apple", "pear", "plum"]), rng.normal(size=(3, 8))
    baskets = [rng.choice(3, rng.integers(1, 5)) for _ in range(300)]
    x = np.array([vectors[basket].sum(0) for basket in baskets])  # each basket is the sum of its items' vectors
    y = [Counter(things[basket].tolist()) for basket in baskets]
    model = make_pipeline(PCA(4, random_state=0), MultisetClassifier(epochs=epochs, random_state=0))
    scores: np.ndarray = cross_val_score(model, x, y, cv=3)
    model.fit(x, y)
    print(f"exact match in each fold: {scores.round(2)}")
    print(f"first: {model.predict(x[:1])[0]}; probability of 0, 1, 2, ... apples: {model.predict_proba(x[:1])[0, 0]}")
    return float(scores.mean())


if __name__ == "__main__":
    main()
