"""The identity of a server: what is started or reached, as a digest. A name proves nothing: anyone can take it."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dovetail.wire.codec import encode_canonical

_PROCESS_KEYS: Final = ("command", "args", "env", "cwd")


def identity_of(target: Any, *, origin: str = "") -> str:
    """The digest of a target as written, references unresolved, so that it holds no secret's value.

    `place` is the file a project's server comes from: the same words in another project are another server. Headers
    are left out, since they say who asks, not who answers.
    """
    return hashlib.sha256(encode_canonical([_describe_target(target), origin])).hexdigest()[:32]


def _describe_target(target: Any) -> Any:
    match target:
        case str() | Path():
            return {"target": str(target)}
        case list() | tuple():
            return {"command": str(target[0]) if target else "", "args": [str(arg) for arg in target[1:]]}
        case Mapping() if target.get("url"):
            return {"target": str(target["url"])}
        case Mapping():
            return {name: target[name] for name in _PROCESS_KEYS if target.get(name)}
        case _:  # an object of this process, which nobody else can put there
            return {"object": f"{type(target).__module__}.{type(target).__qualname__}", "name": _get_name(target)}


def _get_name(target: Any) -> str:
    name = getattr(target, "name", "")
    return name if isinstance(name, str) else ""
