"""SHA-256 of short texts, by the interpreter's own module where it has one: `hashlib` loads OpenSSL first, and every
rank would wait for that.
"""

from __future__ import annotations

try:
    from _sha2 import sha256  # type: ignore[import-not-found,unused-ignore]  # since 3.12
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found,unused-ignore,no-redef]
    except ImportError:
        from hashlib import sha256


def sha256_of(text: str) -> str:
    """In hexadecimal digits."""
    return str(sha256(text.encode()).hexdigest())
