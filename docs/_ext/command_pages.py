"""The reference of the command line, generated from its parser. Needs no Sphinx."""

import argparse
import re
from collections.abc import Iterator

from bertjax.cli import _parser as parser_of_commands


def commands(
    parser: argparse.ArgumentParser | None = None, help: str = ""
) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """The parsers of all commands and of the commands within them, each with its line in the list of commands."""
    parser = parser or parser_of_commands()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            lines = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, one in action.choices.items():
                yield one, lines.get(name, "")
                yield from commands(one)


def commands_text() -> str:
    """All commands: a list, and a section for each with its description, its usage and its options."""
    everything = list(commands())
    rows = [f"| [`{one.prog}`](#{slug(one.prog)}) | {cell(help)} |" for one, help in everything]
    parts = ["\n".join(["| command | does |", "|---|---|", *rows])]
    return "\n\n".join([*parts, *(section(one) for one, _ in everything)])


def section(parser: argparse.ArgumentParser) -> str:
    """The section of one command."""
    parts = [f"## {parser.prog}", prose(parser.description or "")]
    if takes_commands(parser):
        return "\n\n".join(parts)
    parts.append(f"```text\n{usage(parser)}\n```")
    for group in sorted(parser._action_groups, key=lambda group: group.title == "options"):
        actions = [one for one in group._group_actions if one.help != argparse.SUPPRESS]
        if actions:
            title = {"options": "other options"}.get(group.title or "", group.title or "")
            rows = [f"| {cell_of_names(one)} | {cell(expanded(parser, one))} |" for one in actions]
            parts.append("\n".join([f"**{title[:1].upper()}{title[1:]}**", "", "| option | is |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def takes_commands(parser: argparse.ArgumentParser) -> bool:
    """Whether a parser only has subcommands."""
    return any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)


def usage(parser: argparse.ArgumentParser) -> str:
    """The usage: required arguments, and `[options]` for the rest."""
    needed = [one for one in parser._actions if one.required and one.option_strings]
    words = [f"{one.option_strings[-1]} {value_of(one)}" for one in needed]
    places = [value_of(one) for one in parser._actions if not one.option_strings]
    return " ".join([parser.prog, *places, *words, "[options]"])


def value_of(action: argparse.Action) -> str:
    """The placeholder of the value of an option."""
    if action.nargs == 0:
        return ""
    name = str(
        action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    )
    return {"+": f"{name} [{name} ...]", "*": f"[{name} ...]", "?": f"[{name}]"}.get(str(action.nargs), name)


def cell_of_names(action: argparse.Action) -> str:
    """The names of an option and its value."""
    shown = [f"`{name}`" for name in action.option_strings]
    value = value_of(action).replace("|", "\\|")
    if not shown:
        return f"`{value}`"
    return ", ".join(shown) + (f" `{value}`" if value else "")


def expanded(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The help of an option with the values that argparse inserts."""
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    if action.required and action.option_strings:
        return f"{text} (required)".strip()
    return text


def prose(text: str) -> str:
    """A sentence of the parser as Markdown, with brackets escaped."""
    return re.sub(r"(--[a-z][a-z-]*)", r"`\1`", re.sub(r"([\[\]<>*_{}])", r"\\\1", text)).replace("``", "`")


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return prose(text).replace("|", "\\|").replace("\n", " ")


def slug(title: str) -> str:
    """The anchor of a title, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
