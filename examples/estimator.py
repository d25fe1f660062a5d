"""The same in scikit-learn's manner: a pipeline, cross-validation, counts with probabilities.

    python examples/estimator.py

Needs the extra: pip install "torchmultiset[sklearn]"
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
    x = np.array([vectors[basket].sum(0) for basket in baskets])  # what the scales say
    y = [Counter(things[basket].tolist()) for basket in baskets]
    model = make_pipeline(PCA(4, random_state=0), MultisetClassifier(epochs=epochs, random_state=0))
    scores: np.ndarray = cross_val_score(model, x, y, cv=3)
    model.fit(x, y)
    print(f"exact match in each fold: {scores.round(2)}")
    print(f"first: {model.predict(x[:1])[0]}; how probable are 0, 1, 2, ... apples: {model.predict_proba(x[:1])[0, 0]}")
    return float(scores.mean())


if __name__ == "__main__":
    main()
