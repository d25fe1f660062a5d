"""Environment of a measurement, stored with every number."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import torch

from torchmultiset.pipeline.record import environment


def circumstances() -> dict[str, Any]:
    """Return date, commit, versions and machine; no names, no paths."""
    record = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **environment()}
    record["machine"]["instructions"] = torch.backends.cpu.get_cpu_capability()
    return record
