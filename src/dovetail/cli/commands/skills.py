"""`dovetail skills`: list, show, verify and download the skills of a server."""

import asyncio
import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import CommandRun, run_command
from dovetail.cli.completion_candidates import remember_items
from dovetail.cli.item_lint import get_skill_path, require_yaml
from dovetail.cli.target_argument import (
    TargetOptions,
    find_folder,
    list_restricted_items,
    read_target_options,
    target_options,
)
from dovetail.cli.tool_arguments import suggest_names
from dovetail.client.client import Client
from dovetail.error_context import add_context
from dovetail.errors import InvalidResult, RemoteError
from dovetail.skills.local_skill import list_local_skills
from dovetail.skills.remote_skill import Skill
from dovetail.skills.served_skill import SkillProblem
from dovetail.skills.skill import MANIFEST, SkillFile, quote_path
from dovetail.skills.skill_folder import SkillFolder
from dovetail.skills.skill_writer import SkillExists, check_destination, check_paths, write_skill
from dovetail.terminal import output
from dovetail.wire.base import Struct

T = TypeVar("T")


class ListedSkill(Struct, frozen=True):
    """A skill in the output of `list` and `show`. It comes from a server or a folder."""

    name: str
    uri: str
    description: str
    front_matter: Mapping[str, Any]
    files: Mapping[str, SkillFile]
    is_dynamic: bool


class SkillReport(Struct, frozen=True):
    """The verification result of one skill."""

    name: str
    uri: str
    files: int  # The number of files.
    size: int  # The size of all files in bytes.
    problems: list[str]


@click.group("skills")
def command() -> None:
    """List, show, verify and download skills.

    A skill is a folder with instructions for a model. SKILL is the name of a skill, its path such as
    acme/refunds, or the URI of its SKILL.md.
    """


@command.command("list")
@target_options()
@click.pass_context
def list_skills(ctx: click.Context, **params: Any) -> int:
    """List the skills of a server.

    Fetches no file of a skill. TARGET may also be a folder of skills.

    \b
    dovetail skills list server.py
    dovetail skills list ./skills
    """
    options = read_target_options(ctx, **params)
    if (folder := find_folder(options)) is not None:
        return _list_folder(folder, options)

    async def execute(command_run: CommandRun) -> None:
        skills = await command_run.client.list_skills()
        remember_items(options, {"skills": skills})
        _print_list([*map(_describe_skill, skills)], command_run.client.skipped_items, command_run.json)

    return run_command(list_restricted_items(options), execute)


@command.command("show")
@target_options("SKILL", "[FILE]")
@click.pass_context
def show_skill(ctx: click.Context, **params: Any) -> int:
    """Show a skill, or one of its files.

    Without FILE, shows the front matter, and the size and the digest of each file. With FILE, verifies the file and
    writes it to stdout unchanged, unless stdout is a terminal. TARGET may also be a folder of skills. For the folder of
    one skill, leave out SKILL.

    \b
    dovetail skills show server.py pdf-forms
    dovetail skills show server.py pdf-forms SKILL.md
    dovetail skills show ./skills/pdf-forms
    """
    options = read_target_options(ctx, **params)
    if (folder := find_folder(options)) is not None:
        required = () if _is_one_skill(folder) else ("SKILL",)
        *skill_args, path = _read_args([*options.args[1:]], required, ("FILE",))
        asyncio.run(_show(_find_local_skill(folder, *skill_args), path, options.json))
        return error_report.EXIT_OK

    async def execute(command_run: CommandRun) -> None:
        skill_arg, path = _read_args(command_run.args, ("SKILL",), ("FILE",))
        await _show(await _find_skill(command_run.client, skill_arg), path, command_run.json)

    return run_command(options, execute)


@command.command("verify")
@target_options("[SKILL]")
@click.pass_context
def verify_skills(ctx: click.Context, **params: Any) -> int:
    """Read and verify all files of skills.

    Compares each file with its size and its digest, and SKILL.md with the front matter. Exits with 6 if a skill is
    invalid, if a file differs, or if a skill is dynamic, because a dynamic skill has no digests. TARGET may also be a
    folder of skills.

    \b
    dovetail skills verify server.py
    dovetail skills verify https://example.com/mcp pdf-forms
    dovetail skills verify ./skills
    """
    options = read_target_options(ctx, **params)
    require_yaml()
    if (folder := find_folder(options)) is not None:
        return asyncio.run(_verify_folder(folder, options))

    async def execute(command_run: CommandRun) -> int:
        client = command_run.client
        (skill_arg,) = _read_args(command_run.args, (), ("SKILL",))
        skills = await client.list_skills() if skill_arg is None else [await _find_skill(client, skill_arg)]
        skipped = client.skipped_items if skill_arg is None else []
        reports = [await _verify_skill(skill) for skill in skills]
        document = {"skills": reports, "skipped_items": skipped}
        command_run.print_result(document, lambda: _format_reports(reports, skipped))
        return _get_exit_code(reports, skipped)

    return run_command(options, execute)


@command.command("pull")
@target_options("SKILL", "DIR")
@click.option("--force", is_flag=True, help="Replace the skill in DIR, with all its files.")
@click.pass_context
def pull_skill(ctx: click.Context, force: bool, **params: Any) -> int:
    """Download a skill into a new folder in DIR.

    Verifies all files first. If one file differs from its size or its digest, or if the name of a file is not safe,
    writes nothing and exits with 6. The new folder has the name of the skill, and no file is executable. TARGET may
    also be a folder of skills. For the folder of one skill, leave out SKILL.

    \b
    dovetail skills pull https://example.com/mcp pdf-forms ./skills
    dovetail skills pull ./drafts/pdf-forms ./skills
    """
    options = read_target_options(ctx, **params)
    if (folder := find_folder(options)) is not None:
        required = ("DIR",) if _is_one_skill(folder) else ("SKILL", "DIR")
        *skill_args, directory_arg = _read_args([*options.args[1:]], required, ())
        skill = _find_local_skill(folder, *skill_args)
        asyncio.run(_pull(skill, str(folder), directory_arg, force, options.json))
        return error_report.EXIT_OK

    async def execute(command_run: CommandRun) -> None:
        skill_arg, directory_arg = _read_args(command_run.args, ("SKILL", "DIR"), ())
        _read_directory(directory_arg)
        require_yaml()
        skill = await _find_skill(command_run.client, skill_arg)
        await _pull(skill, command_run.client.name, directory_arg, force, command_run.json)

    return run_command(options, execute)


async def _show(skill: Skill, path: str | None, is_json: bool) -> None:
    if path is None:
        click.echo(output.format_json(_describe_skill(skill)) if is_json else _format_skill(skill))
        return
    if not skill.is_dynamic and path not in skill.files:
        raise click.UsageError(f"unknown file {path!r}{suggest_names(path, skill.files)}")
    require_yaml()
    content = await skill.read(path)
    if is_json:
        click.echo(output.format_json(_describe_content(skill, path, content)))
    else:
        output.write_content(content)


async def _pull(skill: Skill, source: str, directory_arg: str, force: bool, is_json: bool) -> None:
    directory = _read_directory(directory_arg)
    try:
        if skill.is_dynamic:
            raise SkillProblem(f"the skill {skill.name!r} is dynamic, so its files cannot be verified")
        check_paths(skill.files)
        check_destination(directory, skill.name, force=force)
        files = {path: _encode(await skill.read(path)) for path in skill.files}
        folder = write_skill(directory, skill.name, files, force=force)
    except SkillExists as exc:
        raise click.UsageError(str(exc) if force else f"{exc}. Use --force to replace it") from None
    except SkillProblem as exc:
        raise add_context(InvalidResult(str(exc)), server=source) from None
    size = sum(map(len, files.values()))
    document = {"uri": skill.uri, "folder": str(folder), "files": [*files], "size": size}
    click.echo(output.format_json(document) if is_json else f"{folder}: {_format_count(len(files))}, {size} bytes")


def _read_args(args: list[str], required: tuple[str, ...], optional: tuple[str, ...]) -> list[Any]:
    names = (*required, *optional)
    if len(args) < len(required):
        raise click.UsageError(f"missing argument: {required[len(args)]}")
    if len(args) > len(names):
        raise click.UsageError(f"unexpected argument: {args[len(names)]}")
    return [*args, *[None] * (len(names) - len(args))]


def _read_directory(arg: str) -> Path:
    path = Path(arg)
    if path.exists() and not path.is_dir():
        raise click.UsageError(f"{arg} is not a folder")
    return path


async def _find_skill(client: Client, skill_arg: str) -> Skill:
    """Return the skill with this name or URI. A URI also finds skills that the server does not list."""
    if "://" in skill_arg:
        return await client.get_skill(skill_arg)
    skills = await client.list_skills()
    skills_by_uri = {skill.uri: skill for skill in skills}
    if not any(_is_named(uri, skill_arg) for uri in skills_by_uri):
        _print_skipped(client.skipped_items)
    return _choose_skill(skill_arg, skills_by_uri)


def _is_named(uri: str, skill_arg: str) -> bool:
    path = get_skill_path(uri)
    return skill_arg in (uri, path, path.rpartition("/")[2])


def _choose_skill(skill_arg: str, skills_by_uri: Mapping[str, T]) -> T:
    """Return the skill with this name, path or URI. If a path and a name match, the path takes precedence."""
    matches = {uri: skill for uri, skill in skills_by_uri.items() if _is_named(uri, skill_arg)}
    if len(matches) > 1:
        matches = {uri: skill for uri, skill in matches.items() if get_skill_path(uri) == skill_arg} or matches
    if len(matches) > 1:
        uris = ", ".join(output.escape_line(uri) for uri in matches)
        raise click.UsageError(f"several skills are named {skill_arg!r}. Pass one of these URIs: {uris}")
    if not matches:
        paths = dict.fromkeys(map(get_skill_path, skills_by_uri))
        raise click.UsageError(f"unknown skill {skill_arg!r}{suggest_names(skill_arg, paths)}")
    return next(iter(matches.values()))


def _print_skipped(skipped: list[str]) -> None:
    for reason in skipped:
        output.print_note(output.escape_full_line(reason))


def _encode(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _format_count(count: int) -> str:
    return f"{count} {'file' if count == 1 else 'files'}"


def _sum_sizes(files: Iterable[SkillFile]) -> int:
    return sum(file.size for file in files)


def _list_folder(path: Path, options: TargetOptions) -> int:
    _read_args([*options.args[1:]], (), ())
    skills, problems = _read_folder(path)
    _print_list([*map(_describe_skill, skills)], problems, options.json)
    return error_report.EXIT_OK


def _read_folder(path: Path) -> tuple[list[Skill], list[str]]:
    """Return the valid skills in a folder, and the problems of the invalid skills."""
    require_yaml()
    problems: list[str] = []
    try:
        folder = SkillFolder(path, lambda name, problem: problems.append(f"{name}: {problem}"))
    except SkillProblem as exc:
        raise click.UsageError(str(exc)) from None
    return list_local_skills(folder), problems


def _is_one_skill(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def _find_local_skill(path: Path, skill_arg: str | None = None) -> Skill:
    """Return the skill with this name, path or URI in a folder. If `skill_arg` is None, the folder is the skill."""
    skills, problems = _read_folder(path)
    skills_by_uri = {skill.uri: skill for skill in skills}
    skill_arg = path.resolve().name if skill_arg is None else skill_arg
    if not any(_is_named(uri, skill_arg) for uri in skills_by_uri):
        _print_skipped(problems)
    return _choose_skill(skill_arg, skills_by_uri)


def _print_list(skills: list[ListedSkill], skipped: list[str], is_json: bool) -> None:
    if is_json:
        click.echo(output.format_json({"skills": skills, "skipped_items": skipped}))
    else:
        click.echo(_format_skills(skills))
        _print_skipped(skipped)


def _describe_skill(skill: Skill) -> ListedSkill:
    return ListedSkill(
        skill.name, skill.uri, skill.description, skill.front_matter, skill.files, is_dynamic=skill.is_dynamic
    )


def _describe_content(skill: Skill, path: str, content: str | bytes) -> dict[str, Any]:
    text_or_blob = {"text": content} if isinstance(content, str) else {"blob": base64.b64encode(content).decode()}
    return {"uri": skill.uri, "file": path, "size": len(_encode(content)), **text_or_blob}


def _format_skills(skills: list[ListedSkill]) -> str:
    rows = [
        (
            get_skill_path(skill.uri),
            "dynamic" if skill.is_dynamic else str(len(skill.files)),
            "" if skill.is_dynamic else str(_sum_sizes(skill.files.values())),
            skill.description.strip().split("\n", 1)[0],
        )
        for skill in skills
    ]
    return output.format_table(rows, ("skill", "files", "bytes", "description")) or "no skills"


def _format_skill(skill: Skill) -> str:
    fields = {"uri": skill.uri, **skill.front_matter}
    lines = [f"{output.escape_line(name)}: {_format_value(value)}" for name, value in fields.items()]
    rows = [(path, str(file.size), file.digest) for path, file in skill.files.items()]
    table = (
        output.format_table(rows, ("file", "bytes", "digest")) or "The skill is dynamic, so its files are not listed."
    )
    return f"{output.fit_to_stdout(chr(10).join(lines))}\n\n{table}"


def _format_value(value: Any) -> str:
    return output.escape_full_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


async def _verify_skill(skill: Skill) -> SkillReport:
    problems: list[str] = []
    if skill.is_dynamic:
        problems.append("the skill is dynamic, so its files cannot be verified")
    for path in skill.files or [MANIFEST]:
        try:
            await skill.read(path)
        except (InvalidResult, RemoteError) as exc:
            problems.append(
                str(exc.args[0]) if isinstance(exc, InvalidResult) else f"cannot read {path}: {exc.message}"
            )
    return SkillReport(skill.name, skill.uri, len(skill.files), _sum_sizes(skill.files.values()), problems)


async def _verify_folder(path: Path, options: TargetOptions) -> int:
    (skill_arg,) = _read_args([*options.args[1:]], (), ("SKILL",))
    problems: dict[str, list[str]] = {}
    reports: list[SkillReport] = []
    try:
        folder = SkillFolder(path, lambda name, problem: problems.setdefault(name, []).append(problem))
    except SkillProblem as exc:
        problems[str(path)] = [str(exc)]
    else:
        reports = [await _verify_skill(skill) for skill in list_local_skills(folder)]
    reports += [
        SkillReport(name, f"skill://{quote_path(name)}/{MANIFEST}", 0, 0, texts) for name, texts in problems.items()
    ]
    if skill_arg is not None:
        reports = [_choose_skill(skill_arg, {report.uri: report for report in reports})]
    document = {"skills": reports, "skipped_items": []}
    click.echo(output.format_json(document) if options.json else _format_reports(reports, []))
    return _get_exit_code(reports, [])


def _format_reports(reports: list[SkillReport], skipped: list[str]) -> str:
    rows = [
        (get_skill_path(report.uri), str(report.files), str(report.size), "failed" if report.problems else "verified")
        for report in reports
    ]
    lines = [
        f"{output.escape_line(get_skill_path(report.uri))}: {output.escape_full_line(problem)}"
        for report in reports
        for problem in report.problems
    ]
    lines += [output.escape_full_line(reason) for reason in skipped]
    table = output.format_table(rows, ("skill", "files", "bytes", "result")) or "no skills"
    return "\n".join([table, *([output.fit_to_stdout("\n".join(lines))] if lines else [])])


def _get_exit_code(reports: list[SkillReport], skipped: list[str]) -> int:
    has_failed = bool(skipped) or any(report.problems for report in reports)
    return error_report.EXIT_VALIDATION if has_failed else error_report.EXIT_OK
