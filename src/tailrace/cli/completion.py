"""``tailrace completion``: the script by which a shell completes commands, options and names."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL. Commands and options are completed, and the names of streams, tables,
    topics, groups, views and users from the server.

    \b
    bash:  eval "$(tailrace completion bash)"        in ~/.bashrc
    zsh:   eval "$(tailrace completion zsh)"         in ~/.zshrc
    fish:  tailrace completion fish | source         in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    from tailrace.cli import cli

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "tailrace", "_TAILRACE_COMPLETE").source())
