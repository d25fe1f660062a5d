"""What a measurement was made with: kept beside every number."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import torch

from torchmultiset.pipeline.record import environment


def circumstances() -> dict[str, Any]:
    """Date, commit, versions and machine; no names, no paths."""
    told = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **environment()}
    told["machine"]["instructions"] = torch.backends.cpu.get_cpu_capability()
    return told
