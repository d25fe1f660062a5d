"""Encoders: modules that map an input to a memory, a vector (B, D) or a map (B, D, h, w). Any `nn.Module` works."""

from torchmultiset.encoders.backbone import Backbone
from torchmultiset.encoders.conv import ConvEncoder
from torchmultiset.encoders.finetuned import FinetunedBackbone
from torchmultiset.encoders.mlp import MLPEncoder
from torchmultiset.encoders.onnx import onnx_backbone
from torchmultiset.encoders.pretrained import PretrainedEncoder, backbone_channels, make_backbone

__all__ = [
    "Backbone",
    "ConvEncoder",
    "FinetunedBackbone",
    "MLPEncoder",
    "PretrainedEncoder",
    "backbone_channels",
    "make_backbone",
    "onnx_backbone",
]
