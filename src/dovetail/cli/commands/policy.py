"""`dovetail policy`: inspect a policy."""

import click

from dovetail.cli import error_report
from dovetail.cli.tool_arguments import read_arguments
from dovetail.host.policy.policy import Policy, PolicyRequest, apply_non_interactive
from dovetail.host.policy.rules import ITEM_NAME_BY_KIND, check_consent_kind
from dovetail.host.qualified_names import split_full_name
from dovetail.terminal import output
from dovetail.wire.tools import ToolAnnotations

_DEFAULT_KIND = "tool.call"
_FILE_TYPE = click.Path(exists=True, dir_okay=False)


@click.group("policy")
def command() -> None:
    """Inspect a policy."""


@command.command("explain")
@click.argument("file", type=_FILE_TYPE)
@click.argument("args", nargs=-1, metavar="[SERVER.TOOL] [NAME=VALUE]...")
@click.option("--kind", default=_DEFAULT_KIND, show_default=True, help="Kind of request, such as tool.call.")
@click.option("--trusted", is_flag=True, help="Treat the server as trusted.")
@click.option("--from-project", is_flag=True, help="Treat the server as part of a project file.")
@click.option("--read-only", is_flag=True, help="Treat the tool as read-only.")
@click.option("--destructive/--non-destructive", default=None, help="Treat the tool as destructive or not.")
@click.option("--admin-policy", type=_FILE_TYPE, help="Policy file of the administrator.")
@click.option("--project-policy", type=_FILE_TYPE, help="Policy file of the project.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    file: str,
    args: tuple[str, ...],
    kind: str,
    trusted: bool,
    from_project: bool,
    read_only: bool,
    destructive: bool | None,
    admin_policy: str | None,
    project_policy: str | None,
    as_json: bool,
) -> int:
    """Explain the decision for a call.

    Without a call, shows the rules in the order they are evaluated. Exits with 0 if the call is allowed, with 8 if the
    user is asked, and with 7 if it is denied.

    \b
    dovetail policy explain policy.toml
    dovetail policy explain policy.toml github.create_issue repo=octo/app
    """
    call_options = {
        f"--kind {kind}": kind != _DEFAULT_KIND,
        "--trusted": trusted,
        "--from-project": from_project,
        "--read-only": read_only,
        "--destructive or --non-destructive": destructive is not None,
    }
    try:
        loaded_policy = _load_policy(file, admin_policy, project_policy)
        check_consent_kind(kind)
        if not args and (option := next((name for name, is_set in call_options.items() if is_set), None)):
            raise ValueError(f"{option} requires a call, such as github.create_issue")
        request = _create_request(args, kind, trusted, from_project, read_only, destructive) if args else None
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    explanation = loaded_policy.explain() if request is None else loaded_policy.explain(request)
    if request is None:
        click.echo(output.format_json({"explanation": explanation}) if as_json else output.escape_text(explanation))
        return error_report.EXIT_OK
    decision = loaded_policy.decide(request)
    if as_json:
        result = {
            "action": decision.action,
            "reason": decision.reason,
            "level": decision.level,
            "non_interactive": apply_non_interactive(loaded_policy, decision).action,
            "explanation": explanation,
        }
        click.echo(output.format_json(result))
    else:
        click.echo(output.escape_text(explanation))
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
    args: tuple[str, ...],
    kind: str,
    trusted: bool,
    from_project: bool,
    read_only: bool,
    destructive: bool | None,
) -> PolicyRequest:
    server, tool = split_full_name(args[0]) if "." in args[0] else (args[0], "")
    if not tool and kind in ITEM_NAME_BY_KIND:
        raise ValueError(f"with --kind {kind}, the argument must be SERVER.{ITEM_NAME_BY_KIND[kind]}, not {args[0]!r}")
    tool_annotations = ToolAnnotations(read_only_hint=read_only or None, destructive_hint=destructive)
    return PolicyRequest(
        server=server,
        tool=tool,
        kind=kind,
        arguments=read_arguments(args[1:], {}) if kind == "tool.call" or len(args) > 1 else None,
        annotations=tool_annotations if read_only or destructive is not None else None,
        trusted=trusted,
        from_project=from_project,
    )
