"""The JSON of stored items in the DynamoDB API, remembered by their stored bytes, so that it cannot be out of date."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace import limits

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(dict[str, dict[str, Any]]).decode
ITEM_BYTES: Final = 200  # of memory for an item beside these bytes


class _JsonCache:
    """The JSON of items that were read lately, by their stored bytes. It is bounded by its size: when the newer half is
    full, the older half is dropped."""

    def __init__(self, bytes_max: int) -> None:
        self._half_max = bytes_max // 2
        self._newer: dict[bytes, bytes] = {}
        self._older: dict[bytes, bytes] = {}
        self._newer_bytes = 0
        self.get = self._newer.get

    def add(self, body: bytes) -> bytes:
        """The JSON of an item that `get` has not found."""
        text = self._older.get(body)
        if text is None:
            text = _encode(_decode(body))
        self._newer_bytes += ITEM_BYTES + len(body) + len(text)
        self._newer[body] = text
        if self._newer_bytes > self._half_max:
            self._older, self._newer, self._newer_bytes = self._newer, {}, 0
            self.get = self._newer.get
        return text


_json_cache: Final = _JsonCache(limits.JSON_CACHE_BYTES)


def stored_to_json(body: bytes) -> bytes:
    """The JSON of an item in the DynamoDB API, from its stored bytes."""
    return _json_cache.get(body) or _json_cache.add(body)


def key_to_json(body: bytes | msgspec.Raw) -> bytes:
    """As `stored_to_json`, for the attributes of a key, which are not remembered."""
    return _encode(_decode(body))
