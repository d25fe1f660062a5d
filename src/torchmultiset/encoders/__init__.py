"""Encoders: modules that map an input to a memory, a vector (B, D), a map (B, D, h, w) or tokens (B, N, D).

Any `nn.Module` works.
"""

from torchmultiset.encoders.backbone import Backbone
from torchmultiset.encoders.conv import ConvEncoder
from torchmultiset.encoders.finetuned import FinetunedBackbone
from torchmultiset.encoders.mlp import MLPEncoder
from torchmultiset.encoders.onnx import onnx_backbone
from torchmultiset.encoders.pretrained import PretrainedEncoder, backbone_channels, make_backbone
from torchmultiset.encoders.text import NgramEncoder, TextEncoder
from torchmultiset.encoders.tokens import SequenceEncoder, SetEncoder
from torchmultiset.encoders.words import WordEncoder, words_installed

__all__ = [
    "Backbone",
    "ConvEncoder",
    "FinetunedBackbone",
    "MLPEncoder",
    "NgramEncoder",
    "PretrainedEncoder",
    "SequenceEncoder",
    "SetEncoder",
    "TextEncoder",
    "WordEncoder",
    "backbone_channels",
    "make_backbone",
    "onnx_backbone",
    "words_installed",
]
