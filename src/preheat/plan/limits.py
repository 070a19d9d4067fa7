"""What a run may take: days and dollars."""

from __future__ import annotations

from dataclasses import dataclass

from preheat.plan.run import RunPlan


@dataclass(frozen=True)
class Limits:
    """Of a whole run; None where there is none."""

    days: float | None = None
    cost: float | None = None
    """USD."""

    def over(self, run: RunPlan) -> str | None:
        """What a run takes too much of; None when it is within. A run without a price can't be judged, and is over."""
        if self.days is not None and run.days > self.days:
            return f"{run.days:,.1f} days, more than {self.days:g}"
        if self.cost is not None and run.cost is None:
            return f"no price is known, and the budget is ${self.cost:,.0f}"
        if self.cost is not None and run.cost is not None and run.cost > self.cost:
            return f"${run.cost:,.0f}, more than ${self.cost:,.0f}"
        return None

    def told(self) -> str:
        """What is asked for."""
        days = f"within {self.days:g} days" if self.days is not None else ""
        cost = f"for ${self.cost:,.0f}" if self.cost is not None else ""
        return " and ".join(part for part in (days, cost) if part)
