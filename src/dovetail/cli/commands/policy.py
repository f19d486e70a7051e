"""`dovetail policy`: what a policy says, and why."""

import click

from dovetail.cli import error_report
from dovetail.cli.tool_arguments import read_arguments
from dovetail.host.policy.policy import Policy, PolicyRequest, apply_non_interactive
from dovetail.host.policy.rules import check_consent_kind
from dovetail.host.qualified_names import split_full_name
from dovetail.terminal import output
from dovetail.wire.base import replace
from dovetail.wire.tools import ToolAnnotations

_ITEM_CONSENT_KINDS = ("tool.call", "tool.result", "resource.read", "prompt.get")
_FILE_TYPE = click.Path(exists=True, dir_okay=False)


@click.group("policy")
def command() -> None:
    """Ask a policy what it says, and why."""


@command.command("explain")
@click.argument("file", type=_FILE_TYPE)
@click.argument("args", nargs=-1, metavar="[SERVER.TOOL] [NAME=VALUE]...")
@click.option("--kind", default="tool.call", show_default=True, help="What is to happen.")
@click.option("--trust", is_flag=True, help="The server is trusted.")
@click.option("--foreign", is_flag=True, help="The server comes from a project.")
@click.option("--read-only", is_flag=True, help="The tool says it changes nothing.")
@click.option("--destructive/--harmless", default=None, help="What the tool says it may do.")
@click.option("--admin", type=_FILE_TYPE, help="The policy above it.")
@click.option("--project", type=_FILE_TYPE, help="The policy below it, which may only tighten.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def explain(
    file: str,
    args: tuple[str, ...],
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
        loaded_policy = _load_policy(file, admin, project)
        request = _create_request(args, kind, trust, read_only, destructive)
        request = None if request is None else replace(request, from_project=foreign)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    if request is None:
        click.echo(
            output.format_json({"explained": loaded_policy.explain()})
            if as_json
            else output.escape_text(loaded_policy.explain())
        )
        return error_report.EXIT_OK
    decision = loaded_policy.decide(request)
    result = {
        "verdict": decision.action,
        "reason": decision.reason,
        "tier": decision.level,
        "unattended": apply_non_interactive(loaded_policy, decision).action,
        "explained": loaded_policy.explain(request),
    }
    click.echo(output.format_json(result) if as_json else output.escape_text(loaded_policy.explain(request)))
    return {"allow": error_report.EXIT_OK, "ask": error_report.EXIT_INPUT_NEEDED}.get(
        decision.action, error_report.EXIT_DENIED
    )


def _load_policy(file: str, admin: str | None, project: str | None) -> Policy:
    user_policy = Policy.load(file)
    if admin is None and project is None:
        return user_policy
    return Policy.combine(
        admin=Policy.load(admin) if admin is not None else None,
        user=user_policy,
        project=Policy.load(project) if project is not None else None,
    )


def _create_request(
    args: tuple[str, ...], kind: str, trust: bool, read_only: bool, destructive: bool | None
) -> PolicyRequest | None:
    if not args:
        return None
    check_consent_kind(kind)
    if "." not in args[0] and kind in _ITEM_CONSENT_KINDS:
        raise ValueError(f"{kind} is about something of a server: write SERVER.TOOL, not {args[0]!r}")
    server, tool = split_full_name(args[0]) if "." in args[0] else (args[0], "")
    tool_annotations = ToolAnnotations(read_only_hint=read_only or None, destructive_hint=destructive)
    return PolicyRequest(
        server=server,
        tool=tool,
        kind=kind,
        arguments=read_arguments(args[1:], {}) if kind == "tool.call" or len(args) > 1 else None,
        annotations=tool_annotations if read_only or destructive is not None else None,
        trusted=trust,
    )
