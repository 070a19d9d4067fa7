"""What a task that ran elsewhere says: nothing, or what went wrong."""

from __future__ import annotations

import traceback
from dataclasses import asdict
from typing import Any

from preheat.data.pipeline.stages import BY_NAME
from preheat.data.pipeline.tasks import Context, perform
from preheat.errors import PreheatError, Problem, RunFailed, Where


def attempt(context: Context, stage: str, number: int) -> dict[str, Any]:
    """Do a task; an empty answer, or what went wrong, as `raise_answer` raises it again in another process."""
    try:
        perform(context, BY_NAME[stage], number)
    except PreheatError as error:
        return {"failed": isinstance(error, RunFailed), "problems": [asdict(problem) for problem in error.problems]}
    except OSError as error:
        got = f"the prepared data cannot be written: {error.strerror or error}"
        problem = Problem("data.write", got, f"in task {stage} {number}", "Make room, and prepare again: what is done stays done")
        return {"failed": True, "problems": [asdict(problem)]}
    except Exception as error:
        # It happened in another process, or on another machine.
        report = context.work / f"failed-{stage}-{number}.txt"
        report.write_text(traceback.format_exc(), "utf-8")
        got = f"the task {stage} {number} failed ({type(error).__name__}: {error})"
        return {"failed": True, "problems": [asdict(Problem("data.task", got, "", f"Report this fault: {report} tells where"))]}
    return {}


def raise_answer(answer: dict[str, Any]) -> None:
    """Raise what went wrong with a task."""
    if answer:
        problems = [Problem(**{**problem, "where": Where(**problem["where"])}) for problem in answer["problems"]]
        raise (RunFailed if answer["failed"] else PreheatError)(*problems)
