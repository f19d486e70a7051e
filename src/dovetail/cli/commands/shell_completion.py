"""`dovetail shell-completion`: print the completion script for a shell."""

import click

_BASH_SCRIPT = """\
_dovetail() {
    local IFS=$'\\n'
    COMPREPLY=($(_DOVETAIL_COMPLETE=bash COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" "$1" 2>/dev/null))
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/] ]]; then compopt -o nospace; fi
}
complete -o nosort -F _dovetail dovetail
"""

_ZSH_SCRIPT = """\
#compdef dovetail
_dovetail() {
    local row
    for row in "${(@f)$(_DOVETAIL_COMPLETE=zsh COMP_LINE="$BUFFER" COMP_POINT="$CURSOR" dovetail 2>/dev/null)}"; do
        [[ -z $row ]] && continue
        if [[ $row == *[=/] ]]; then compadd -S '' -- "$row"; else compadd -- "$row"; fi
    done
}
if [[ $funcstack[1] == _dovetail ]]; then _dovetail "$@"; else compdef _dovetail dovetail; fi
"""

_FISH_SCRIPT = """\
function __dovetail
    set -l line (commandline | string collect)
    env _DOVETAIL_COMPLETE=fish COMP_LINE=$line COMP_POINT=(commandline -C) dovetail 2>/dev/null
end
complete -c dovetail -f -a '(__dovetail)'
"""

SCRIPTS = {"bash": _BASH_SCRIPT, "zsh": _ZSH_SCRIPT, "fish": _FISH_SCRIPT}


@click.command("shell-completion")
@click.argument("shell", type=click.Choice([*SCRIPTS]))
def command(shell: str) -> int:
    """Print a shell completion script.

    The script completes commands, options, targets, and the tools of a target with their arguments. When you press Tab,
    the script asks a URL or a server in your own configuration files for its tools, and caches the list for a minute.
    It starts no other program, and suggests the tools of the last `dovetail list` or `call`.

    \b
    eval "$(dovetail shell-completion bash)"                                   in ~/.bashrc
    eval "$(dovetail shell-completion zsh)"                                    in ~/.zshrc
    dovetail shell-completion fish > ~/.config/fish/completions/dovetail.fish
    """
    click.echo(SCRIPTS[shell], nl=False)
    return 0
