"""Registry of all encoders, policies, heads, objectives and backbones of the library.

Config, command line, saved models, figures and documentation read it, so that a new component is one file and one line
here. Entries are import paths, and classes are imported when they are first used.
"""

from __future__ import annotations

from torchmultiset._registry import Registry
from torchmultiset.encoders.pretrained import BACKBONES

__all__ = ["BACKBONES", "COUNT_HEADS", "ENCODERS", "HEADS", "OBJECTIVES", "POLICIES"]

ENCODERS = Registry(
    "encoder",
    {
        "conv": "torchmultiset.encoders:ConvEncoder",
        "mlp": "torchmultiset.encoders:MLPEncoder",
        "text": "torchmultiset.encoders:TextEncoder",
        "ngrams": "torchmultiset.encoders:NgramEncoder",
        "words": "torchmultiset.encoders:WordEncoder",
        "set": "torchmultiset.encoders:SetEncoder",
        "sequence": "torchmultiset.encoders:SequenceEncoder",
        "pretrained": "torchmultiset.encoders:PretrainedEncoder",
        "finetuned": "torchmultiset.encoders:FinetunedBackbone",
    },
)

POLICIES = Registry(
    "policy",
    {
        "conv-lstm": "torchmultiset.policies:ConvLSTMPolicy",
        "lstm": "torchmultiset.policies:LSTMPolicy",
        "feed-forward": "torchmultiset.policies:FeedForwardPolicy",
        "transformer": "torchmultiset.policies:TransformerPolicy",
    },
)

COUNT_HEADS = Registry(
    "count_head",
    {
        "cells": "torchmultiset.heads:CellCounts",
        "table": "torchmultiset.heads:CountTable",
        "gaussian": "torchmultiset.heads:GaussianCounts",
        "poisson": "torchmultiset.heads:PoissonCounts",
        "regression": "torchmultiset.heads:RegressedCounts",
        "mixture": "torchmultiset.heads:CountMixture",
    },
)

HEADS = Registry(
    "head",
    {
        **COUNT_HEADS.places,
        "ridge": "torchmultiset.heads:RidgeCounts",
        "slots": "torchmultiset.heads:Slots",
        "power": "torchmultiset.heads:PowerMultiset",
        "one-step": "torchmultiset.heads:OneStep",
    },
)

OBJECTIVES = Registry(
    "objective",
    {
        "multi": "torchmultiset.model.objectives.multiset:MultisetObjective",
        "rl": "torchmultiset.model.objectives.reinforce:ReinforceObjective",
        "dm-l1": "torchmultiset.model.objectives.matching:L1MatchingObjective",
        "dm-kl": "torchmultiset.model.objectives.matching:KLMatchingObjective",
        "seq": "torchmultiset.model.objectives.sequence:SequenceObjective",
        "one-step": "torchmultiset.model.objectives.one_step:OneStepObjective",
        "counts": "torchmultiset.model.objectives.counts:CountsObjective",
        "hungarian": "torchmultiset.model.objectives.hungarian:HungarianObjective",
        "power": "torchmultiset.model.objectives.power:PowerObjective",
        "marginal": "torchmultiset.model.objectives.marginal:MarginalObjective",
        "ridge": "torchmultiset.model.objectives.ridge:RidgeObjective",
    },
)
