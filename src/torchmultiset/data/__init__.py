"""Data sets of inputs and the multisets of labels that belong to them."""

from torchmultiset.data.examples import Batch, Examples, Inputs

__all__ = ["Batch", "Examples", "Inputs"]
