"""Settings of a model and of its objective, as frozen dataclasses; the command line is generated from them.

Names come from the registry. The settings of an objective are the fields of its class, so that a new objective needs no
change here.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass, field, fields, make_dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_type_hints

from torchmultiset._checks import Settings, at_least, each_at_least, one_of
from torchmultiset._pooling import PoolKind
from torchmultiset.model.objectives import CONTEXT, Objective
from torchmultiset.model.predictor import Stop
from torchmultiset.model.registry import ENCODERS, OBJECTIVES, POLICIES

__all__ = [
    "CHANNELS",
    "EncoderName",
    "ModelConfig",
    "Norm",
    "ObjectiveConfig",
    "ObjectiveName",
    "PolicyName",
    "PolicyNorm",
    "ResolvedModel",
]

if TYPE_CHECKING:
    EncoderName: TypeAlias = str
    PolicyName: TypeAlias = str
    ObjectiveName: TypeAlias = str
else:
    EncoderName = Literal[tuple(name for name in ENCODERS if name not in ("pretrained", "finetuned"))]
    PolicyName = Literal[tuple(POLICIES)]
    ObjectiveName = Literal[tuple(OBJECTIVES)]
Norm: TypeAlias = Literal["none", "batch"]
PolicyNorm: TypeAlias = Literal["none", "layer"]


@dataclass(frozen=True)
class ModelConfig(Settings):
    """Settings of the network."""

    encoder: EncoderName | None = one_of(EncoderName, default=None)
    """Encoder of the inputs. auto: the paper's convolutional tower for images, linear layers for vectors,
    a convolution over bytes for text (words: over pretrained embeddings), linear layers at each position for sets."""
    channels: tuple[int, ...] | None = each_at_least(1, default=None)
    """Output channels of each convolution of the tower. auto: 10 10 32, the paper's, or a finer map for many labels."""
    norm: Norm = one_of(Norm, default="batch")
    """Normalisation in the tower; the paper has none."""
    units: tuple[int, ...] | None = each_at_least(1, default=None)
    """Widths of the linear layers for vectors; the last is also that of the projection of a backbone's features. For
    text, sets and sequences: one convolution or linear layer per entry, all of the last width. auto: 128 128, or 256
    for pooled frozen features."""
    attention: int | None = None
    """Number of self-attention layers of the encoder of text, sets and sequences. auto: 0."""
    policy: PolicyName | None = None
    """Policy that emits the labels. auto: a ConvLSTM for images, an LSTM for vectors."""
    hidden: int | None = at_least(1, default=None)
    """Channels or units of the policy's layers. Count heads on maps, slots and the power multiset have twice as many;
    other one-shot heads have none. auto: 32."""
    layers: int = at_least(1, default=1)
    """Number of the policy's layers; count heads on maps and slots have one more."""
    policy_norm: PolicyNorm = one_of(PolicyNorm, default="layer")
    """Normalisation of a ConvLSTM's pooled features, before classifier, stop and value head; the paper has none."""
    pool: PoolKind | None = None
    """How the positions of a map or of tokens are pooled by heads and policies that read one vector: their mean (the
    paper's), their maximum, both, a learned weighted mean, or their sum. auto: the sum for text, sets and sequences,
    their mean and maximum for some heads on frozen features, else the mean."""
    dropout: float | None = at_least(0, default=None)
    """Dropout probability of the features before the classifier. auto: 0, or 0.3 for frozen features."""
    size_potential: bool | None = None
    """Whether count heads learn a weight for each size of a multiset. auto: no."""
    size_head: bool | None = None
    """Whether count heads on maps predict these weights from the pooled features of the image. auto: no."""
    joint_states: int = at_least(0, default=0)
    """For count heads on maps: classes compete for the cells, for sizes whose multisets all have at most this number of
    sub-multisets. 0: counts of different classes are independent."""
    decoding: Literal["greedy", "search", "f1", "best"] | None = None
    """How a multiset is predicted: by the most probable label at each step, or by the head's own rule (greedy); by a
    search for the most probable multiset (search); as the multiset with the highest expected F1 (f1; only one-shot
    heads with probabilities); or by whichever scores highest on the validation data (best), which is greedy if holdout
    is none. auto: greedy."""
    stop: Stop | None = None
    """How a multiset ends: at a fixed size, where a stop head decides, or with an END class. auto: fixed if all
    multisets of the training data have the same size, else policy."""
    min_size: int | None = at_least(0, default=None)
    """Smallest number of labels of a predicted multiset. auto: that of the training data."""
    max_size: int | None = at_least(1, default=None)
    """Largest number of labels of a predicted multiset. auto: that of the training data."""
    start_from: str | None = None
    """Model whose weights replace the random initial ones: its folder, its run folder, or the name of an
    included model. If the classes differ, only the encoder's weights are used."""


CHANNELS = (10, 10, 32)
"""Output channels of the convolutions of the paper's tower."""


@dataclass(frozen=True)
class ResolvedModel(ModelConfig):
    """Network settings of a run. `policy` is None for a one-shot head, and `encoder` with a backbone."""

    channels: tuple[int, ...] = CHANNELS
    units: tuple[int, ...] = (128, 128)
    attention: int = 0
    hidden: int = 32
    dropout: float = 0.0
    size_potential: bool = False
    size_head: bool = False
    decoding: Literal["greedy", "search", "f1", "best"] = "greedy"
    stop: Stop = "policy"
    min_size: int = 0
    max_size: int = 1


def attribute_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, including inherited fields.

    Example:
        >>> attribute_docs(ModelConfig)["norm"]
        'Normalisation in the tower; the paper has none.'
    """
    docs: dict[str, str] = {}
    for part in reversed(cls.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(tree, ast.ClassDef)
        for statement, after in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                text = ast.get_docstring(ast.Module([after], []))
                docs[statement.target.id] = " ".join((text or "").split())
    return docs


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class ObjectiveConfig(Settings):
        """Name of the training objective, and the settings of all objectives."""

        objective: str | None = None

        def __init__(self, objective: str | None = None, **settings: Any) -> None: ...

        @property
        def kind(self) -> type[Objective]:
            """Class of the objective, which must be set."""

        def __getattr__(self, name: str) -> Any: ...

else:

    def _objective_config() -> type:
        settings: dict[str, tuple[Any, Any]] = {}
        users: dict[str, list[str]] = {}
        docs: dict[str, str] = {}
        for name, cls in OBJECTIVES.items():
            hints, own = get_type_hints(cls), attribute_docs(cls)
            for setting in fields(cls):
                if setting.name not in CONTEXT:
                    kept = field(default=setting.default, metadata=setting.metadata)
                    settings[setting.name] = (hints[setting.name], kept)
                    users.setdefault(setting.name, []).append(name)
                    docs[setting.name] = own[setting.name]
        lines = [f"    {name}: For {', '.join(users[name])}: {docs[name][0].lower()}{docs[name][1:]}" for name in docs]
        about = "    objective: Training objective: one of the paper's six losses, or a later one. auto: by the data."
        doc = "\n".join(["Objective, and the settings of all objectives.", "", "Attributes:", about, *lines])
        made = make_dataclass(
            "ObjectiveConfig",
            [
                ("objective", ObjectiveName | None, field(default=None)),
                *((name, kind, kept) for name, (kind, kept) in settings.items()),
            ],
            bases=(Settings,),
            frozen=True,
            namespace={"__doc__": doc, "kind": property(lambda config: OBJECTIVES[config.objective])},
        )
        made.__module__ = __name__
        return made

    ObjectiveConfig = _objective_config()
