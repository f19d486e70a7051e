"""Completion in shells: of targets, and of what a target offers."""

import click
from click.shell_completion import CompletionItem


def complete_words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What the word being typed may become."""
    return []
