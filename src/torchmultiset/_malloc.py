"""Tuning of the C library's memory allocator."""

from __future__ import annotations

import ctypes
import platform

__all__ = ["keep_freed_memory"]

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h


def keep_freed_memory() -> None:
    """Let this process keep up to two gigabytes of freed memory for reuse.

    A training step frees what the next one allocates. By default glibc returns large blocks to the system in between,
    and the system has to clear each page before it is written again: a fifth of the time of fine-tuning. This affects
    the whole process, so it is for programs, not for libraries. It does nothing with other C libraries.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)  # blocks of any size come from the heap
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)  # the largest value that it accepts
