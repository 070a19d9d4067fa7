"""Reads a shell script without running it: words, quotes, continuations, variables, functions, conditions and integer arithmetic.

What only a shell could know stays open: a command substitution and an unset variable keep their text (`$(...)`, `$NAME`), of an `if`
or a `case` with an unknown condition the first part is read, and a loop is read once. Each of these is noted. Commands in quotes behind
`bash -c`, `eval`, `ssh` and the like are read as scripts of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from preheat.errors import PreheatError, refuse
from preheat.megatron.branches import Block, condition
from preheat.megatron.expansion import Expander, Word
from preheat.megatron.lexing import ASSIGNMENT, MAX_WORDS, Document, Lexer, Note, Part, Simple, bare

MAX_CHARACTERS = 1_000_000
MAX_COMMANDS = 20_000
"""Simple commands that are read, those of a function each time that it is called."""

_KEYWORDS = {"if", "elif", "then", "else", "fi", "do", "done", "time", "!", "{", "}", "esac", "case", "for", "while", "until", "select"}
_TESTS = {"[", "[[", "test"}
_DECLARES = {"export", "declare", "local", "readonly", "typeset"}
_DISPLAYS = {"echo", "printf", "cat", "grep", "sed", "ls", "cp", "mv", "rm", "mkdir", "cd", "git", "logger"}
"""Commands that would only show, copy or search the words behind them."""
_RUNS_TEXT = re.compile(r"(?:^|/)(?:ba|da|z|k)?sh$|(?:^|/)(?:ssh|pdsh|su|runuser|tmux|screen|kubectl|docker|podman|sbatch|srun)$")
_DEPTH = 16


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
    notes: list[Note] = field(default_factory=list)
    aside: list[Statement] = field(default_factory=list)
    """Commands in here-documents, and in functions that nothing here calls: they count where there is no launch elsewhere."""


def read_script(text: str, file: str | None = None) -> Script:
    """Read a script.

    Raises:
        PreheatError: a quote or bracket that is never closed, or a text too large for a script.
    """
    if len(text) > MAX_CHARACTERS:
        refuse("megatron.shell", f"{len(text):_} characters", f"at most {MAX_CHARACTERS:_}", "This is no launch script", file=file)
    lexer = Lexer(text, file)
    script = Script(notes=lexer.notes)
    reader = _Reader(Expander(lexer, 8 * MAX_CHARACTERS), script)
    reader.read(lexer)
    reader.read_uncalled()
    return script


class _Reader:
    """Reads one text after the other into the same script."""

    def __init__(self, expander: Expander, script: Script) -> None:
        self.expander, self.script = expander, script
        self.functions: dict[str, list[Simple]] = {}
        self.called: set[str] = set()
        self.commands = self.words = self.depth = 0
        self.blocks: list[Block] = []
        self.locals: list[dict[str, list[Word] | None]] = []
        """For each function that is read, what the variables that it declares were before."""
        self.defining: tuple[str, int] | None = None
        """A function whose body is being collected, and how many braces are open."""
        self.status: bool | None = None
        """Whether the last command succeeded, where that is known."""
        self.operator = "\n"
        """What stands between the last command and this one."""
        self.ended = False

    def read(self, lexer: Lexer) -> None:
        """Read a text to its end."""
        for command in lexer.commands():
            self._run(command)
            while lexer.documents:
                self._document(lexer.documents.pop(0))
            if self.ended:
                return

    def read_uncalled(self) -> None:
        """Functions that nothing calls here (`export -f`, a call in another file), with arguments that nobody knows."""
        self.ended = False
        kept, self.script.statements = self.script.statements, []
        for name in [name for name in self.functions if name not in self.called]:
            self._call(name, None)
        self.script.aside += self.script.statements
        self.script.statements = kept

    def _run(self, command: Simple) -> None:
        """One simple command, after the words of control flow in front of it."""
        self.commands += 1
        if self.commands > MAX_COMMANDS:
            raise self.expander.lexer.error(f"more than {MAX_COMMANDS:_} commands", "This is no launch script")
        if self._defines(command):
            return
        operator, self.operator = self.operator, command.end if command.words or command.end not in ("(", ")") else self.operator
        skipped = (operator == "&&" and self.status is False) or (operator == "||" and self.status is True)
        words = command.words
        if self.blocks and self.blocks[-1].kind == "case" and self.blocks[-1].deciding:
            words = self._pattern(words, command.end)
        while words and (word := bare(words[0])) in _KEYWORDS:
            if word == "!":  # belongs to the test behind it
                break
            words = self._control(word, words[1:], words[0][0].line, skipped, command.end)
        if words and self.blocks and self.blocks[-1].deciding:
            if self.blocks[-1].kind != "case":
                self.blocks[-1].add(self._condition_words(words), command.end)
        elif words and not skipped and self._reading():
            self.status = self._simple(words)
        if command.end in (";;", ";&", ";;&") and self.blocks and self.blocks[-1].kind == "case":
            self.blocks[-1].next_part()

    def _reading(self) -> bool:
        return all(block.reading for block in self.blocks)

    def _defines(self, command: Simple) -> bool:
        """Whether the command belongs to the definition of a function."""
        words = command.words
        if self.defining is None:
            name = bare(words[0]) if words else ""
            if name == "function" and len(words) > 1:
                self.defining = (bare(words[1]), 0)
                words = words[2:]
            elif len(words) == 1 and command.end == "(" and re.fullmatch(r"[A-Za-z_][\w-]*", name) and name not in _KEYWORDS:
                self.defining = (name, 0)
                return True
            if self.defining is None:
                return False
            self.functions[self.defining[0]] = []
        name, open_braces = self.defining
        if not words:
            return True
        body = self.functions.setdefault(name, [])
        first = bare(words[0])
        if open_braces == 0 and first != "{":  # a body without braces: not a function as people write them
            self.defining = None
            return False
        open_braces += (first == "{") - (first == "}")
        self.defining = (name, open_braces) if open_braces else None
        rest = words[1:] if open_braces == 1 and first == "{" and not body else words
        if open_braces and rest:
            body.append(Simple(rest, command.end, command.line))
        return True

    def _control(self, word: str, rest: list[list[Part]], line: int, skipped: bool, end: str) -> list[list[Part]]:
        """A word of control flow; returns the words behind it that are a command."""
        if word in ("if", "while", "until"):
            self.blocks.append(Block("if" if word == "if" else "loop", line, deciding=True))
            return [[Part("text", "!", False, line)], *rest] if word == "until" else rest
        if word in ("for", "select"):
            self._loop(rest, line)
            return []
        if word == "case":
            reading = self._reading()
            subject = self.expander.string(rest[0]) if rest and reading else ""
            self.blocks.append(Block("case", line, deciding=True, subject=subject, taken=not reading))
            return self._pattern(rest[2:], end)
        if word == "{":
            self.blocks.append(Block("group", line, reading=not skipped))
        elif word in ("fi", "done", "esac", "}") and self.blocks:
            self._close(self.blocks.pop())
        elif self.blocks and word == "elif":
            self.blocks[-1].deciding = True
        elif self.blocks and word == "else":
            self.blocks[-1].otherwise()
        elif self.blocks and word in ("then", "do") and self.blocks[-1].deciding:
            self.blocks[-1].decide()
        return rest

    def _close(self, block: Block) -> None:
        if block.guessed and self._reading():
            what = {"if": "an `if` starts whose condition is not known: its first part is read, no other"}
            what |= {"case": "a `case` starts whose subject is not known: its first part is read, no other"}
            self.expander.note(block.line, what.get(block.kind, "a loop starts whose condition is not known: it is read once"))

    def _loop(self, header: list[list[Part]], line: int) -> None:
        """`for NAME in WORDS`: read once, with the first of them."""
        reading = self._reading()
        self.blocks.append(Block("loop", line, reading=True))
        if not reading or not header:
            return
        name = bare(header[0])
        values = [word for parts in header[2:] for word in self.expander.words(parts)] if name.isidentifier() else []
        if values:
            self.expander.variables[name] = values[:1]
            if len(values) > 1:
                self.expander.note(line, f"a loop of {len(values)} starts: it is read once, with {name}={values[0].text[:40]}")
        else:
            self.expander.note(line, "a loop starts: it is read once")

    def _pattern(self, words: list[list[Part]], end: str) -> list[list[Part]]:
        """The patterns of a part of a `case`; returns `esac` and what follows it."""
        if words and bare(words[0]) == "esac":
            return words
        block = self.blocks[-1]
        block.patterns += [self.expander.string(parts) for parts in words]
        if end == ")" and block.patterns:
            block.choose()
        return []

    def _condition_words(self, words: list[list[Part]]) -> list[str]:
        """The words of a condition: [[ ]] splits none, and a variable that nothing sets is empty."""
        if not self._reading_outside():
            return ["false"]
        double = "[[" in (bare(parts) for parts in words[:2])
        self.expander.unset_is_empty = True
        try:
            return [self.expander.string(p) for p in words] if double else [w.text for parts in words for w in self.expander.words(parts)]
        finally:
            self.expander.unset_is_empty = False

    def _reading_outside(self) -> bool:
        return all(block.reading for block in self.blocks[:-1])

    def _simple(self, words: list[list[Part]]) -> bool | None:
        """Assignments take effect, everything else is kept as words. Returns whether it succeeds, where that is known."""
        first = bare(words[0])
        if first == ":":
            self.expander.string([part for parts in words[1:] for part in parts])  # : ${NAME:=default}
            return True
        if first in (*_TESTS, "true", "false") or (first == "!" and bare(words[1] if len(words) > 1 else []) in _TESTS):
            return condition(self._condition_words(words))
        if first == "!":
            self._simple(words[1:] or [[Part("text", ":", False, words[0][0].line)]])
            return None
        if first == "((":
            return self._calculate(bare(words[1]), words[0][0].line)
        declaring = first in _DECLARES
        rest = [parts for parts in words[1:] if not bare(parts).startswith("-")] if declaring else words
        if declaring or all(_assigned_name(parts) for parts in words):
            self._assign(rest, exporting=first in ("export", "declare", "typeset"), local=first in ("local", "declare", "typeset"))
            return True
        assignments: dict[str, list[Word]] = {}
        while assigned := self._assignment(rest[0]):
            assignments[assigned[0]] = assigned[1]
            rest = rest[1:]
        return self._command([word for parts in rest for word in self.expander.words(parts)], assignments)

    def _assign(self, words: list[list[Part]], *, exporting: bool, local: bool) -> None:
        """Assignments that are a command of their own, or names that are declared."""
        for parts in words:
            assigned = self._assignment(parts)
            name = assigned[0] if assigned else bare(parts)
            if local and self.locals:
                self.locals[-1].setdefault(name, self.expander.variables.get(name))
            if assigned:
                self.expander.variables[name] = assigned[1]
            if (exporting or name in self.script.exported) and name in self.expander.variables:
                self.script.exported[name] = " ".join(word.text for word in self.expander.variables[name])

    def _command(self, words: list[Word], assignments: dict[str, list[Word]]) -> bool | None:
        """A command that is no assignment."""
        if not words:
            return None
        environment = {name: " ".join(word.text for word in value) for name, value in assignments.items()}
        name, rest = words[0].text, words[1:]
        if name in self.functions and self.depth < _DEPTH:
            self.called.add(name)
            self._call(name, rest)
            return None
        if name == "unset":
            for word in rest:
                self.expander.variables.pop(word.text, None)
                self.script.exported.pop(word.text, None)
        elif name == "set" and rest and rest[0].text == "--":
            self.expander.arguments = rest[1:]
        elif name == "shift" and self.expander.arguments:
            count = int(rest[0].text) if rest and rest[0].text.isdigit() and len(rest[0].text) < 5 else 1
            self.expander.arguments = self.expander.arguments[count:]
        elif name in ("source", "."):
            self.expander.note(words[0].line, f"`{name} {rest[0].text[:60] if rest else ''}` is not read: what it sets is not known")
        elif name in ("exit", "return"):
            self._leave()
        else:
            self._keep(words, environment)
        return None

    def _keep(self, words: list[Word], environment: dict[str, str]) -> None:
        """Keep a command as a statement, or what it holds in quotes as statements."""
        self.words += len(words)
        if self.words > MAX_WORDS:
            raise self.expander.lexer.error(f"more than {MAX_WORDS:_} words", "This is no launch script")
        if words[0].text in _DISPLAYS:
            return
        if words[0].text == "eval" and self.depth < _DEPTH:
            self._nested(" ".join(word.text for word in words[1:]), words[0].line)
            return
        if self.depth < _DEPTH and any(_RUNS_TEXT.search(word.text) for word in words):
            before = len(self.script.statements)
            for word, previous in zip(words[1:], words, strict=False):
                runs = re.fullmatch(r"-\w*c", previous.text) is not None
                if len(word.text.split()) > 1 and (".py" in word.text or (runs and "$" in word.text)):
                    self._nested(re.sub(r"^--?[\w-]+=", "", word.text), word.line)
            if len(self.script.statements) > before:
                return
        self.script.statements.append(Statement(tuple(words), environment))

    def _nested(self, text: str, line: int) -> None:
        """A command in quotes, with the variables of the script around it."""
        lexer = Lexer(text, self.expander.lexer.file, line)
        lexer.notes = self.script.notes
        outside = self.expander.lexer, self.blocks, self.status, self.operator
        self.expander.lexer, self.blocks, self.operator = lexer, [], "\n"
        self.depth += 1
        try:
            self.read(lexer)
        finally:
            self.depth -= 1
            self.expander.lexer, self.blocks, self.status, self.operator = outside

    def _document(self, document: Document) -> None:
        """A here-document, read as a script; one that is none is passed over."""
        if not self._reading() or self.depth >= _DEPTH or not re.search(r"\.py|\$", document.text):
            return
        kept, self.script.statements = self.script.statements, []
        notes, variables = len(self.script.notes), dict(self.expander.variables)
        text = document.text
        try:
            if not document.quoted:
                lexer = Lexer(text, self.expander.lexer.file, document.line)
                lexer.notes = self.script.notes
                text = self.expander.string(lexer.document())
            self._nested(text, document.line)
        except PreheatError:
            self.script.statements = []
        if not self.script.statements:
            del self.script.notes[notes:]
        self.script.aside += self.script.statements
        self.script.statements, self.expander.variables = kept, variables

    def _call(self, name: str, arguments: list[Word] | None) -> None:
        """The body of a function with its arguments; what it declares is as before when it ends."""
        outside = self.expander.arguments, self.blocks, self.operator
        self.expander.arguments, self.blocks, self.operator = arguments, [], "\n"
        self.locals.append({})
        self.depth += 1
        for command in self.functions[name]:
            self._run(command)
        self.depth -= 1
        for variable, value in self.locals.pop().items():
            self.expander.variables.pop(variable, None)
            if value is not None:
                self.expander.variables[variable] = value
        self.expander.arguments, self.blocks, self.operator = outside

    def _leave(self) -> None:
        """`exit`: the part of the block that holds it is not the one that launches; outside of all blocks nothing follows."""
        if self.blocks:
            self.blocks[-1].leave()
        elif self.depth == 0 and self.operator in ("\n", ";", ""):
            self.ended = True

    def _calculate(self, expression: str, line: int) -> bool | None:
        """`(( NAME = ... ))`."""
        assigned = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", expression, re.DOTALL)
        if assigned:
            self.expander.variables[assigned[1]] = [Word(self.expander.calculate(assigned[2], line), line)]
            return None
        self.expander.note(line, "a (( )) is not evaluated")
        return None

    def _assignment(self, parts: list[Part]) -> tuple[str, list[Word]] | None:
        match = _assigned_name(parts)
        if match is None:
            return None
        name, appending = match[1], bool(match[2])
        before = self.expander.variables.get(name, []) if appending else []
        if len(parts) > 1 and parts[1].kind == "array":
            value: list[Word] = []
            element: list[Part] = []
            for part in [*parts[2:], Part("next", "", False, 0)]:
                if part.kind == "next":
                    value += self.expander.words(element) if element else []
                    element = []
                else:
                    element.append(part)
            return name, [*before, *value]
        first = Part("text", parts[0].text[match.end() :], False, parts[0].line)
        text = self.expander.string([first, *parts[1:]])
        return name, [Word("".join(word.text for word in before) + text, parts[0].line)]


def _assigned_name(parts: list[Part]) -> re.Match[str] | None:
    """The `NAME=` or `NAME+=` at the start of a word."""
    return ASSIGNMENT.match(parts[0].text) if parts and not parts[0].quoted and parts[0].kind == "text" else None
