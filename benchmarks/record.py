"""What a measurement was made with: kept beside every number."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch

import torchmultiset


def circumstances() -> dict[str, object]:
    """Version, commit, machine and date; no names, no paths."""
    return {
        "torchmultiset": torchmultiset.__version__,
        "git": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "src", "benchmarks")),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "system": platform.system(),
        },
    }


def _git(*arguments: str) -> str | None:
    answer = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
