"""Bodies that are documents, kept as they came."""

from __future__ import annotations


def body_text(body: bytes) -> str:
    """Decode a body; ``ValueError`` if it is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"body: not UTF-8 ({error.reason})") from None
