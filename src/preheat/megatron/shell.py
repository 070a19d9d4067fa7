"""Reads a shell script without running it: words, quotes, continuations, variables, arrays, defaults and integer arithmetic.

What only a shell could know stays open: a command substitution and an unset variable keep their text (`$(...)`, `$NAME`), of an `if`
with an unknown condition the first branch is read, and loops and cases are read straight through. Each of these is noted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from preheat.errors import refuse
from preheat.megatron.branches import Branch
from preheat.megatron.integers import evaluate
from preheat.megatron.lexing import ASSIGNMENT, MAX_WORDS, Lexer, Part, short

MAX_CHARACTERS = 1_000_000

_REFERENCE = re.compile(r"(?P<name>[A-Za-z_]\w*|\d|[@*])(?:\[(?P<index>[^\]]*)\])?(?:(?P<how>:?[-=+?])(?P<other>.*))?", re.DOTALL)
_STRAIGHT = {"for", "while", "until", "case", "select", "function"}
_PREFIXES = {"do", "!", "time", "{", "}", "done", "esac", *_STRAIGHT}
_DECLARES = {"export", "declare", "local", "readonly", "typeset"}
_NESTING = 16


@dataclass(frozen=True)
class Word:
    """One word after expansion, with the line on which it is written."""

    text: str
    line: int


@dataclass(frozen=True)
class Statement:
    """One simple command."""

    words: tuple[Word, ...]
    environment: dict[str, str]
    """Variables set in front of this command only."""


@dataclass
class Script:
    """What a script says, as far as it can be known without running it."""

    statements: list[Statement] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[int, str]] = field(default_factory=list)
    """Line and what was not evaluated there."""


def read_script(text: str, file: str | None = None) -> Script:
    """Read a script.

    Raises:
        PreheatError: a quote or bracket that is never closed, or a text too large for a script.
    """
    if len(text) > MAX_CHARACTERS:
        refuse("megatron.shell", f"{len(text):_} characters", f"at most {MAX_CHARACTERS:_}", "This is no launch script", file=file)
    return _Evaluator(Lexer(text, file)).read()


class _Evaluator:
    def __init__(self, lexer: Lexer) -> None:
        self.lexer = lexer
        self.script = Script(notes=lexer.notes)
        self.variables: dict[str, list[Word]] = {}
        self.words = 0
        self.spent = 0
        self.branches: list[Branch] = []

    def read(self) -> Script:
        for command in self.lexer.commands():
            self._run(command)
        return self.script

    def _run(self, pending: list[list[Part]]) -> None:
        """Evaluate one simple command, after the words of control flow in front of it."""
        while pending and (word := _plain(pending[0])) in {"if", "elif", "then", "else", "fi", *_PREFIXES}:
            self._control(word, pending[0][0].line)
            pending = pending[1:]
        if not pending:
            return
        if self.branches and self.branches[-1].deciding:
            double = "[[" in (_plain(pending[0]), _plain(pending[1]) if len(pending) > 1 else "")  # [[ ]] splits no words
            words = [self._string(parts) for parts in pending] if double else [w.text for parts in pending for w in self._expand(parts)]
            self.branches[-1].conditions.append(words)
        elif all(branch.reading for branch in self.branches):
            self._simple(pending)

    def _control(self, word: str, line: int) -> None:
        if word == "if":
            self.branches.append(Branch(line))
        elif word in _STRAIGHT and all(branch.reading for branch in self.branches):
            self.script.notes.append((line, f"`{word}` is not evaluated: what is in it is read in turn"))
        if not self.branches:
            return
        if word == "elif":
            self.branches[-1].deciding = True
        elif word == "then":
            self.branches[-1].decide()
        elif word == "else":
            self.branches[-1].otherwise()
        elif word == "fi" and self.branches.pop().guessed and all(branch.reading for branch in self.branches):
            self.script.notes.append((line, "the condition of an `if` that ends here is not known: its first branch is read, no other"))

    def _simple(self, pending: list[list[Part]]) -> None:
        """Assignments take effect, everything else is kept as words."""
        declaring = bool(pending) and len(pending[0]) == 1 and pending[0][0].text in _DECLARES
        exporting = declaring and pending[0][0].text in ("export", "declare", "typeset")
        assignments: dict[str, list[Word]] = {}
        rest = pending[1:] if declaring else pending
        while rest and (assigned := self._assignment(rest[0])):
            assignments[assigned[0]] = assigned[1]
            rest = rest[1:]
        words = [] if declaring else [word for parts in rest for word in self._expand(parts)]
        texts = {name: " ".join(word.text for word in value) for name, value in assignments.items()}
        if words:
            if words[0].text in ("[", "[[", "test"):
                self.script.notes.append((words[0].line, "a test is not evaluated: what follows it with && or || is read"))
                return
            self.script.statements.append(Statement(tuple(words), texts))
            self.words += len(words)
            if self.words > MAX_WORDS:
                raise self.lexer.error(f"more than {MAX_WORDS:_} words")
            return
        self.variables.update(assignments)
        known = [name for parts in rest if declaring for name in [_joined(parts)] if name in self.variables]
        for name in [*assignments, *known]:
            if exporting or name in self.script.exported:
                self.script.exported[name] = " ".join(word.text for word in self.variables[name])

    def _assignment(self, parts: list[Part]) -> tuple[str, list[Word]] | None:
        if not parts or parts[0].quoted or parts[0].kind != "text":
            return None
        match = ASSIGNMENT.match(parts[0].text)
        if match is None:
            return None
        name, appending = match[1], bool(match[2])
        before = self.variables.get(name, []) if appending else []
        if len(parts) > 1 and parts[1].kind == "array":
            value: list[Word] = []
            element: list[Part] = []
            for part in [*parts[2:], Part("next", "", False, 0)]:
                if part.kind == "next":
                    value += self._expand(element) if element else []
                    element = []
                else:
                    element.append(part)
            return name, [*before, *value]
        first = Part("text", parts[0].text[match.end() :], False, parts[0].line)
        text = self._string([first, *parts[1:]])
        return name, [Word("".join(word.text for word in before) + text, parts[0].line)]

    def _expand(self, parts: list[Part], depth: int = 0) -> list[Word]:
        """A word as the shell would split it."""
        fields: list[Word] = []
        current: str | None = None
        line = parts[0].line if parts else self.lexer.line
        for part in parts:
            for index, (piece, at) in enumerate(self._pieces(part, depth)):
                if index and current is not None:
                    fields.append(Word(current, line))
                    current = None
                line = line if current else at
                current = (current or "") + piece
            if part.quoted and part.kind == "text" and current is None:
                current = ""
        return [*fields, Word(current, line)] if current is not None else fields

    def _pieces(self, part: Part, depth: int) -> list[tuple[str, int]]:
        """The text of a part; more than one piece where it falls into several words."""
        if part.kind == "open":
            return [(f"$({part.text.strip('$()`').split(' ')[0]})", part.line)]
        if part.kind == "text":
            return [(part.text, part.line)] if part.text or not part.quoted else []
        if part.kind == "arithmetic":
            return [(self._arithmetic(part), part.line)]
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
            self.script.notes.append((part.line, f"${{{short(part.text)}}} is not evaluated"))
            return [Word(f"${{{part.text}}}", part.line)], False
        name, index, how, other = reference["name"], reference["index"], reference["how"], reference["other"]
        value = self.variables.get(name)
        if index is not None and index.isdigit() and value is not None:
            value = value[int(index) : int(index) + 1]
        empty = value is None or (how is not None and how.startswith(":") and not "".join(word.text for word in value))
        if how is not None and how[-1] in "-=" and empty:
            value = self._inner(other, part, depth)
        elif how is not None and how[-1] == "+":
            value = [] if empty else self._inner(other, part, depth)
        if name in "@*":
            return [], False
        if value is None:
            self.script.notes.append((part.line, f"the variable {name} is not set here"))
            return [Word(f"${name}", part.line)], False
        return value, index in ("@", "*")

    def _inner(self, text: str, part: Part, depth: int) -> list[Word]:
        """The words of a default value, which may itself refer to variables."""
        inner = Lexer(text, self.lexer.file, part.line)
        inner.notes = self.script.notes
        parts: list[Part] = []
        while inner.position < len(text):
            found = inner.word()
            if not found:  # a separator: literal inside a default value
                found = [Part("text", text[inner.position], False, part.line)]
                inner.advance(1)
            parts += found
        return [Word(self._string(parts, depth + 1), part.line)]

    def _string(self, parts: list[Part], depth: int = 0) -> str:
        pieces = [" ".join(text for text, _ in self._pieces(part, depth)) for part in parts]
        text = "".join(pieces)
        self._spend(len(text))
        return text

    def _spend(self, characters: int) -> None:
        self.spent += characters
        if self.spent > 8 * MAX_CHARACTERS:
            raise self.lexer.error("variables that grow without end")

    def _arithmetic(self, part: Part) -> str:
        expression = re.sub(r"\$\{?(\w+)\}?", r"\1", part.text)

        def look_up(name: str) -> str:
            return " ".join(word.text for word in self.variables.get(name, []))

        value = evaluate(expression, look_up)
        if value is None:
            self.script.notes.append((part.line, f"$(({short(part.text)})) is not evaluated"))
            return f"$(({part.text}))"
        return str(value)


def _joined(parts: list[Part]) -> str:
    return "".join(part.text for part in parts)


def _plain(parts: list[Part]) -> str:
    """The text of a word without quotes or references; empty for any other."""
    return parts[0].text if len(parts) == 1 and parts[0].kind == "text" and not parts[0].quoted else ""
