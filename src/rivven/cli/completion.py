"""`rivven completion`: what a shell needs to complete our commands."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from . import show

VARIABLE = "_RIVVEN_COMPLETE"
"""By which the script asks what could come next."""


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print a script that has a shell complete commands and options.

    Examples:

        rivven completion bash > ~/.local/share/bash-completion/completions/rivven

        rivven completion fish > ~/.config/fish/completions/rivven.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # it is, in effect

    show.say(get_completion_script(prog_name="rivven", complete_var=VARIABLE, shell=shell.value))
