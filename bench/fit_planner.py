"""Fit the planner's constants to published runs: `python bench/fit_planner.py RUNS.csv [--docs-only]`.

Writes `src/preheat/plan/constants.toml` and its accuracy, with all sources and without each in turn, into `docs/planner-accuracy.md`. The
same table always gives the same numbers. Some ten minutes on one core; `--docs-only` keeps the constants.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from preheat.plan import calibrate, calibration_json, predicted_memory, read_runs, shipped
from preheat.plan.constants import tables
from preheat.plan.fit import BELIEFS, fit, value_at

ROOT = Path(__file__).parents[1]
CONSTANTS = ROOT / "src/preheat/plan/constants.toml"
PAGE = ROOT / "docs/planner-accuracy.md"


def toml(values: dict[str, Any], rows: int, sources: int) -> Iterator[str]:
    """The lines of constants.toml."""
    yield f"# Fitted by bench/fit_planner.py to {rows} published runs of {sources} sources; preheat/plan/fit.py says from what beliefs."
    yield "# A number without a comment is not fitted: known, or without influence on those runs."
    for table, entries in values.items():
        for name, inner in entries.items() if table != "common" else ((None, entries),):
            yield ""
            yield f"[{table}.{name}]" if name else f"[{table}]"
            for key, value in inner.items():
                path = (table, name, key) if name else (table, key)
                text = f'"{value}"' if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else str(value)
                yield f"{key} = {text}" + ("  # fitted" if path in BELIEFS else "")


def accuracy_lines(before: dict[str, Any], without: dict[str, Any]) -> Iterator[str]:
    """The table of errors: with the constants that ship, and without the source."""
    yield "| rows | n | median | 90th percentile | bias | left out: median | 90th percentile | bias |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    groups = {"overall": "overall", "by_group": None, "by_source": None}
    for key in groups:
        for name in before[key] if key != "overall" else ("overall",):
            pair = [
                (found["overall"] if key == "overall" else found[key].get(name, {"throughput": None}))["throughput"]
                for found in (before, without)
            ]
            if None not in pair:
                figures = [f"{one['median_abs_error']:.1%} | {one['p90_abs_error']:.1%} | {one['bias']:+.1%}" for one in pair]
                yield f"| {name.replace('_', ' ')} | {pair[0]['n']} | {' | '.join(figures)} |"


def page(before: dict[str, Any], without: dict[str, Any]) -> Iterator[str]:
    """What the fit writes into the page."""
    yield from accuracy_lines(before, without)
    yield ""
    yield f"{before['rows_used']} rows are used. Figures that are not, and why:"
    yield ""
    yield from (f"- {count}: {reason}" for reason, count in before["rows_skipped"].items())
    yield ""
    yield "What stands for something that a used row does not say:"
    yield ""
    yield from (f"- {count}: {what}" for what, count in before["rows_assumed"].items())
    yield ""
    yield "Farthest off with the source left out (predicted over measured throughput, less one):"
    yield ""
    yield from (f"- {row['error']:+.0%}: {row['model']} on {row['gpus']}, {row['source']} (row {row['id']})" for row in without["worst"])
    yield ""
    yield "Fitted numbers:"
    yield ""
    yield "| number | believed before | fitted |"
    yield "|---|--:|--:|"
    found = tables()
    yield from (f"| {'.'.join(path)} | {belief.value:.3g} | {value_at(found, path):.3g} |" for path, belief in BELIEFS.items())


def put_section(file: Path, name: str, lines: Iterator[str]) -> None:
    """Replace what stands between `<!-- NAME -->` and `<!-- end -->`."""
    text = file.read_text(encoding="utf-8")
    head, mark, rest = text.partition(f"<!-- {name} -->\n")
    _, end, tail = rest.partition("<!-- end -->")
    assert mark, f"{file} has no section {name}"
    assert end, f"{file} does not end its section {name}"
    file.write_text(head + mark + "\n".join(lines) + "\n" + end + tail, encoding="utf-8")


def main() -> None:
    """Fit, write, measure."""
    runs = read_runs(Path(sys.argv[1]))
    if "--docs-only" not in sys.argv:
        timed = [run for run in runs.used if run.tokens_per_s_per_gpu is not None and not run.guessed]
        fitted = fit(timed, tables())
        lines = toml(fitted, len(timed), len({run.source for run in timed}))
        CONSTANTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
        shipped.cache_clear()
    before = calibration_json(calibrate(runs, memory=predicted_memory))
    without = calibration_json(calibrate(runs, leave_one_out=True, progress=lambda source: print("without", source, flush=True)), worst=15)
    put_section(PAGE, "accuracy", page(before, without))


if __name__ == "__main__":
    main()
