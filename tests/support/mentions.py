"""Check which values a message mentions, without comparing its sentences."""

import re


def values(*mentioned: object) -> str:
    """Return a pattern for texts that mention these values in this order, each as a whole word."""
    return "(?s)" + ".*".join(rf"(?<!\w){re.escape(str(value))}(?!\w)" for value in mentioned)


def mentions(text: object, *mentioned: object) -> bool:
    """Return whether a text, or the text of an error, mentions these values in this order."""
    return re.search(values(*mentioned), str(text)) is not None
