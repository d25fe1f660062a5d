"""Data sets of inputs, each with a multiset of labels.

- `digits`: sources of MNIST digits
- `mnist_multi`: generated images of several digits
- `coco`: the paper's variants of COCO
- `manifest`: user-defined images, arrays, tables, text, sets or sequences
- `tokens`: inputs of varying length, padded per batch
- `joined`: pairs of such inputs, joined for training
- `in_memory`: strings, arrays and tables in memory
- `importers`: annotated images from COCO JSON, YOLO text and Pascal VOC XML
- `ranks`: label orders for the sequence loss
- `fresh`: new MNIST Multi images for each epoch
- `augment`: image augmentation for training
- `photos`: augmentation of photographs, and mosaics
- `features`: on-disk cache of frozen backbone features
- `views`: augmented views of images in that cache
"""

from torchmultiset.data.examples import Batch, Examples, Inputs, concatenate
from torchmultiset.data.load import load_data

__all__ = ["Batch", "Examples", "Inputs", "concatenate", "load_data"]
