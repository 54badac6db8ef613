"""CRC-32, by the fastest function that is installed: they all compute the same."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final


def _crc32() -> Callable[..., int]:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32
    found: Callable[..., int] = isal_zlib.crc32
    return found


crc32: Final = _crc32()
