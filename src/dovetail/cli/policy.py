"""`dovetail policy`: what a policy says, and why."""

import click

from dovetail.cli import exits, text
from dovetail.cli.arguments import read_arguments
from dovetail.host.kinds import read_kind
from dovetail.host.names import split
from dovetail.host.policy import Policy, Question
from dovetail.wire.shape import replace
from dovetail.wire.tools import ToolAnnotations

_NAMED = ("tool.call", "tool.result", "resource.read", "prompt.get")
_FILE = click.Path(exists=True, dir_okay=False)


@click.group("policy")
def command() -> None:
    """Ask a policy what it says, and why."""


@command.command("explain")
@click.argument("file", type=_FILE)
@click.argument("words", nargs=-1, metavar="[SERVER.TOOL] [NAME=VALUE]...")
@click.option("--kind", default="tool.call", show_default=True, help="What is to happen.")
@click.option("--trust", is_flag=True, help="The server is trusted.")
@click.option("--foreign", is_flag=True, help="The server comes from a project.")
@click.option("--read-only", is_flag=True, help="The tool says it changes nothing.")
@click.option("--destructive/--harmless", default=None, help="What the tool says it may do.")
@click.option("--admin", type=_FILE, help="The policy above it.")
@click.option("--project", type=_FILE, help="The policy below it, which may only tighten.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def explain(
    file: str,
    words: tuple[str, ...],
    kind: str,
    trust: bool,
    foreign: bool,
    read_only: bool,
    destructive: bool | None,
    admin: str | None,
    project: str | None,
    as_json: bool,
) -> int:
    """Show the rules of a policy in the order they count; or what it says of a call, and what each rule made of it.

    Exits with 0 if the call is allowed, with 8 if it is asked about, with 7 if it is refused.

    \b
    dovetail policy explain policy.toml
    dovetail policy explain policy.toml github.create_issue repo=octo/app
    """
    try:
        found = _policy(file, admin, project)
        question = _question(words, kind, trust, read_only, destructive)
        question = None if question is None else replace(question, foreign=foreign)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    if question is None:
        click.echo(text.document({"explained": found.explain()}) if as_json else text.safe(found.explain()))
        return exits.OK
    decision = found.decide(question)
    facts = {
        "verdict": decision.verdict,
        "reason": decision.reason,
        "tier": decision.tier,
        "unattended": found.unattended(decision).verdict,
        "explained": found.explain(question),
    }
    click.echo(text.document(facts) if as_json else text.safe(found.explain(question)))
    return {"allow": exits.OK, "ask": exits.INPUT}.get(decision.verdict, exits.DENIED)


def _policy(file: str, admin: str | None, project: str | None) -> Policy:
    user = Policy.load(file)
    if admin is None and project is None:
        return user
    return Policy.tiered(
        admin=Policy.load(admin) if admin is not None else None,
        user=user,
        project=Policy.load(project) if project is not None else None,
    )


def _question(
    words: tuple[str, ...], kind: str, trust: bool, read_only: bool, destructive: bool | None
) -> Question | None:
    if not words:
        return None
    read_kind(kind)
    if "." not in words[0] and kind in _NAMED:
        raise ValueError(f"{kind} is about something of a server: write SERVER.TOOL, not {words[0]!r}")
    server, tool = split(words[0]) if "." in words[0] else (words[0], "")
    hints = ToolAnnotations(read_only_hint=read_only or None, destructive_hint=destructive)
    return Question(
        server=server,
        tool=tool,
        kind=kind,
        arguments=read_arguments(words[1:], {}) if kind == "tool.call" or len(words) > 1 else None,
        annotations=hints if read_only or destructive is not None else None,
        trusted=trust,
    )
