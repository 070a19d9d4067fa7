"""Cuts a shell script into commands, and commands into words whose parts are still to be evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from preheat.errors import PreheatError, Problem, Where

MAX_WORDS = 100_000
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")

_DESCRIPTOR = re.compile(r"\d(?=[<>])")
_SEPARATOR = re.compile(r";;&|;;|;&|&&|\|\||[\n;&|()]")
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t"}
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")


@dataclass(frozen=True)
class Part:
    kind: str
    """`text`, `variable`, `arithmetic`, `open` (what stays as written), `array` and `next` (an array and each of its elements)."""
    text: str
    quoted: bool
    line: int


@dataclass(frozen=True)
class Simple:
    """One simple command: words that are lists of parts."""

    words: list[list[Part]]
    end: str
    """The separator behind it: a newline, `;`, `&&`, `||`, `|`, `&`, `(`, `)`, `;;`, or nothing at the end of the text."""
    line: int


@dataclass(frozen=True)
class Document:
    """A here-document."""

    text: str
    line: int
    quoted: bool
    """Its word is quoted, as in <<'EOF': no variable in it is replaced."""


@dataclass(frozen=True)
class Note:
    """What was not evaluated."""

    line: int
    text: str
    trace: str = ""
    """What stands in the words instead; a command is only concerned if it holds it. Empty: every command is."""


class Lexer:
    """Reads a text from its start; `line` is the line of the next character, `notes` collects what stays open."""

    def __init__(self, text: str, file: str | None, line: int = 1) -> None:
        self.text, self.file = text, file
        self.position, self.line = 0, line
        self.notes: list[Note] = []
        self.documents: list[Document] = []

    def commands(self) -> Iterator[Simple]:
        """The simple commands of the text; one without words where a bracket or `;;` stands alone."""
        pending: list[list[Part]] = []
        while self.position < len(self.text):
            character = self.text[self.position]
            if character in " \t\r":
                self.position += 1
            elif self.text.startswith(("\\\n", "\\\r\n"), self.position):
                self.advance(2 if self.text[self.position + 1] == "\n" else 3)
            elif character == "#":
                self._skip_line()
            elif self.text.startswith("((", self.position) and (not pending or bare(pending[0]) in ("for", "if", "while", "until")):
                end = self._closing(self.position, "(", ")")
                expression = self.text[self.position + 2 : end - 2]
                pending += [[Part("text", "((", False, self.line)], [Part("text", expression, False, self.line)]]
                self.advance(end - self.position)
            elif separator := _SEPARATOR.match(self.text, self.position):
                if character == "(" and pending and pending[-1][0].text.startswith("--"):
                    raise self.error(f"( without quotes after {short(pending[-1][0].text)}")
                if pending or separator[0] in ("(", ")", ";;", ";&", ";;&"):
                    yield Simple(pending, separator[0], pending[0][0].line if pending else self.line)
                    pending = []
                self.advance(len(separator[0]))
            elif character in "<>" or (numbered := _DESCRIPTOR.match(self.text, self.position)):
                self.position += len(numbered[0]) if character not in "<>" and numbered else 0
                self._skip_redirection()
            else:
                word = self.word()
                pending += [word] if word else []
                if len(pending) > MAX_WORDS:
                    raise self.error(f"a command of more than {MAX_WORDS:_} words", "This is no launch script")
        if pending:
            yield Simple(pending, "", pending[0][0].line)

    def advance(self, count: int) -> None:
        self.line += self.text.count("\n", self.position, self.position + count)
        self.position += count

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.position)
        self.position = len(self.text) if end < 0 else end

    def _skip_redirection(self) -> None:
        here = re.compile(r"<<-?\s*(['\"]?)(\w+)\1").match(self.text, self.position)
        if here and not self.text.startswith("<<<", self.position):
            body = re.compile(rf"^\t*{re.escape(here[2])}[ \t\r]*$", re.MULTILINE).search(self.text, here.end())
            start = self.text.find("\n", here.end()) + 1
            if body and 0 < start <= body.start():
                line = self.line + self.text.count("\n", self.position, start)
                self.documents.append(Document(self.text[start : body.start()], line, bool(here[1])))
            self.advance((body.end() if body else len(self.text)) - self.position)
            return
        while self.position < len(self.text) and self.text[self.position] in "<>&| \t":
            self.position += 1
        if self.position < len(self.text) and self.text[self.position] not in "\n;()":
            self.word()

    def word(self) -> list[Part]:
        """The parts of the word at the position, up to a blank or a separator outside of quotes."""
        parts: list[Part] = []
        plain, line = "", self.line

        def flush(quoted: bool = False) -> None:
            nonlocal plain
            if plain or quoted:
                parts.append(Part("text", plain, quoted, line))
            plain = ""

        while self.position < len(self.text):
            character = self.text[self.position]
            if character == "(" and not parts and ASSIGNMENT.fullmatch(plain):
                flush()
                return [*parts, *self._array()]
            if character in " \t\r\n;&|()<>":
                break
            if character == "\\":
                following = self.text[self.position + 1 : self.position + 2]
                plain += "" if following == "\n" else following
                self.advance(2)
            elif character == "'":
                end = self.text.find("'", self.position + 1)
                if end < 0:
                    raise self.error("a quote ' that is never closed")
                flush()
                parts.append(Part("text", self.text[self.position + 1 : end], True, line))
                self.advance(end + 1 - self.position)
            elif character == '"':
                flush()
                self.advance(1)
                parts += self._double_quoted(line)
            elif self.text.startswith("$'", self.position):
                flush()
                parts.append(self._escaped(line))
            elif self.text.startswith('$"', self.position):
                self.position += 1
            elif character in "$`":
                flush()
                parts.append(self._dollar(False))
            else:
                plain += character
                self.position += 1
        flush()
        return parts

    def _escaped(self, line: int) -> Part:
        """A text in $'...', in which a backslash escapes."""
        found = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self.text, self.position)
        if found is None:
            raise self.error("a quote $' that is never closed")
        self.advance(len(found[0]))
        return Part("text", re.sub(r"\\(.)", lambda each: _ESCAPES.get(each[1], each[1]), found[1], flags=re.DOTALL), True, line)

    def document(self) -> list[Part]:
        """The parts of a text in which variables are replaced and quotes mean nothing: the body of a here-document."""
        return self._double_quoted(self.line, "")

    def _double_quoted(self, started: int, closing: str = '"') -> list[Part]:
        parts: list[Part] = []
        plain, line = "", self.line
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == closing:
                self.position += 1
                return [*parts, Part("text", plain, True, line)]
            if character == "\\" and self.text[self.position + 1 : self.position + 2] in (closing, "\\", "$", "`", "\n"):
                following = self.text[self.position + 1]
                plain += "" if following == "\n" else following
                self.advance(2)
            elif character in "$`":
                parts.append(Part("text", plain, True, line))
                plain = ""
                parts.append(self._dollar(True))
            else:
                plain += character
                self.advance(1)
        if not closing:
            return [*parts, Part("text", plain, True, line)]
        self.line = started
        raise self.error('a quote " that is never closed')

    def _dollar(self, quoted: bool) -> Part:
        """A reference, an arithmetic expression or a command substitution at the position."""
        line, text, start = self.line, self.text, self.position
        if text[start] == "`":
            end = text.find("`", start + 1)
            if end < 0:
                raise self.error("a ` that is never closed")
            return self._leave_open(end + 1, quoted)
        if text.startswith("$((", start):
            end = self._closing(start + 1, "(", ")")
            if text[end - 2] == ")":
                self.advance(end - start)
                return Part("arithmetic", text[start + 3 : end - 2], quoted, line)
        if text.startswith("$(", start):
            return self._leave_open(self._closing(start + 1, "(", ")"), quoted)
        if text.startswith("${", start):
            end = self._closing(start + 1, "{", "}")
            self.advance(end - start)
            return Part("variable", text[start + 2 : end - 1], quoted, line)
        name = _NAME.match(text, start + 1)
        if name is None:
            self.position += 1
            return Part("text", "$", quoted, line)
        self.position = name.end()
        return Part("variable", name[0], quoted, line)

    def _leave_open(self, end: int, quoted: bool) -> Part:
        part = Part("open", self.text[self.position : end], quoted, self.line)
        self.notes.append(Note(self.line, f"the command {short(part.text)} is not run", left_open(part.text)))
        self.advance(end - self.position)
        return part

    def _closing(self, start: int, opening: str, closing: str) -> int:
        """The position after the bracket that closes the one at `start`; one in quotes does not."""
        depth, skip_to = 0, 0
        for position in range(start, len(self.text)):
            if position < skip_to:
                continue
            if opening == "(" and (quoted := _QUOTED.match(self.text, position)):
                skip_to = quoted.end()
            elif self.text[position] == opening:
                depth += 1
            elif self.text[position] == closing:
                depth -= 1
                if depth == 0:
                    return position + 1
        raise self.error(f"a {opening} that is never closed")

    def _array(self) -> list[Part]:
        """The elements of `NAME=( ... )` as parts, with a part of kind `next` in front of each."""
        parts: list[Part] = [Part("array", "", False, self.line)]
        started = self.line
        self.advance(1)
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == ")":
                self.position += 1
                return parts
            if character == "#":
                self._skip_line()
            elif character in " \t\r\n":
                self.advance(1)
            elif self.text.startswith("\\\n", self.position):
                self.advance(2)
            elif character in ";&|<>(":
                raise self.error(f"{character!r} inside an array")
            else:
                parts += [Part("next", "", False, self.line), *self.word()]
        self.line = started
        raise self.error("an array ( that is never closed")

    def error(self, got: str, fix: str = "Close or quote it") -> PreheatError:
        """The text is no script."""
        return PreheatError(Problem("megatron.shell", got, "", fix, Where(self.file, self.line)))


def bare(parts: list[Part]) -> str:
    """The text of a word without quotes or references; empty for any other."""
    return parts[0].text if len(parts) == 1 and parts[0].kind == "text" and not parts[0].quoted else ""


def left_open(text: str) -> str:
    """What stands in a word for a command substitution: `$(` and the name of the command."""
    return f"$({text.strip('$()` ').split(' ')[0]})"


def short(text: str) -> str:
    """A text that fits in a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= 40 else flat[:37] + "..."
