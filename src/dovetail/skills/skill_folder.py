"""A folder of skills on disk: which files its skills have, and the content of each file.

Only files that were found by a scan can be read, so a URI never becomes a path. A file is opened directory by directory
and without following links, so a link that replaces a directory later leads nowhere. A scan refuses files that do not
belong in a skill, and leaves out hidden files. It computes a digest again only if the file has changed.
"""

import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unicodedata import normalize

from dovetail.error_context import clip
from dovetail.log import log
from dovetail.skills.front_matter import FrontMatterError, check_fields, parse_front_matter
from dovetail.skills.served_skill import ServedSkill, SkillProblem, build_served_skill
from dovetail.skills.skill import MANIFEST, MAX_FILES, MAX_SKILL_BYTES, compute_digest, find_unsafe_name
from dovetail.wire.base import Struct

_MAX_DEPTH: Final = 16
_MAX_CHEAP_ENTRIES: Final = 200  # A folder with more entries than this counts as large.
_MAX_ENTRIES: Final = 50_000  # Maximum number of files and directories in a folder, including those outside of skills.
# If a file changes twice within this time, its modification time may stay the same.
_SETTLED_NS: Final = 2_000_000_000
_MAX_SHOWN_CHARS: Final = 400
_MAX_PROBLEMS: Final = 20  # At most this many problems of one skill or one scan are reported.
_READ_CHUNK_BYTES: Final = 1024 * 1024
# Windows cannot open a file relative to a directory, so folders of skills do not work on Windows.
# Skills from functions work on Windows, so importing this module must not fail there.
_CAN_OPEN_RELATIVE: Final = sys.platform != "win32"
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW if sys.platform != "win32" else os.O_RDONLY
# Without O_NONBLOCK, opening a pipe would wait for a writer.
_OPEN_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW if sys.platform != "win32" else os.O_RDONLY


class _ScannedFile(Struct, frozen=True):
    """A file that was found in a skill folder. `real_path` is its path in the folder."""

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


class _ScannedSkill:
    def __init__(self, directory: tuple[str, ...]) -> None:
        self.directory = directory
        self.files: list[_ScannedFile] = []
        self.folded_paths: dict[str, str] = {}
        self.problems: list[str] = []
        self.hidden_files: list[str] = []

    def add_problem(self, problem: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)

    def add_hidden_file_problems(self) -> None:
        for path in self.hidden_files:
            self.add_problem(f"{path} is hidden. Hidden files are never served. Remove the file")


class _FolderContent:
    """The skills that one scan of a folder found, with their files."""

    def __init__(self) -> None:
        self.skills: dict[str, ServedSkill] = {}
        self.hashed: dict[tuple[str, ...], _HashedFile] = {}
        self.real_paths: dict[str, tuple[str, ...]] = {}

    def add(self, skill: ServedSkill, scanned: _ScannedSkill) -> None:
        self.skills[skill.entry.uri] = skill
        self.real_paths.update((skill.files[file.path].uri, file.real_path) for file in scanned.files)


class SkillFolder:
    """The skills in a folder. A skill is a folder with a file SKILL.md, at any depth.

    Args:
        path: The folder.
        on_problem: A function that gets the path of a skill that cannot be served, and the problem. Without it, the
            first problem raises SkillProblem.

    Raises:
        SkillProblem: the folder has no skill, a skill has a file that cannot be served, or the system is Windows.
    """

    def __init__(self, path: str | os.PathLike[str], on_problem: Callable[[str, str], object] | None = None) -> None:
        if not _CAN_OPEN_RELATIVE:
            raise SkillProblem(
                f"cannot read {path}: folders of skills do not work on Windows. Use skills from functions"
            )
        self._root = Path(path).resolve()
        if not self._root.is_dir():
            is_relative = not Path(path).is_absolute()
            reason = f". The path {path} is relative to the working directory" if is_relative else ""
            raise SkillProblem(f"{self._root} is not a folder{reason}")
        self._lock = threading.Lock()
        self._hashed: dict[tuple[str, ...], _HashedFile] = {}
        self._real_paths: dict[str, tuple[str, ...]] = {}
        self._digests: dict[str, str] = {}
        self._prefix: tuple[str, ...] = ()
        self._logged_problems: set[str] = set()  # the problems that the last scan found
        self._checked_at = 0.0
        self._entry_count = 0  # how many files and directories the last scan found
        # Maps the URI of each SKILL.md to its skill. Each change creates a new dict.
        self.skills: dict[str, ServedSkill] = {}
        self._scan(is_first=True, on_problem=on_problem)

    def refresh(self, max_age: float = 0.0) -> bool:
        """Scan the folder again, and return whether a skill changed.

        A large folder is not scanned again if that happened less than `max_age` seconds ago.

        A skill with a problem keeps its last valid entry. A problem is logged once until it is solved.
        """
        with self._lock:
            if self._entry_count > _MAX_CHEAP_ENTRIES and time.monotonic() - self._checked_at < max_age:
                return False
            before = self.skills
            try:
                self._scan(is_first=False)
            except SkillProblem as exc:
                self._log_problems([f"kept the previous skills of {self._root}, because {exc}"])
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

    def _find_skills(self, *, is_first: bool) -> "_Scan":
        """Find the skills and their files, and set the prefix of all URIs."""
        scan = _Scan(self._root)
        scan.run()
        self._entry_count = scan.entry_count
        if is_first and not scan.skills:
            reason = next(iter(scan.problems.values()), f"A skill is a folder with a file {MANIFEST}")
            raise SkillProblem(f"{self._root} has no skills. {reason}")
        # If the folder itself is or was a skill, all URIs start with the name of the folder.
        if any(not scanned.directory for scanned in scan.skills):
            self._prefix = (self._root.name,)
        return scan

    def _scan(self, *, is_first: bool, on_problem: Callable[[str, str], object] | None = None) -> None:
        scan = self._find_skills(is_first=is_first)
        failed_directories = {(*self._prefix, *directory) for directory in scan.problems}
        problems = [f"a part of a folder is not served: {problem}" for problem in scan.problems.values()]
        if on_problem is not None:
            for directory, problem in scan.problems.items():
                on_problem("/".join((*self._prefix, *directory)) or self._root.name, problem)
        content = _FolderContent()
        for scanned in scan.skills:
            parts = (*self._prefix, *scanned.directory)
            if scanned.hidden_files:
                problems.append(f"the hidden files in {self._root.joinpath(*scanned.directory)} are not served")
                if on_problem is not None:
                    scanned.add_hidden_file_problems()
            try:
                content.add(self._build_skill(scanned, parts, content.hashed), scanned)
            except SkillProblem as exc:
                if on_problem is not None:
                    for problem in scanned.problems or [str(exc)]:
                        on_problem("/".join(parts), problem)
                elif is_first:
                    raise
                is_known = any(skill.directory == parts for skill in self.skills.values())
                consequence = "kept the previous entry of a skill" if is_known else "a skill is not served"
                problems.append(f"{consequence}, because {exc}")
                failed_directories.add(parts)
        unreadable_directories = [(*self._prefix, *directory) for directory in scan.unreadable_directories]
        self._keep_known_skills(content, failed_directories, unreadable_directories)
        self._use(content)
        if on_problem is None:
            self._log_problems(problems)

    def _keep_known_skills(
        self,
        content: _FolderContent,
        failed_directories: set[tuple[str, ...]],
        unreadable_directories: list[tuple[str, ...]],
    ) -> None:
        """Add the last valid entries of the skills that this scan could not read."""
        for uri, skill in self.skills.items():
            if uri not in content.skills and (
                skill.directory in failed_directories
                or any(skill.directory[: len(parts)] == parts for parts in unreadable_directories)
            ):
                content.skills[uri] = skill
                for file in skill.files.values():
                    content.real_paths.setdefault(file.uri, self._real_paths[file.uri])

    def _use(self, content: _FolderContent) -> None:
        self._hashed, self._real_paths = content.hashed, content.real_paths
        self.skills = dict(sorted(content.skills.items()))
        self._digests = {file.uri: file.digest for skill in content.skills.values() for file in skill.listed_files}

    def _build_skill(
        self, scanned: _ScannedSkill, parts: tuple[str, ...], hashed: dict[tuple[str, ...], _HashedFile]
    ) -> ServedSkill:
        place = self._root.joinpath(*scanned.directory)
        if scanned.problems:
            raise SkillProblem(scanned.problems[0])
        if sum(file.size for file in scanned.files) > MAX_SKILL_BYTES:
            raise _make_size_problem(place)
        digests: dict[str, tuple[str, int]] = {}
        front_matter = None
        for file in scanned.files:
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
        if front_matter["name"] != parts[-1]:
            raise SkillProblem(
                f"{manifest}: the name is {front_matter['name']!r}, but the folder is {clip(parts[-1])!r}. They must "
                "be the same"
            )
        return build_served_skill(parts, front_matter, digests)

    def _hash(self, file: _ScannedFile) -> _HashedFile:
        with _open_file(self._root, file.real_path) as (descriptor, status):
            stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            previous = self._hashed.get(file.real_path)
            if previous is not None and previous.stamp == stamp and _can_trust_stamp(previous):
                return previous
            hashed_at = time.time_ns()
            data = _read_all(descriptor)
        front_matter = _read_front_matter(data) if file.real_path[-1] == MANIFEST else None
        return _HashedFile(stamp, hashed_at, compute_digest(data), len(data), front_matter)

    def _log_problems(self, problems: list[str]) -> None:
        new_problems = [problem for problem in problems if problem not in self._logged_problems]
        for problem in new_problems[:_MAX_PROBLEMS]:
            log.warning("skills: %s", problem)
        self._logged_problems = set(problems)


def _can_trust_stamp(hashed: _HashedFile) -> bool:
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
        self.skills: list[_ScannedSkill] = []
        # Maps each directory outside of skills to its problem.
        self.problems: dict[tuple[str, ...], str] = {}
        self.unreadable_directories: list[tuple[str, ...]] = []
        self._root = root
        self.entry_count = 0

    def run(self) -> None:
        try:
            descriptor = os.open(self._root, _OPEN_DIRECTORY)
            try:
                self._visit(descriptor, (), [])
            finally:
                os.close(descriptor)
        except OSError as exc:
            raise SkillProblem(f"cannot read {self._root}: {exc.strerror}") from None

    def _visit(self, descriptor: int, directory: tuple[str, ...], open_skills: list[_ScannedSkill]) -> None:
        with os.scandir(descriptor) as iterator:
            # A directory may have millions of entries, so `_count` checks the limit while the entries are read.
            entries = sorted(self._count(iterator), key=lambda entry: entry.name)
        names = {entry.name for entry in entries}
        if MANIFEST in names:
            skill = _ScannedSkill(directory)
            self.skills.append(skill)
            open_skills = [*open_skills, skill]
        elif not open_skills:
            for name in sorted(names):
                if name.lower() == MANIFEST.lower():
                    problem = f"{self._format_path(directory, name)} must be named {MANIFEST}. Rename the file"
                    self._add_problem(directory, problem, open_skills)
        for entry in entries:
            if entry.name.startswith("."):
                for skill in open_skills:
                    if len(skill.hidden_files) < _MAX_PROBLEMS:
                        skill.hidden_files.append(self._format_path(directory, entry.name))
                continue
            if open_skills and (problem := self._find_problem(entry, directory)) is not None:
                self._add_problem(directory, problem, open_skills)
                continue
            if entry.is_dir(follow_symlinks=False):
                self._enter(descriptor, entry.name, directory, open_skills)
            elif open_skills:
                self._add_file(entry, directory, open_skills)

    def _count(self, iterator: "Iterator[os.DirEntry[str]]") -> "Iterator[os.DirEntry[str]]":
        for entry in iterator:
            self.entry_count += 1
            if self.entry_count > _MAX_ENTRIES:
                raise SkillProblem(
                    f"{self._root} has more than {_MAX_ENTRIES} files and folders. Pass a folder that has only skills"
                )
            yield entry

    def _enter(self, descriptor: int, name: str, directory: tuple[str, ...], open_skills: list[_ScannedSkill]) -> None:
        path, inner_directory = self._format_path(directory, name), (*directory, name)
        if len(directory) >= _MAX_DEPTH:
            problem = f"{path} is inside more than {_MAX_DEPTH} folders. Move it to a higher folder"
            self.unreadable_directories.append(inner_directory)
            self._add_problem(inner_directory, problem, open_skills)
            return
        try:
            inner = os.open(name, _OPEN_DIRECTORY, dir_fd=descriptor)
            try:
                self._visit(inner, inner_directory, open_skills)
            finally:
                os.close(inner)
        except (FileNotFoundError, NotADirectoryError):
            # The directory was replaced or removed after it was listed. The next scan finds the new directory.
            pass
        except OSError as exc:
            self.unreadable_directories.append(inner_directory)
            self._add_problem(inner_directory, f"cannot read {path}: {exc.strerror}", open_skills)

    def _add_problem(self, directory: tuple[str, ...], problem: str, open_skills: list[_ScannedSkill]) -> None:
        for skill in open_skills:
            skill.add_problem(problem)
        if not open_skills:
            self.problems[directory] = problem

    def _find_problem(self, entry: "os.DirEntry[str]", directory: tuple[str, ...]) -> str | None:
        place = self._format_path(directory, entry.name)
        if (reason := find_unsafe_name(entry.name)) is not None:
            return f"{place} cannot be served, because {reason}. Rename the file"
        if entry.is_symlink():
            return self._find_link_problem(entry.name, directory)
        if not entry.is_dir(follow_symlinks=False) and not entry.is_file(follow_symlinks=False):
            return f"{place} is not a regular file. Remove it from the skill"
        return None

    def _find_link_problem(self, name: str, directory: tuple[str, ...]) -> str | None:
        place = self._format_path(directory, name)
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

    def _add_file(
        self, entry: "os.DirEntry[str]", directory: tuple[str, ...], open_skills: list[_ScannedSkill]
    ) -> None:
        real_path = (*directory, entry.name)
        if entry.is_symlink():
            target = Path(os.path.realpath(self._locate(directory, entry.name)))
            if not target.is_relative_to(self._root):  # Another program replaced the link after the check.
                return
            real_path = target.relative_to(self._root).parts
        try:
            size = entry.stat().st_size
        except FileNotFoundError:
            return
        for skill in open_skills:
            path = "/".join((*directory, entry.name)[len(skill.directory) :])
            folded = normalize("NFC", path).casefold()
            if folded in skill.folded_paths:
                file_path = self._format_path(directory, entry.name)
                skill.add_problem(
                    f"{file_path} and {skill.folded_paths[folded]} have the same name on some systems. Rename one of "
                    "them"
                )
            if len(skill.files) >= MAX_FILES:
                skill.add_problem(
                    f"{self._root.joinpath(*skill.directory)} has more than {MAX_FILES} files. Split the skill"
                )
                continue
            skill.folded_paths[folded] = path
            skill.files.append(_ScannedFile(path, real_path, size))

    def _locate(self, directory: tuple[str, ...], name: str) -> str:
        return str(self._root.joinpath(*directory, name))

    def _format_path(self, directory: tuple[str, ...], name: str) -> str:
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
    """Open a file relative to an open directory. If this succeeds, close the directory."""
    opened = open_next(descriptor)
    os.close(descriptor)
    return opened


def _read_all(descriptor: int) -> bytes:
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
