"""A pretrained backbone inside the model, trained together with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import relu

from torchmultiset._arguments import recorded
from torchmultiset._checks import check, check_one_of
from torchmultiset._memory import MemorySpec
from torchmultiset.encoders.backbone import check_images, normalised
from torchmultiset.encoders.onnx import is_onnx
from torchmultiset.encoders.pretrained import make_backbone, make_trunk
from torchmultiset.encoders.trunk import Trunk, run_stages

__all__ = ["FinetunedBackbone", "Trainable"]

Trainable: TypeAlias = Literal["none", "last", "most", "all"]
"""Stages of a backbone that are trained: none, those of stride 16 and more, of stride 8 and more, or all."""


@recorded
class FinetunedBackbone(nn.Module):
    """Maps of a backbone that is trained with the model, projected to fewer channels by a 1x1 convolution.

    The constructor leaves the weights random, for models that are loaded; `pretrained` starts from ImageNet weights.
    The backbone is part of the state dict, so that a saved model needs neither its package nor its file. Stages and
    layers that the map does not depend on are left out.

    Batch norms always use their fixed statistics: small batches would estimate them poorly. Frozen stages are run
    without recording gradients. The kernels of depthwise convolutions are also frozen: they are 6% of
    EfficientNet-Lite0's weights, but without their gradients a step takes 20% less time, 40% less in bfloat16.

    With EfficientNet-Lite0, `most` in bfloat16 takes less than half the time of training everything in float32: see
    docs/adr/0012-fine-tuning.md.

    Args:
        backbone: Name of the backbone.
        width: Number of channels of the memory.
        strides: Strides of the backbone's map.
        trainable: Stages that are trained.
        source: `fingerprint` of the backbone that training started from.

    Example:
        >>> encoder = FinetunedBackbone("efficientnet-lite0", width=32)
        >>> encoder(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).shape
        torch.Size([2, 32, 4, 4])
        >>> body, projection = encoder.parameter_groups(lr=1e-3)
        >>> body["lr"], projection["lr"]
        (0.0002, 0.001)
    """

    arguments: dict[str, Any]
    """Constructor arguments, set by `recorded`."""
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: str,
        *,
        width: int = 128,
        strides: Sequence[int] = (16, 32),
        trainable: Trainable = "most",
        source: str | None = None,
    ) -> None:
        super().__init__()
        what = "the name of a backbone: an ONNX file cannot be fine-tuned, only used frozen (PretrainedEncoder)"
        check(not is_onnx(backbone), "backbone", what, backbone)
        check_one_of("trainable", trainable, get_args(Trainable))
        self.name = backbone
        self.strides = tuple(strides)
        self.source = source
        trunk = make_trunk(backbone, strides=self.strides)
        self.ends = [end for end, _ in trunk.used()]
        self.stages = nn.ModuleList(trunk.stages()[: self.ends[-1]])
        below = {"all": 0, "most": trunk.stages_below[8], "last": trunk.stages_below[16], "none": len(self.stages)}
        self.frozen = below[trainable]
        """Number of stages, from the first, that are not trained."""
        self.stages[: self.frozen].requires_grad_(False)
        for parameter in trunk.costly():
            parameter.requires_grad_(False)
        self.project = nn.Conv2d(trunk.channels, width, 1)
        for key in ("mean", "std"):
            self.register_buffer(key, torch.tensor(getattr(trunk, key)).view(3, 1, 1), persistent=False)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @classmethod
    def pretrained(
        cls,
        backbone: str,
        *,
        width: int = 128,
        strides: Sequence[int] = (16, 32),
        trainable: Trainable = "most",
        progress: bool = False,
    ) -> FinetunedBackbone:
        """Return an encoder whose backbone has its ImageNet weights.

        The arguments are those of the constructor; `progress` shows a progress bar if weights have to be downloaded.
        """
        with torch.random.fork_rng(devices=[]):  # random weights are drawn before the pretrained ones are loaded
            source_backbone = make_backbone(backbone, strides=strides, progress=progress)
        source = source_backbone.fingerprint()
        encoder = cls(backbone, width=width, strides=tuple(strides), trainable=trainable, source=source)
        assert isinstance(source_backbone.trunk, Trunk)
        # The backbone may have later stages, which are not used.
        for stage, pretrained_stage in zip(encoder.stages, source_backbone.trunk.stages(), strict=False):
            stage.load_state_dict(pretrained_stage.state_dict())
        return encoder

    @classmethod
    def for_inputs(cls, shape: tuple[int, ...], settings: Mapping[str, Any]) -> tuple[FinetunedBackbone, MemorySpec]:
        """Return an encoder for inputs of this shape and the shape of its memory.

        The settings are `units`, `backbone`, `strides` and `finetune`.
        """
        finetune = settings["finetune"]
        check(len(shape) == 3, "finetune", "'none' for inputs that are not images", finetune)
        width, strides = settings["units"][-1], settings["strides"]
        encoder = cls.pretrained(settings["backbone"], width=width, strides=strides, trainable=finetune)
        with torch.no_grad():
            features, height, wide = encoder(torch.zeros(1, *shape, dtype=torch.uint8)).shape[1:]
        return encoder, MemorySpec(features, grid=(height, wide))

    def forward(self, x: Shaped[Tensor, "b c h w"]) -> Float[Tensor, "b d i j"]:
        """Compute a map (B, width, h, w) from images (B, 3, H, W) or (B, 1, H, W), uint8 or in [0, 1]."""
        check_images(x)
        images = normalised(x, self.mean, self.std).contiguous(memory_format=torch.channels_last)
        features = run_stages(self.stages, self.ends, images, frozen=self.frozen)
        return relu(self.project(features))

    def parameter_groups(self, lr: float, *, body: float = 0.2) -> list[dict[str, Any]]:
        """Return the trained parameters as groups for an optimiser: the backbone's, then the projection's.

        Args:
            lr: Learning rate of the projection.
            body: Factor for the learning rate of the backbone.
        """
        trained = [parameter for parameter in self.stages.parameters() if parameter.requires_grad]
        return [{"params": trained, "lr": body * lr}, {"params": [*self.project.parameters()], "lr": lr}]
