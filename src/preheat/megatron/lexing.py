"""Cuts a shell script into commands, and commands into words whose parts are still to be evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from preheat.errors import PreheatError, Problem, Where

MAX_WORDS = 100_000
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")

_DESCRIPTOR = re.compile(r"\d(?=[<>])")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")


@dataclass(frozen=True)
class Part:
    kind: str
    """`text`, `variable`, `arithmetic`, `open` (what stays as written), `array` and `next` (an array and each of its elements)."""
    text: str
    quoted: bool
    line: int


class Lexer:
    """Reads a text from its start; `line` is the line of the next character, `notes` collects what stays open."""

    def __init__(self, text: str, file: str | None, line: int = 1) -> None:
        self.text, self.file = text, file
        self.position, self.line = 0, line
        self.notes: list[tuple[int, str]] = []

    def commands(self) -> Iterator[list[list[Part]]]:
        """The simple commands of the text, each a list of words, each a list of parts."""
        pending: list[list[Part]] = []
        while self.position < len(self.text):
            character = self.text[self.position]
            if character in " \t\r":
                self.position += 1
            elif self.text.startswith(("\\\n", "\\\r\n"), self.position):
                self.advance(2 if self.text[self.position + 1] == "\n" else 3)
            elif character == "#":
                self._skip_line()
            elif character in "\n;&|()":
                if character in "(|" and pending and pending[-1][0].text.startswith("--"):
                    raise self.error(f"{character} without quotes after {short(pending[-1][0].text)}")
                if pending:
                    yield pending
                    pending = []
                self.advance(1)
            elif character in "<>" or (numbered := _DESCRIPTOR.match(self.text, self.position)):
                self.position += len(numbered[0]) if character not in "<>" and numbered else 0
                self._skip_redirection()
            else:
                word = self.word()
                pending += [word] if word else []
                if len(pending) > MAX_WORDS:
                    raise self.error(f"a command of more than {MAX_WORDS:_} words")
        if pending:
            yield pending

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
            elif character in "$`":
                flush()
                parts.append(self._dollar(False))
            else:
                plain += character
                self.position += 1
        flush()
        return parts

    def _double_quoted(self, started: int) -> list[Part]:
        parts: list[Part] = []
        plain, line = "", self.line
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == '"':
                self.position += 1
                return [*parts, Part("text", plain, True, line)]
            if character == "\\" and self.text.startswith(('"', "\\", "$", "`", "\n"), self.position + 1):
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
            end = text.find("))", start)
            if end < 0:
                raise self.error("a $(( that is never closed")
            self.advance(end + 2 - start)
            return Part("arithmetic", text[start + 3 : end], quoted, line)
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
        self.notes.append((self.line, f"the command {short(part.text)} is not run"))
        self.advance(end - self.position)
        return part

    def _closing(self, start: int, opening: str, closing: str) -> int:
        """The position after the bracket that closes the one at `start`."""
        depth = 0
        for position in range(start, len(self.text)):
            if self.text[position] == opening:
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

    def error(self, got: str) -> PreheatError:
        """The text is no script."""
        fix = "Close or quote it"
        return PreheatError(Problem("megatron.shell", got, "", fix, Where(self.file, self.line)))


def short(text: str) -> str:
    """A text that fits in a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= 40 else flat[:37] + "..."
