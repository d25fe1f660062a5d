"""How the C library hands out memory."""

from __future__ import annotations

import ctypes
import platform

__all__ = ["keep_freed_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h


def keep_freed_memory() -> None:
    """Let this process keep memory that it frees, up to a gigabyte, to use it again.

    A training step frees what the next one allocates. By default glibc gives large pieces back to the system in
    between, and the system has to clear each page before it is written again. For programs, not for libraries: it
    holds for the whole process. Other C libraries are left alone.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 25)  # the most it takes
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
