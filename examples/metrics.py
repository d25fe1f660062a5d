"""Compute metrics of counts, as functions and as classes that accumulate batches: python examples/metrics.py"""

from torchmultiset import metrics, multiset


def main() -> tuple[list[float], float]:
    predicted = multiset.from_labels([[0, 0, 1], [2], []], num_classes=3)
    true = multiset.from_labels([[1, 0, 0], [2, 2], []], num_classes=3)  # the order does not matter
    for name in ("exact_match", "precision", "recall", "f1"):
        print(f"{name:<12} {getattr(metrics, name)(predicted, true).tolist()}")
    total = metrics.F1()
    for some in (slice(0, 2), slice(2, 3)):
        total.update(predicted[some], true[some])
    print(f"F1 over all  {total.compute().item():.3f}")
    return metrics.exact_match(predicted, true).tolist(), total.compute().item()


if __name__ == "__main__":
    main()
