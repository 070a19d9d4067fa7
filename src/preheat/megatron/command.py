"""From a file to one command: the arguments of Megatron-LM's program, the launcher's options and the environment, each with its line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from preheat.errors import Where, refuse
from preheat.megatron.flat_yaml import looks_flat, read_flat
from preheat.megatron.shell import MAX_CHARACTERS, Script, Statement, Word, read_script

_PROGRAM = re.compile(r"(?:^|/)(?:pretrain_\w+|train_\w+|train)\.py$")
_LAUNCHER = re.compile(r"(?:^|/)(?:torchrun|python[\d.]*|accelerate|deepspeed)$")
_MAX_LINE = 100_000


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
    if len(text) > MAX_CHARACTERS or any(len(line) > _MAX_LINE for line in text.splitlines()):
        refuse("megatron.file", f"{len(text):_} characters", f"at most {MAX_CHARACTERS:_}", "This is no launch script", file=file)
    odd = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        refuse("megatron.file", f"a control character 0x{ord(odd[0]):02x}", "text", "This is no launch script", file=file, line=line)
    commands = (_from_yaml(text, file),) if looks_flat(text) else _from_script(read_script(text, file), file)
    comments = {number: line.partition("#")[2].strip() for number, line in enumerate(text.splitlines(), 1) if "#" in line}
    return tuple(replace(command, comments=comments) for command in commands)


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
    launches = [(statement, at) for statement in script.statements if (at := _program(statement)) is not None]
    if not launches:
        launches = _inside_quotes(script, file)
    notes = tuple(sorted(set(script.notes)))
    if launches:
        return tuple(_launch(statement, at, script, file, notes) for statement, at in launches)
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
    return (Command(file, "flags", arguments, notes=notes),)


def _launch(statement: Statement, at: int, script: Script, file: str, notes: tuple[tuple[int, str], ...]) -> Command:
    """The command of one statement; flags of a statement right behind it were meant for it."""
    stray, arguments = _arguments(statement.words[at + 1 :])
    if statement in script.statements:
        following = script.statements[script.statements.index(statement) + 1 :][:1]
        stray += tuple(other.words[0] for other in following if other.words[0].text.startswith("--"))
    _, launcher = _arguments([word for word in statement.words[:at] if word.text != "-m"])
    return Command(file, "script", arguments, stray, launcher, {**script.exported, **statement.environment}, notes)


def _program(statement: Statement) -> int | None:
    """The place of the program's file in a statement that runs it."""
    for index, word in enumerate(statement.words):
        if _PROGRAM.search(word.text) and (index == 0 or any(_LAUNCHER.search(before.text) for before in statement.words[:index])):
            return index
    return None


def _inside_quotes(script: Script, file: str) -> list[tuple[Statement, int]]:
    """Launches inside one quoted word, as in `srun bash -c "torchrun ..."`."""
    found = []
    for statement in script.statements:
        for word in statement.words:
            if " " in word.text and ".py" in word.text:
                for inner in read_script(word.text, file).statements:
                    moved = Statement(tuple(Word(w.text, word.line + w.line - 1) for w in inner.words), statement.environment)
                    at = _program(moved)
                    if at is not None:
                        found.append((moved, at))
    return found


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
