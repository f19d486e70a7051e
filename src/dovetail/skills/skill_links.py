"""The links in the text of a SKILL.md, and the files of the skill that they refer to. This module does no I/O."""

import posixpath
import re
from collections.abc import Collection, Iterator
from typing import Final
from urllib.parse import unquote

_MAX_TEXT_CHARS: Final = 1024 * 1024
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_CODE_SPAN: Final = re.compile(r"`[^`\n]*`")
_INLINE_LINK: Final = re.compile(r"\]\([ \t]*(?:<([^<>\n]*)>|((?:[^()\s<>]|\([^()\s]*\))+))")
_DEFINITION: Final = re.compile(r" {0,3}\[[^\[\]]+\]:[ \t]*(?:<([^<>\n]*)>|(\S+))")
_EXTERNAL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//|#|\?")


def find_broken_links(text: str, paths: Collection[str]) -> list[str]:
    """Return the broken links in a Markdown text. `paths` lists the files that exist."""
    targets = {*paths, "."}
    for path in paths:
        while path := posixpath.dirname(path):
            targets.add(path)
    links = dict.fromkeys(_list_links(text[:_MAX_TEXT_CHARS]))
    return [link for link in links if _resolve(link) not in targets]


def _list_links(text: str) -> Iterator[str]:
    """Yield the targets of all links to files. Links in code are ignored."""
    fence = ""
    for line in text.splitlines():
        match = _FENCE.match(line)
        if fence:
            fence = "" if match and match[1].startswith(fence) else fence
            continue
        if match:
            fence = match[1]
            continue
        prose = _CODE_SPAN.sub("", line)
        matches = [*_INLINE_LINK.finditer(prose)]
        if definition := _DEFINITION.match(prose):
            matches.append(definition)
        for link_match in matches:
            link = link_match[1] or link_match[2] or ""
            if link and not _EXTERNAL.match(link):
                yield link


def _resolve(link: str) -> str:
    path = unquote(re.split(r"[?#]", link, maxsplit=1)[0])
    # A link that leads outside of the skill starts with a slash or "..", so it matches no file.
    return posixpath.normpath(path)
