"""Keys that are built from parts, such as the name of a stored value. Different parts always give different keys."""


def build_key(*parts: str) -> str:
    """Join parts with colons. A colon or percent sign inside a part becomes a percent code."""
    return ":".join(escape(part, ":") for part in parts)


def escape(text: str, characters: str) -> str:
    """Replace some characters with percent codes. Different texts stay different."""
    for character in "%" + characters:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
