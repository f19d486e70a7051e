"""Decode base64url (RFC 4648, section 5), strictly and alike on each Python version."""

import base64


def decode_base64url(text: str) -> bytes:
    """Decode URL-safe base64, with or without padding. Raise ValueError if the text contains other characters.

    Before Python 3.15, the standard library also accepts `+` and `/`. Python 3.15 warns about these characters.
    """
    if "+" in text or "/" in text:
        raise ValueError("base64url contains no + and no /")
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
