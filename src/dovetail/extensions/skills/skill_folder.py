"""A folder of skills on disk: which files its skills have, and the content of each file.

Only files that were found by a scan can be read, so a URI never becomes a path. A file is opened directory by directory
and without following links, so a link that replaces a directory later leads nowhere. A scan refuses files that do not
belong into a skill. It computes a digest again only if the file has changed.
"""

import os
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from unicodedata import normalize

from dovetail.error_context import clip
from dovetail.extensions.skills.front_matter import FrontMatterError, check_fields, parse_front_matter
from dovetail.extensions.skills.served_skill import ServedSkill, SkillProblem, build_served_skill
from dovetail.extensions.skills.skill import MANIFEST, MAX_FILES, MAX_SKILL_BYTES, compute_digest, find_unsafe_name
from dovetail.log import log
from dovetail.wire.base import Struct

_MAX_DEPTH: Final = 16
_MAX_ENTRIES: Final = 50_000  # Maximum number of files and directories in a folder, including those outside of skills.
# A file that changed this recently may change again without a new time stamp.
_SETTLED_NS: Final = 2_000_000_000
_MAX_SHOWN_CHARS: Final = 400
_MAX_PROBLEMS: Final = 20  # The problems of one skill that are reported.
_READ_CHUNK_BYTES: Final = 1024 * 1024
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for a writer.
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _FoundFile(Struct, frozen=True):
    """A file that a scan found: its path in the skill, its real path in the folder, and its size."""

    path: str
    real_path: tuple[str, ...]
    size: int


class _HashedFile(Struct, frozen=True):
    """The digest of a file. `stamp` shows whether the file has changed since the digest was computed."""

    stamp: tuple[int, ...]
    hashed_at: int
    digest: str
    size: int
    front_matter: "dict[str, object] | FrontMatterError | None" = None


class _FoundSkill:
    def __init__(self, directory: tuple[str, ...]) -> None:
        self.directory = directory
        self.files: list[_FoundFile] = []
        self.folded_paths: dict[str, str] = {}
        self.problems: list[str] = []

    def fail(self, problem: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)


class SkillFolder:
    """The skills in a folder. A skill is a folder with a file SKILL.md, at any depth.

    Args:
        path: The folder.
        on_problem: A function that gets the path of a skill that cannot be served, and the problem. Without it, the
            first problem raises SkillProblem.

    Raises:
        SkillProblem: the folder has no skill, or a skill has a file that cannot be served.
    """

    def __init__(self, path: str | os.PathLike[str], on_problem: Callable[[str, str], object] | None = None) -> None:
        self._root = Path(path).resolve()
        if not self._root.is_dir():
            raise SkillProblem(f"{path} is not a folder")
        self._lock = threading.Lock()
        self._hashed: dict[tuple[str, ...], _HashedFile] = {}
        self._real_paths: dict[str, tuple[str, ...]] = {}
        self._digests: dict[str, str] = {}
        self._logged_problems: set[str] = set()
        self._checked_at = 0.0
        self.skills: dict[str, ServedSkill] = {}  # The skills by the URI of their SKILL.md. A change replaces the dict.
        self._scan(is_first=True, on_problem=on_problem)

    def refresh(self, max_age: float = 0.0) -> bool:
        """Scan the folder again unless that happened less than `max_age` seconds ago. Return whether a skill changed.

        A skill with a problem keeps its last valid entry. The problem is logged once.
        """
        with self._lock:
            if time.monotonic() - self._checked_at < max_age:
                return False
            before = self.skills
            try:
                self._scan(is_first=False)
            except (SkillProblem, OSError) as exc:
                self._log_problem(str(exc))
            self._checked_at = time.monotonic()
            return self.skills != before

    def read(self, uri: str) -> bytes | None:
        """Return the content of a file. Return None if the folder has no such file, or if it is no longer served."""
        real_path = self._real_paths.get(uri)
        if real_path is None:
            return None
        try:
            with _open_file(self._root, real_path) as (descriptor, _):
                return _read_all(descriptor)
        except (OSError, SkillProblem):
            return None

    def is_listed(self, uri: str, data: bytes) -> bool:
        """Return whether the content of a file matches its digest from the last scan."""
        return self._digests.get(uri) == compute_digest(data)

    def _scan(self, *, is_first: bool, on_problem: Callable[[str, str], object] | None = None) -> None:
        scan = _Scan(self._root)
        scan.run()
        hashed: dict[tuple[str, ...], _HashedFile] = {}
        real_paths: dict[str, tuple[str, ...]] = {}
        skills: dict[str, ServedSkill] = {}
        for found in scan.skills:
            try:
                skill = self._build_skill(found, hashed)
            except SkillProblem as exc:
                if on_problem is not None:
                    for problem in found.problems or [str(exc)]:
                        on_problem("/".join(self._name_parts(found)), problem)
                    continue
                if is_first:
                    raise
                self._log_problem(str(exc))
                previous = self._find_skill(found)
                if previous is None:
                    continue
                skill = previous
                real_paths.update((file.uri, self._real_paths[file.uri]) for file in skill.files.values())
            else:
                real_paths.update((skill.files[file.path].uri, file.real_path) for file in found.files)
            skills[skill.entry.uri] = skill
        if is_first and not scan.skills:
            raise SkillProblem(f"{self._root} has no skills. A skill is a folder with a file {MANIFEST}")
        self._hashed, self._real_paths, self.skills = hashed, real_paths, skills
        self._digests = {file.uri: file.digest for skill in skills.values() for file in skill.listed_files}

    def _find_skill(self, found: _FoundSkill) -> ServedSkill | None:
        return next((skill for skill in self.skills.values() if skill.directory == self._name_parts(found)), None)

    def _name_parts(self, found: _FoundSkill) -> tuple[str, ...]:
        # The folder itself may be a skill.
        return found.directory or (self._root.name,)

    def _build_skill(self, found: _FoundSkill, hashed: dict[tuple[str, ...], _HashedFile]) -> ServedSkill:
        place = self._root.joinpath(*found.directory)
        if found.problems:
            raise SkillProblem(found.problems[0])
        if sum(file.size for file in found.files) > MAX_SKILL_BYTES:
            raise _make_size_problem(place)
        digests: dict[str, tuple[str, int]] = {}
        front_matter = None
        for file in found.files:
            record = hashed.get(file.real_path)
            if record is None:
                try:
                    record = hashed[file.real_path] = self._hash(file)
                except OSError as exc:
                    raise SkillProblem(f"cannot read {place / file.path}: {exc.strerror}") from None
            digests[file.path] = record.digest, record.size
            if file.path == MANIFEST:
                front_matter = record.front_matter
        if sum(size for _, size in digests.values()) > MAX_SKILL_BYTES:
            raise _make_size_problem(place)
        manifest = place / MANIFEST
        if not isinstance(front_matter, dict):
            raise SkillProblem(f"{manifest}: {front_matter or 'this must be a file'}")
        parts = self._name_parts(found)
        if front_matter["name"] != parts[-1]:
            raise SkillProblem(
                f"{manifest}: the name is {front_matter['name']!r}, but the folder is {clip(parts[-1])!r}. They must "
                "be the same"
            )
        return build_served_skill(parts, front_matter, digests)

    def _hash(self, file: _FoundFile) -> _HashedFile:
        with _open_file(self._root, file.real_path) as (descriptor, status):
            stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            known = self._hashed.get(file.real_path)
            if known is not None and known.stamp == stamp and _is_settled(known):
                return known
            hashed_at = time.time_ns()
            data = _read_all(descriptor)
        front_matter = _read_front_matter(data) if file.real_path[-1] == MANIFEST else None
        return _HashedFile(stamp, hashed_at, compute_digest(data), len(data), front_matter)

    def _log_problem(self, problem: str) -> None:
        if problem not in self._logged_problems:
            self._logged_problems.add(problem)
            log.warning("a changed skill is not served: %s", problem)


def _is_settled(hashed: _HashedFile) -> bool:
    return max(hashed.stamp[3:]) < hashed.hashed_at - _SETTLED_NS


def _read_front_matter(data: bytes) -> "dict[str, object] | FrontMatterError":
    try:
        fields = parse_front_matter(data)
        check_fields(fields)
    except FrontMatterError as exc:
        return exc
    return fields


class _Scan:
    """Scans a folder once. It finds the skills and their files, but does not read the files."""

    def __init__(self, root: Path) -> None:
        self.skills: list[_FoundSkill] = []
        self._root = root
        self._entry_count = 0

    def run(self) -> None:
        descriptor = os.open(self._root, _OPEN_DIRECTORY)
        try:
            self._visit(descriptor, (), [])
        finally:
            os.close(descriptor)

    def _visit(self, descriptor: int, directory: tuple[str, ...], open_skills: list[_FoundSkill]) -> None:
        with os.scandir(descriptor) as iterator:
            # The count is checked while the directory is read, because it may have millions of entries.
            entries = sorted(self._count(iterator), key=lambda entry: entry.name)
        names = {entry.name for entry in entries}
        if MANIFEST in names:
            skill = _FoundSkill(directory)
            self.skills.append(skill)
            open_skills = [*open_skills, skill]
        elif not open_skills and (wrong := next((name for name in names if name.lower() == MANIFEST.lower()), None)):
            raise SkillProblem(f"{self._show(directory, wrong)} must be named {MANIFEST}. Rename the file")
        for entry in entries:
            if not open_skills and entry.name.startswith("."):
                continue
            if open_skills and (problem := self._find_problem(entry, directory)) is not None:
                for skill in open_skills:
                    skill.fail(problem)
                continue
            if entry.is_dir(follow_symlinks=False):
                self._enter(descriptor, entry.name, directory, open_skills)
            elif open_skills:
                self._add_file(entry, directory, open_skills)

    def _count(self, iterator: "Iterator[os.DirEntry[str]]") -> "Iterator[os.DirEntry[str]]":
        for entry in iterator:
            self._entry_count += 1
            if self._entry_count > _MAX_ENTRIES:
                raise SkillProblem(
                    f"{self._root} has more than {_MAX_ENTRIES} files and folders. Pass a folder that has only skills"
                )
            yield entry

    def _enter(self, descriptor: int, name: str, directory: tuple[str, ...], open_skills: list[_FoundSkill]) -> None:
        if len(directory) >= _MAX_DEPTH:
            raise SkillProblem(
                f"{self._show(directory, name)} is inside more than {_MAX_DEPTH} folders. Move it to a higher folder"
            )
        # A directory that was replaced or removed since the listing is left out. The next scan sees the new state.
        with suppress(FileNotFoundError, NotADirectoryError):
            inner = os.open(name, _OPEN_DIRECTORY, dir_fd=descriptor)
            try:
                self._visit(inner, (*directory, name), open_skills)
            finally:
                os.close(inner)

    def _find_problem(self, entry: "os.DirEntry[str]", directory: tuple[str, ...]) -> str | None:
        place = self._show(directory, entry.name)
        if entry.name.startswith("."):
            return f"{place} is hidden. Hidden files are never served. Move it out of the skill"
        if (reason := find_unsafe_name(entry.name)) is not None:
            return f"{place} cannot be served, because {reason}. Rename the file"
        if entry.is_symlink():
            return self._find_link_problem(entry.name, directory)
        if not entry.is_dir(follow_symlinks=False) and not entry.is_file(follow_symlinks=False):
            return f"{place} is not a regular file. Remove it from the skill"
        return None

    def _find_link_problem(self, name: str, directory: tuple[str, ...]) -> str | None:
        place = self._show(directory, name)
        target = os.path.realpath(self._locate(directory, name))
        if name == MANIFEST:
            return f"{place} is a link. Copy the file into the skill"
        if not Path(target).is_relative_to(self._root):
            return f"{place} is a link out of {self._root}. Copy the file into the skill"
        if not os.path.isfile(target):
            return f"{place} is a link to a folder, or to nothing. Copy its content into the skill"
        if any(part.startswith(".") for part in Path(target).relative_to(self._root).parts):
            return f"{place} is a link to a hidden file. Copy the file into the skill"
        return None

    def _add_file(self, entry: "os.DirEntry[str]", directory: tuple[str, ...], open_skills: list[_FoundSkill]) -> None:
        real_path = (*directory, entry.name)
        if entry.is_symlink():
            target = Path(os.path.realpath(self._locate(directory, entry.name)))
            real_path = target.relative_to(self._root).parts
        try:
            size = entry.stat().st_size
        except FileNotFoundError:
            return
        for skill in open_skills:
            path = "/".join((*directory, entry.name)[len(skill.directory) :])
            folded = normalize("NFC", path).casefold()
            if folded in skill.folded_paths:
                skill.fail(
                    f"{self._show(directory, entry.name)} and {skill.folded_paths[folded]} have the same name on some "
                    "systems. Rename one of them"
                )
            if len(skill.files) >= MAX_FILES:
                skill.fail(f"{self._root.joinpath(*skill.directory)} has more than {MAX_FILES} files. Split the skill")
                continue
            skill.folded_paths[folded] = path
            skill.files.append(_FoundFile(path, real_path, size))

    def _locate(self, directory: tuple[str, ...], name: str) -> str:
        return str(self._root.joinpath(*directory, name))

    def _show(self, directory: tuple[str, ...], name: str) -> str:
        return clip(self._locate(directory, name), _MAX_SHOWN_CHARS)


@contextmanager
def _open_file(root: Path, real_path: tuple[str, ...]) -> Generator[tuple[int, os.stat_result]]:
    """Open a regular file below a folder, without following any link. Yield its descriptor and status."""
    descriptor = os.open(root, _OPEN_DIRECTORY)
    try:
        for name in real_path[:-1]:
            descriptor = _replace(descriptor, lambda parent, name=name: os.open(name, _OPEN_DIRECTORY, dir_fd=parent))
        descriptor = _replace(descriptor, lambda parent: os.open(real_path[-1], _OPEN_FILE, dir_fd=parent))
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SkillProblem(f"{root.joinpath(*real_path)} is not a regular file. Remove it from the skill")
        yield descriptor, status
    finally:
        os.close(descriptor)


def _replace(descriptor: int, open_next: Callable[[int], int]) -> int:
    """Open a file relative to a directory descriptor, and close the directory. If opening fails, the directory stays
    open.
    """
    opened = open_next(descriptor)
    os.close(descriptor)
    return opened


def _read_all(descriptor: int) -> bytes:
    """Read a file. Raise SkillProblem if the file exceeds the size limit for skills."""
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(descriptor, _READ_CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_SKILL_BYTES:
            raise SkillProblem(f"a file is larger than {MAX_SKILL_BYTES} bytes")
    return b"".join(chunks)


def _make_size_problem(place: Path) -> SkillProblem:
    return SkillProblem(f"the files of {place} have more than {MAX_SKILL_BYTES} bytes. Remove or shrink some of them")
