"""What a long verb says while it works: lines, and on a terminal a bar below them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preheat.data.pipeline.run import Bar, Progress


@contextmanager
def shown(*, silent: bool) -> Iterator[tuple[Progress, Bar | None]]:
    """What shows a line, and what shows how far a step is: its name, the share that is done, and that in words. No bar off a terminal."""
    if silent or not sys.stdout.isatty():
        yield (lambda line: None) if silent else (lambda line: print(line, flush=True)), None
        return
    from rich.markup import escape
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Live

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%  {task.fields[amount]}")
    with Live(*columns, transient=True) as live:
        task = live.add_task("", total=1.0, visible=False, amount="")

        def bar(step: str, share: float, amount: str) -> None:
            live.update(task, description=escape(step), completed=share, amount=escape(amount), visible=True)

        yield lambda line: live.console.print(line, markup=False, highlight=False, soft_wrap=True), bar
