"""Options of argand's that were written after the script's name: they go to the script, which is said once."""

from __future__ import annotations

import click
import typer


def note_late_options(context: typer.Context) -> None:
    """Say which of the script's arguments look like options of this command."""
    own = {name for parameter in context.command.params for name in parameter.opts if name.startswith("--")}
    late = [word for word in context.args if word.partition("=")[0] in own]
    if late:
        names = ", ".join(dict.fromkeys(word.partition("=")[0] for word in late))
        click.echo(
            f"argand: {names} after the script's name goes to the script. Options of argand {context.info_name} are "
            f"written before it: argand {context.info_name} {late[0]} ... SCRIPT",
            err=True,
        )
