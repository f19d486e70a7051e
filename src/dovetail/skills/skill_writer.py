"""Write the files of a skill into a new folder. The name of the skill and all paths come from an untrusted server.

All files are written into a hidden folder first, which then gets the name of the skill in one step. Links are never
followed below the folder that the user chose, and no file is executable.
"""

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from unicodedata import category, normalize

from dovetail.error_context import clip
from dovetail.skills.front_matter import check_name
from dovetail.skills.served_skill import SkillProblem
from dovetail.skills.skill import MANIFEST, find_unsafe_name

_MAX_DEPTH: Final = 16
_MAX_NAME_BYTES: Final = 200  # Most file systems limit names to 255 bytes or characters.
_MAX_PATH_BYTES: Final = 1000
# Windows opens a device for these names, with any extension.
_DEVICE: Final = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|clock\$|com[0-9¹²³]|lpt[0-9¹²³])(?:[. ].*)?", re.DOTALL
)
_RESERVED_CHARACTERS: Final = re.compile(r'[<>:"|?*]')


class SkillExists(SkillProblem):
    """Raised if the folder of a skill exists and must not be replaced."""


def check_paths(paths: Iterable[str]) -> None:
    """Raise SkillProblem if a path of a skill is unsafe or does not work on every system."""
    spellings: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        if (reason := find_unsafe_path(path)) is not None:
            raise SkillProblem(f"the path {clip(path)!r} is not safe, because {reason}")
        folded = _fold(path)
        if folded in spellings:
            raise SkillProblem(f"{clip(path)!r} and {clip(spellings[folded])!r} are the same file on some systems")
        spellings[folded] = path
        parts = path.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if folders.setdefault(_fold(folder), folder) != folder:
                raise SkillProblem(
                    f"{clip(folder)!r} and {clip(folders[_fold(folder)])!r} are the same folder on some systems"
                )
    for folded, path in spellings.items():
        if folded in folders:
            raise SkillProblem(f"{clip(path)!r} is a file and a folder")


def find_unsafe_path(path: str) -> str | None:
    """Return the reason why it is unsafe to write a skill's file to this path, or None if it is safe."""
    names = path.split("/")
    if len(names) > _MAX_DEPTH:
        return f"it is deeper than {_MAX_DEPTH} folders"
    if len(path.encode(errors="replace")) > _MAX_PATH_BYTES:
        return f"it is longer than {_MAX_PATH_BYTES} bytes"
    return next((reason for name in names if (reason := _find_unsafe_part(name)) is not None), None)


def _find_unsafe_part(name: str) -> str | None:
    if (reason := find_unsafe_name(name)) is not None:
        return reason
    if name.startswith("."):
        return "a hidden file does not belong in a skill"
    if _RESERVED_CHARACTERS.search(name):
        return 'it contains one of the characters < > : " | ? *'
    if any(category(char) in ("Cc", "Cf", "Zl", "Zp") for char in name):
        return "it contains an invisible character"
    if name != name.strip() or name.endswith("."):
        return "it starts or ends with a space, or ends with a dot"
    if _DEVICE.fullmatch(name.lower()):
        return "it is the name of a device on some systems"
    if len(name.encode()) > _MAX_NAME_BYTES:
        return f"a name is longer than {_MAX_NAME_BYTES} bytes"
    return None


def _fold(path: str) -> str:
    return normalize("NFC", normalize("NFC", path).casefold())


def check_destination(directory: Path, name: str, *, force: bool) -> Path:
    """Return the folder for a skill with this name.

    Args:
        directory: The folder that contains the folder of the skill.
        name: The name of the skill.
        force: Whether a skill that exists is replaced, with all its files.

    Raises:
        SkillProblem: the name is not safe.
        SkillExists: the folder exists, and `force` is False or the folder is not the folder of a skill.
    """
    check_name(name)
    if (reason := _find_unsafe_part(name)) is not None:
        raise SkillProblem(f"the name {name!r} is not safe, because {reason}")
    destination = directory / name
    try:
        status = destination.lstat()
    except FileNotFoundError:
        return destination
    if not force:
        raise SkillExists(f"{destination} already exists")
    # The server chooses the skill's name, which may be the name of an unrelated folder. Replace only folders of skills.
    if not stat.S_ISDIR(status.st_mode) or not (destination / MANIFEST).is_file():
        raise SkillExists(f"{destination} is not the folder of a skill, so it is not replaced. Choose another folder")
    return destination


def write_skill(directory: Path, name: str, files: Mapping[str, bytes], *, force: bool = False) -> Path:
    """Write the verified files of a skill into a new folder, and return this folder. Write all files or none.

    Args:
        directory: The folder that contains the new folder. It is created if it does not exist.
        name: The name of the skill, which is the name of the new folder.
        files: The content of each file by its path in the skill.
        force: Whether to replace a skill that exists, with all its files.

    Raises:
        SkillProblem: the name or a path is not safe.
        SkillExists: the folder exists, and `force` is False or the folder is not the folder of a skill.
    """
    check_paths(files)
    check_destination(directory, name, force=force)
    directory.mkdir(parents=True, exist_ok=True)
    staging = directory / f".{name}-{secrets.token_hex(8)}"
    staging.mkdir()
    try:
        for path, data in files.items():
            _write_file(staging / path, data)
        # The folder may have appeared in the meantime.
        destination = check_destination(directory, name, force=force)
        _move(staging, destination)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return destination


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:  # This fails if the file or a link with its name exists.
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _move(staging: Path, destination: Path) -> None:
    if not os.path.lexists(destination):
        # This fails if another program has created the destination, unless the destination is an empty folder.
        os.rename(staging, destination)
        return
    replaced = staging.with_name(f"{staging.name}-replaced")
    os.rename(destination, replaced)
    try:
        os.rename(staging, destination)
    except BaseException:
        os.rename(replaced, destination)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
