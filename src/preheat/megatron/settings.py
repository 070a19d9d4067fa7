"""The values that Megatron-LM's parser would hold after a command, and what it would stumble over; all of it in one pass."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from preheat.errors import Where, refuse
from preheat.megatron.command import OWN_PROGRAMS, Argument, Command
from preheat.megatron.expansion import Word
from preheat.megatron.layer_pattern import read_pattern
from preheat.megatron.table import Option, Remark, known_version, options, remarks, versions_of

FaultKind = Literal[
    "unknown", "renamed", "removed", "other-version", "retired", "inert", "ignored", "type", "count", "choice", "stray", "repeated", "open"
]


_LONGEST_FLAG = 80
_MOST_UNKNOWN = 200
"""Unknown flags of one command; a text with more of them is no command."""


@dataclass(frozen=True)
class Fault:
    """One thing about the arguments themselves."""

    kind: FaultKind
    flag: str
    line: int | None
    got: str
    want: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Settings:
    """The values of one command under one version of Megatron-LM on a number of GPUs."""

    command: Command
    version: str
    gpus: int
    values: dict[str, Any]
    """Name in Megatron-LM's namespace -> value, defaults included."""
    given: dict[str, Argument]
    """The same names, where the command gives them (also under an old name)."""
    faults: tuple[Fault, ...] = ()
    partial: bool = False
    """Further arguments may stand in a variable that only a shell knows: nothing is missed."""

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name)

    def has(self, name: str) -> bool:
        """Whether the command gives this argument."""
        return name in self.given

    def since(self, version: str) -> bool:
        """Whether the version is this one or newer."""
        return [int(part) for part in self.version.split(".")] >= [int(part) for part in version.split(".")]

    def where(self, flag: str) -> Where:
        """File and line of a flag, or of the flag that stands for it."""
        option = options(self.version).get(flag)
        argument = self.given.get(option.dest) if option else None
        return Where(self.command.file, argument.line if argument else self.command.where(flag).line, flag)


def settle(command: Command, gpus: int, version: str) -> Settings:
    """Parse a command's arguments with the parser of one version.

    A flag under an old or foreign name is a fault, and its value is used where the right name is known, so that what
    depends on it can still be judged.
    """
    version = known_version(version)
    table, notes = options(version), remarks(version)
    values = {option.dest: _default(option) for option in table.values()}
    given: dict[str, Argument] = {}
    faults = [_stray(word, command) for word in command.stray if not word.left_open]
    faults += [Fault("open", "", line, note) for line, note in command.notes]
    if command.program and command.program not in OWN_PROGRAMS and any(argument.flag not in table for argument in command.arguments):
        faults.append(Fault("open", "", None, f"{command.program} may have arguments of its own, which are called unknown here"))
    opaque = _open_words(command, table)
    faults += [_opaque(word) for word in opaque]
    if sum(argument.flag not in table for argument in command.arguments) > _MOST_UNKNOWN:
        refuse("megatron.file", f"more than {_MOST_UNKNOWN} unknown arguments", "", "This is no Megatron-LM command", file=command.file)
    later: list[tuple[Argument, Remark]] = []
    for argument in command.arguments:
        option, remark = table.get(argument.flag), notes.get(argument.flag)
        if option is None:
            faults.append(_unknown(argument, remark, version, table))
            if remark is not None and remark.carry:
                later.append((argument, remark))
            continue
        if remark is not None:
            faults.append(_remarked(argument, remark))
        if option.dest in given and given[option.dest].values != argument.values:
            before = given[option.dest]
            text = f"{argument.flag} {' '.join(argument.values)} replaces {' '.join(before.values)} of line {before.line}"
            faults.append(Fault("repeated", argument.flag, argument.line, text, "", "Keep one"))
        value, fault = _parsed(argument, option)
        given[option.dest] = argument
        if fault is not None:
            faults.append(fault)
        if value is not _NOTHING:
            values[option.dest] = value
    for argument, remark in later:
        target = table.get(remark.now)
        carried = _carried(argument, remark, values) if target and target.dest not in given else None
        if target is None or carried is None:
            continue
        value, fault = _parsed(Argument(remark.now, carried, argument.line), target)
        if fault is None and value is not _NOTHING:
            values[target.dest] = value
            given[target.dest] = argument
    return Settings(command, version, gpus, values, given, tuple(faults), bool(opaque))


_NOTHING: Any = object()


def _stray(word: Word, command: Command) -> Fault:
    if word.text.startswith("--"):
        ends = [value for argument in command.arguments[-1:] for value in argument.values[-1:]]
        blank = bool(ends) and not ends[0].strip()
        fix = _BLANK_BEHIND if blank else "Put a \\ at the end of the line before"
        return Fault("stray", word.text, word.line, f"{word.text} comes after the end of the command", "", fix)
    return Fault("stray", word.text, word.line, f"{word.text!r} stands before the first flag", "", "Remove it")


_BLANK_BEHIND = "Remove the blank behind the \\ at the end of the line: it ends the command there"


def _values(argument: Argument, option: Option) -> tuple[list[str], list[str]]:
    """The values of an argument, and what stands behind them that only a shell could replace, by arguments or by nothing."""
    texts, least = list(argument.values), 0 if option.kind != "value" else int(option.nargs) if option.nargs.isdigit() else 1
    behind: list[str] = []
    while len(texts) > least and texts[-1].startswith("$") and (least == len(texts) - 1 or option.kind != "value" or option.type != "str"):
        behind.insert(0, texts.pop())
    return texts, behind


def _open_words(command: Command, table: Mapping[str, Option]) -> list[Word]:
    """Words where a flag could stand that are left open: `--bf16 $MORE_ARGS`."""
    found = [word for word in command.stray if word.left_open]
    for argument in command.arguments:
        option = table.get(argument.flag)
        found += [Word(text, argument.line) for text in (_values(argument, option)[1] if option else ())]
    return found


def _opaque(word: Word) -> Fault:
    return Fault("open", "", word.line, f"{word.text[:60]} may hold arguments: none of them is judged, and none is missed")


def _default(option: Option) -> Any:
    if option.kind in ("on", "off", "switch"):
        return {"True": True, "False": False}.get(option.default)
    if not option.default:
        return None
    if option.default.startswith(("[", "{", "(")):
        return ast.literal_eval(option.default)
    if option.type in ("int", "float"):
        return {"int": int, "float": float}[option.type](option.default)
    if option.type == "pattern":
        return int(option.default) if option.default.isdigit() else option.default
    return option.default


def _unknown(argument: Argument, remark: Remark | None, version: str, table: Mapping[str, Option]) -> Fault:
    flag, line = argument.flag, argument.line
    elsewhere = versions_of(flag)
    if remark is not None and remark.kind in ("renamed", "removed"):
        kind: FaultKind = "renamed" if remark.kind == "renamed" else "removed"
        value = remark.carry[1:] if remark.carry.startswith("=") else ""
        fix = f"Write {remark.now} {value}".rstrip() if remark.now else "Remove it"
        return Fault(kind, flag, line, f"unrecognized argument {flag}: {remark.note}", "", fix)
    if elsewhere:
        newer = elsewhere[0] > version
        text = f"core {elsewhere[0]} brought it" if newer else f"core {elsewhere[-1]} was the last to have it"
        fix = (
            "Use --rampup-batch-size"
            if flag == "--step-batch-size-schedule"
            else f"Name the version with --megatron-version {elsewhere[0]}"
        )
        return Fault("other-version", flag, line, f"unrecognized argument {flag}", f"{text}; this is {version}", fix)
    if flag.replace("_", "-") in table:
        return Fault("unknown", flag, line, f"unrecognized argument {flag}", "", f"Write {flag.replace('_', '-')}")
    longer = [name for name in table if name.startswith(flag)]
    near = longer if len(longer) == 1 else _nearest(flag, version)
    return Fault("unknown", flag, line, f"unrecognized argument {flag}", "", f"Did you mean {near[0]}?" if near else "Remove it")


@cache
def _nearest(flag: str, version: str) -> list[str]:
    return difflib.get_close_matches(flag, options(version), 1, 0.75) if len(flag) <= _LONGEST_FLAG else []


def _remarked(argument: Argument, remark: Remark) -> Fault:
    kinds: dict[str, FaultKind] = {"retired": "retired", "ignored": "ignored"}
    kind = kinds.get(remark.kind, "inert")
    fix = f"Use {remark.now}" if remark.now else "Remove it"
    return Fault(kind, argument.flag, argument.line, f"{argument.flag}: {remark.note}", "", fix)


def _carried(argument: Argument, remark: Remark, values: dict[str, Any]) -> tuple[str, ...] | None:
    """The values of a flag under its right name."""
    if remark.carry == "set":
        return ()
    if remark.carry.startswith("="):
        return (remark.carry[1:],)
    if remark.carry == "tokens":
        amount = re.fullmatch(r"([\d._]+)\s*([KMBT]?)", argument.values[0] if argument.values else "", re.IGNORECASE)
        seq_len = values.get("seq_length")
        if amount is None or not isinstance(seq_len, int) or seq_len < 1 or amount[1].count(".") > 1:
            return None
        tokens = float(amount[1]) * {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[amount[2].upper()]
        return (str(round(tokens) // seq_len),)
    return argument.values


def _parsed(argument: Argument, option: Option) -> tuple[Any, Fault | None]:
    """The typed value of an argument, or the fault."""
    flag, line, texts = argument.flag, argument.line, _values(argument, option)[0]
    if option.kind != "value":
        if texts:
            fix = "Remove the value" if texts[-1].strip() else _BLANK_BEHIND
            return _NOTHING, Fault("stray", flag, line, f"{flag} takes no value, got {' '.join(texts)[:60]!r}", "", fix)
        if option.kind == "switch":
            return not flag.startswith("--no-"), None
        return option.kind == "on", None
    wanted = option.nargs or "1"
    if (wanted.isdigit() and len(texts) != int(wanted)) or (wanted == "+" and not texts):
        value = " ".join(texts) if wanted == "1" and texts and option.type == "str" else _NOTHING  # what was meant
        return value, _miscounted(argument, texts, wanted)
    found = []
    for text in texts:
        if ("$" in text or "`" in text) and (option.type != "str" or option.choices):
            return _NOTHING, Fault("open", flag, line, f"the value of {flag} is {text[:60]}: known only to a shell")
        value = _typed(text, option.type)
        if value is _NOTHING:
            return _NOTHING, Fault("type", flag, line, f"{flag} {text[:60]!r}", f"{_article(option.type)}", _type_fix(text, option.type))
        if option.choices and str(value) not in option.choices:
            near = difflib.get_close_matches(text, option.choices, 1, 0.4)
            fix = f"Did you mean {near[0]}?" if near else "Choose one of them"
            return _NOTHING, Fault("choice", flag, line, f"{flag} {text[:60]!r}", f"one of {', '.join(option.choices)}", fix)
        found.append(value)
    return (found if option.nargs else found[0]), None


def _miscounted(argument: Argument, texts: list[str], wanted: str) -> Fault:
    many = wanted.replace("+", "one or more")
    fix = f"Give {many}"
    if len(texts) == 1 and texts[0].startswith("["):
        fix = "Write the numbers with blanks between them, without brackets"
    elif texts and not texts[-1].strip():
        fix = _BLANK_BEHIND
    elif wanted == "1" and texts:
        fix = 'Give 1; a value with blanks needs quotes, also around the array that holds it: "${ARGS[@]}"'
    count = f"{len(texts)} value{'' if len(texts) == 1 else 's'}"
    return Fault("count", argument.flag, argument.line, f"{argument.flag} has {count}", f"it takes {many}", fix)


def _typed(text: str, kind: str) -> Any:
    try:
        if kind == "int":
            return int(text) if len(text) < 40 else _NOTHING
        if kind == "float":
            return float(text)
        if kind == "bool":
            return bool(text)
        if kind == "tuple":
            return tuple(int(part) for part in text.strip("()").split(","))
        if kind == "pattern":
            return read_pattern(text) if "[" in text else int(text)
    except ValueError:
        return _NOTHING
    return text


def _article(kind: str) -> str:
    names = {"int": "an integer", "float": "a number", "tuple": "integers with commas", "pattern": "an integer or a list expression"}
    return names.get(kind, f"a {kind}")


def _type_fix(text: str, kind: str) -> str:
    if kind == "int" and re.fullmatch(r"[\d.]+[KMBTkmbt]", text):
        return "Write the number out: no suffix is read here"
    if kind == "int" and re.fullmatch(r"[\d.]+e[\d+]+", text):
        return "Write the digits: an exponent is no integer here"
    return "Write a plain value"
