"""Encoders: what turns an input into a memory, a vector (B, D) or a map (B, D, h, w). Any `nn.Module` will do."""

from torchmultiset.encoders.conv import ConvEncoder
from torchmultiset.encoders.mlp import MLPEncoder

__all__ = ["ConvEncoder", "MLPEncoder"]
