"""From a file to one command: the arguments of Megatron-LM's program, the launcher's options and the environment, each with its line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from preheat.errors import Where, refuse
from preheat.megatron.expansion import Word
from preheat.megatron.flat_yaml import looks_flat, read_flat
from preheat.megatron.lexing import Note
from preheat.megatron.shell import MAX_CHARACTERS, Script, Statement, read_script

_PROGRAM = re.compile(r"(?:^|/)(?:pretrain_\w+|train_\w+|train|finetune_\w+)\.py$")
_LAUNCHER = re.compile(r"(?:^|/)(?:torchrun|python[\d.]*|accelerate|deepspeed)$|^\$")
_ENVIRONMENT = re.compile(r"(?:--env=|--export=\w*,)?([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
_TRACE = re.compile(r"\$(?:\w+|\([^\s()]*|\{[^}]*\})")
_MAX_LINE = 100_000
_MAX_LAUNCHES = 100
_FLAG = re.compile(r"--[\w-]+")
OWN_PROGRAMS = ("pretrain_gpt.py", "pretrain_hybrid.py", "pretrain_mamba.py")
"""Those whose arguments are the table's, and no others."""


@dataclass(frozen=True)
class Argument:
    """One flag as it is written: `--lr 3e-4`, `lr: 3e-4`, `--bf16`."""

    flag: str
    """With its dashes."""
    values: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Command:
    """What is to be run."""

    file: str
    form: Literal["script", "flags", "yaml"]
    """`flags` is a bare list of arguments; only a `script` says something about launcher and environment."""
    arguments: tuple[Argument, ...]
    stray: tuple[Word, ...] = ()
    """Words in front of the first flag, and flags after the end of the command (a `\\` is missing)."""
    program: str = ""
    """The file that is run, without its folder; empty but for a script."""
    launcher: tuple[Argument, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    notes: tuple[tuple[int, str], ...] = ()
    """Line and what was left open there."""
    comments: dict[int, str] = field(default_factory=dict)
    """Line and what a comment says there."""

    def where(self, flag: str) -> Where:
        """File and line of the last time a flag is given, by any of its spellings."""
        line = next((argument.line for argument in reversed(self.arguments) if argument.flag == flag), None)
        return Where(self.file, line, flag)


def read_commands(text: str, file: str = "command") -> tuple[Command, ...]:
    """Read a launch script, a bare list of flags or a flat YAML file. Nothing in it is run; a script may launch more than once.

    Raises:
        PreheatError: the text holds no Megatron-LM command, or is none that a person would write (size, control characters).
    """
    if len(text) > MAX_CHARACTERS:
        refuse("megatron.file", f"{len(text):_} characters", f"at most {MAX_CHARACTERS:_}", "This is no launch script", file=file)
    longest = max(map(len, text.splitlines()), default=0)
    if longest > _MAX_LINE:
        refuse("megatron.file", f"a line of {longest:_} characters", f"at most {_MAX_LINE:_}", "This is no launch script", file=file)
    odd = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        refuse("megatron.file", f"a control character 0x{ord(odd[0]):02x}", "text", "This is no launch script", file=file, line=line)
    commands = (_from_yaml(text, file),) if looks_flat(text) else _from_script(read_script(text, file), file)
    lines = text.splitlines()
    comments = {number: line.partition("#")[2].strip() for number, line in enumerate(lines, 1) if "#" in line}
    return tuple(replace(command, comments=comments, arguments=_placed(command.arguments, lines)) for command in commands)


def _placed(arguments: tuple[Argument, ...], lines: list[str]) -> tuple[Argument, ...]:
    """Arguments with the line on which each stands; those of a text in quotes come with the line on which it is used."""
    written: dict[str, list[int]] = {}
    for number, line in enumerate(lines, 1):
        if not line.lstrip().startswith("#"):
            for flag in _FLAG.findall(line):
                written.setdefault(flag, []).append(number)
    found = []
    for argument in arguments:
        places = written.get(argument.flag, [])
        if places and argument.line not in places:
            argument = replace(argument, line=max((place for place in places if place < argument.line), default=places[0]))
        found.append(argument)
    return tuple(found)


def _from_yaml(text: str, file: str) -> Command:
    arguments, environment, aside = [], {}, dict[str, int]()
    entries = read_flat(text, file)
    sectioned = any(entry.section.upper() == "MODEL_ARGS" for entry in entries)
    for entry in entries:
        if entry.section.upper() in ("ENV_VARS", "ENV"):
            environment[entry.key] = " ".join(entry.values)
            continue
        if sectioned and entry.section.upper() != "MODEL_ARGS":
            aside.setdefault(entry.section or entry.key, entry.line)
            continue
        flag = "--" + entry.key.lstrip("-").replace("_", "-")
        if entry.values in (("true",), ("True",)):
            arguments.append(Argument(flag, (), entry.line))
        elif entry.values not in (("false",), ("False",), ("null",), ("~",)):
            arguments.append(Argument(flag, entry.values, entry.line))
    notes = tuple((line, f"{name} is beside MODEL_ARGS and not read") for name, line in aside.items())
    return Command(file, "yaml", tuple(arguments), environment=environment, notes=notes)


def _from_script(script: Script, file: str) -> tuple[Command, ...]:
    statements = script.statements
    launches = [(index, at) for index, statement in enumerate(statements) if (at := _program(statement)) is not None]
    if not launches:
        statements = script.aside
        launches = [(index, at) for index, statement in enumerate(statements) if (at := _program(statement)) is not None]
    if len(launches) > _MAX_LAUNCHES:
        refuse("megatron.file", f"{len(launches)} launches", f"at most {_MAX_LAUNCHES}", "Pass a script that launches once", file=file)
    if launches:
        return tuple(_launch(statements, index, at, script, file) for index, at in launches)
    bare = [statement for statement in script.statements if statement.words[0].text.startswith("--")]
    if not bare:
        refuse(
            "megatron.file",
            "no Megatron-LM command is here",
            "a line that runs pretrain_gpt.py, a list of flags, or `key: value` lines",
            "Pass the launch script itself",
            file=file,
        )
    words = [word for statement in bare for word in statement.words]
    _, arguments = _arguments(words)
    return (Command(file, "flags", arguments, notes=_concerning(script.notes, words)),)


def _launch(statements: list[Statement], index: int, at: int, script: Script, file: str) -> Command:
    """The command of one statement; flags of a statement right behind it were meant for it."""
    statement = statements[index]
    stray, arguments = _arguments(statement.words[at + 1 :])
    stray += tuple(other.words[0] for other in statements[index + 1 : index + 2] if other.words[0].text.startswith("--"))
    before = statement.words[:at]
    _, launcher = _arguments([word for word in before if word.text != "-m"])
    environment = {**script.exported, **statement.environment}
    environment |= {found[1]: found[2] for word in before if (found := _ENVIRONMENT.fullmatch(word.text))}
    program = statement.words[at].text.rsplit("/", 1)[-1]
    notes = _concerning(script.notes, statement.words)
    return Command(file, "script", arguments, stray, program, launcher, environment, notes)


def _concerning(notes: list[Note], words: tuple[Word, ...] | list[Word]) -> tuple[tuple[int, str], ...]:
    """The notes about what stands in these words, and those about the script as a whole."""
    traces = {found for word in words if "$" in word.text for found in _TRACE.findall(word.text)}
    first: dict[str, int] = {}
    known = set()
    for note in sorted(notes, key=lambda each: each.line):
        again = (
            note.trace and note.trace in known and note.trace in note.text
        )  # a text in quotes that is read holds what was left open before
        if not again and (not note.trace or traces & set(_TRACE.findall(note.trace))):
            first.setdefault(note.text, note.line)
        known.add(note.trace)
    return tuple(sorted((line, text) for text, line in first.items()))


def _program(statement: Statement) -> int | None:
    """The place of the program's file in a statement that runs it."""
    for index, word in enumerate(statement.words):
        if _PROGRAM.search(word.text) and len(word.text.split()) == 1:
            launched = index == 0 or any(_LAUNCHER.search(before.text) for before in statement.words[:index])
            flagged = any(after.text.startswith("--") for after in statement.words[index + 1 :])
            if launched or flagged:
                return index
    return None


def _arguments(words: tuple[Word, ...] | list[Word]) -> tuple[tuple[Word, ...], tuple[Argument, ...]]:
    """Words in front of the first flag, and flags with the words after each."""
    stray: list[Word] = []
    found: list[tuple[Word, list[str]]] = []
    for word in words:
        if word.text.startswith("--") and len(word.text) > 2:
            flag, equals, value = word.text.partition("=")
            found.append((Word(flag, word.line), [value] if equals else []))
        elif found:
            found[-1][1].append(word.text)
        else:
            stray.append(word)
    return tuple(stray), tuple(Argument(word.text, tuple(values), word.line) for word, values in found)
