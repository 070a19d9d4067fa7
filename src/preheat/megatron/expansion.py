"""What the words of a script are after a shell has replaced variables, arrays, defaults and integer arithmetic. Nothing is run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate

from preheat.megatron.integers import evaluate
from preheat.megatron.lexing import Lexer, Note, Part, left_open, short

_REFERENCE = re.compile(
    r"(?P<length>#)?(?P<name>[A-Za-z_]\w*|\d+|[@*#])(?:\[(?P<index>[^\]]*)\])?(?P<rest>(?::?[-=+?]|##?|%%?|//?|\^\^?|,,?|:).*)?", re.DOTALL
)
_SET_ELSEWHERE = re.compile(r"SLURM_\w+|HOME|PWD|USER|PATH|HOSTNAME|OLDPWD")
"""Variables that are set wherever the script runs; a condition on one of them is not known."""
_NESTING = 16
_LONGEST_TRIMMED = 1_000


@dataclass(frozen=True)
class Word:
    """One word after expansion, with the line on which it is written."""

    text: str
    line: int

    @property
    def left_open(self) -> bool:
        """Whether it is a variable or a command that only a shell could replace, perhaps by several arguments or by none."""
        return self.text.startswith("$")


class Expander:
    """Variables, and what words become with them."""

    def __init__(self, lexer: Lexer, limit: int) -> None:
        self.lexer = lexer
        self.limit = limit
        """Characters that all expansions together may make."""
        self.variables: dict[str, list[Word]] = {}
        self.arguments: list[Word] | None = None
        """Those of the function that is read; None in the script itself, whose arguments nobody knows."""
        self.unset_is_empty = False
        """In a condition a variable that nothing sets is taken as empty, and the note says so."""
        self.spent = 0

    def words(self, parts: list[Part], depth: int = 0) -> list[Word]:
        """A word as the shell would split it."""
        fields: list[Word] = []
        current: str | None = None
        line = parts[0].line if parts else self.lexer.line
        vanished = False
        for part in parts:
            pieces = self._pieces(part, depth)
            vanished = vanished or (part.kind == "variable" and part.quoted and not pieces)
            for index, (piece, at) in enumerate(pieces):
                if index and current is not None:
                    fields.append(Word(current, line))
                    current = None
                line = line if current else at
                current = (current or "") + piece
            if part.quoted and part.kind == "text" and current is None:
                current = ""
        if current is None or (vanished and not current and not fields):  # "${EMPTY[@]}" and "$@" are no word at all
            return fields
        return [*fields, Word(current, line)]

    def string(self, parts: list[Part], depth: int = 0) -> str:
        """A word that is not split."""
        text = "".join(" ".join(text for text, _ in self._pieces(part, depth)) for part in parts)
        self._spend(len(text))
        return text

    def calculate(self, expression: str, line: int) -> str:
        """The value of an arithmetic expression; the expression itself where it is not known."""

        def look_up(name: str) -> str:
            return " ".join(word.text for word in self.variables.get(name, []))

        value = evaluate(re.sub(r"\$\{?(\w+)\}?", r"\1", expression), look_up)
        if value is None:
            open_text = f"$(({expression}))"
            self.note(line, f"$(({short(expression)})) is not evaluated", open_text)
            return open_text
        return str(value)

    def note(self, line: int, text: str, trace: str = "") -> None:
        """Something was not evaluated."""
        self.lexer.notes.append(Note(line, text, trace))

    def _pieces(self, part: Part, depth: int) -> list[tuple[str, int]]:
        """The text of a part; more than one piece where it falls into several words."""
        if part.kind == "open":
            return [(left_open(part.text), part.line)]
        if part.kind == "text":
            return [(part.text, part.line)] if part.text or not part.quoted else []
        if part.kind == "arithmetic":
            return [(self.calculate(part.text, part.line), part.line)]
        value, whole = self._variable(part, depth)
        self._spend(sum(len(word.text) + 1 for word in value))
        if whole and part.quoted:
            return [(word.text, word.line) for word in value]
        if part.quoted:
            return [(" ".join(word.text for word in value), part.line)]
        return [(text, word.line) for word in value for text in word.text.split()]

    def _variable(self, part: Part, depth: int) -> tuple[list[Word], bool]:
        """The words of a reference, and whether it is a whole array (`[@]`)."""
        reference = _REFERENCE.fullmatch(part.text.strip())
        if reference is None or depth > _NESTING:
            return self._unevaluated(part)
        name, index, rest = reference["name"], reference["index"], reference["rest"] or ""
        if name == "#":
            return [Word(str(len(self.arguments or [])), part.line)], False
        whole = name in "@*" or index in ("@", "*")
        value = self._value(name, index, part)
        if reference["length"]:
            count = 0 if value is None else len(value) if whole else len(" ".join(word.text for word in value))
            return ([Word(str(count), part.line)], False) if not rest else self._unevaluated(part)
        operator = re.match(r":?[-=+?]", rest)
        if operator:
            return self._with_default(name, value, operator[0], rest[operator.end() :], part, depth), whole and value is not None
        if value is None:
            return self._unset(name, part), False
        if not rest:
            return value, whole
        self._spend(sum(len(word.text) ** 2 for word in value if len(word.text) <= _LONGEST_TRIMMED) // 10)
        changed = [edited(word.text, rest) for word in value]
        if any(text is None for text in changed):
            return self._unevaluated(part)
        return [Word(text or "", word.line) for text, word in zip(changed, value, strict=True)], whole

    def _value(self, name: str, index: str | None, part: Part) -> list[Word] | None:
        """The words of a variable or of the arguments; None when nothing sets it."""
        if name in "@*":
            if self.arguments is None:
                self.note(part.line, f"the script's own arguments (${name}) are not known: none are read")
            return self.arguments or []
        if name.isdigit():
            at = int(name)
            return self.arguments[at - 1 : at] or None if self.arguments is not None and 0 < at < 10_000 else None
        value = self.variables.get(name)
        if value is None or index in ("@", "*"):
            return value
        at = int(index) if index and index.isdigit() and len(index) < 6 else 0
        return value[at : at + 1]

    def _with_default(self, name: str, value: list[Word] | None, how: str, other: str, part: Part, depth: int) -> list[Word]:
        empty = value is None or (how.startswith(":") and not "".join(word.text for word in value))
        if how[-1] == "+":
            return [] if empty else self._inner(other, part, depth)
        if not empty and value is not None:
            return value
        if how[-1] == "?":
            return self._unset(name, part)
        found = self._inner(other, part, depth)
        if how[-1] == "=" and name.isidentifier():
            self.variables[name] = found
        return found

    def _unset(self, name: str, part: Part) -> list[Word]:
        if self.unset_is_empty and not _SET_ELSEWHERE.fullmatch(name):
            self.note(part.line, f"the variable {name} is not set here: the condition takes it as empty")
            return [Word("", part.line)]
        self.note(part.line, f"the variable {name} is not set here", f"${name}")
        return [Word(f"${name}", part.line)]

    def _unevaluated(self, part: Part) -> tuple[list[Word], bool]:
        text = f"${{{part.text}}}"
        self.note(part.line, f"${{{short(part.text)}}} is not evaluated", text)
        return [Word(text, part.line)], False

    def _inner(self, text: str, part: Part, depth: int) -> list[Word]:
        """The words of a default value, which may itself refer to variables."""
        inner = Lexer(text, self.lexer.file, part.line)
        inner.notes = self.lexer.notes
        parts: list[Part] = []
        while inner.position < len(text):
            found = inner.word()
            if not found:  # a separator: literal inside a default value
                found = [Part("text", text[inner.position], False, part.line)]
                inner.advance(1)
            parts += found
        return [Word(self.string(parts, depth + 1), part.line)]

    def _spend(self, characters: int) -> None:
        self.spent += characters
        if self.spent > self.limit:
            raise self.lexer.error("variables that grow without end", "This is no launch script")


def edited(text: str, how: str) -> str | None:
    """A value after `#`, `##`, `%`, `%%` (cut at an end), `/`, `//` (replace), `^^`, `,,` (case) or `:start:length`; None for any other."""
    if len(text) > _LONGEST_TRIMMED or "$" in how or "`" in how or "$" in text:
        return None
    if how in ("^^", ",,"):
        return text.upper() if how == "^^" else text.lower()
    part = re.fullmatch(r":\s*(\d+)(?::(\d+))?", how)
    if part:
        start = int(part[1])
        return text[start : start + int(part[2])] if part[2] else text[start:]
    cut = re.match(r"##?|%%?", how)
    if cut:
        pattern = re.compile(_glob(how[cut.end() :]))
        ends = range(len(text) + 1) if cut[0] in ("#", "%%") else range(len(text), -1, -1)
        front = cut[0][0] == "#"
        at = next((end for end in ends if pattern.fullmatch(text[:end] if front else text[end:])), None)
        return text if at is None else text[at:] if front else text[:at]
    replaced = re.fullmatch(r"(//?)([^/*?\[\\]+)(?:/(.*))?", how, re.DOTALL)
    if replaced:
        return text.replace(replaced[2], replaced[3] or "", -1 if replaced[1] == "//" else 1)
    return None


def _glob(pattern: str) -> str:
    return translate(re.sub(r"[\"'\\]", "", pattern))
