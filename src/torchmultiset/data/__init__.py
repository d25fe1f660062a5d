"""Data sets of inputs and the multisets of labels that belong to them.

- `digits`: where the digits of MNIST come from
- `mnist_multi`: pictures of several digits, generated
- `coco`: the paper's variants of COCO
- `manifest`: your own images, arrays or tables
- `ranks`: the orders that the sequence loss can be taught
- `fresh`: new images of MNIST Multi for each epoch
- `augment`: images that are changed a little in training
- `features`: what a frozen backbone makes of images, kept on disk
"""

from torchmultiset.data.examples import Batch, Examples, Inputs
from torchmultiset.data.load import load_data

__all__ = ["Batch", "Examples", "Inputs", "load_data"]
