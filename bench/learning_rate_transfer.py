"""Does a learning rate found at one width hold at others? `python bench/learning_rate_transfer.py [OUT.svg]`.

Trains a small byte-level model on the standard library's text at widths of 64, 128, 256 and 512 and at rates a factor of 2 apart, with
maximal update parametrization from a base of 64 and in the standard one, and prints the held-out loss of each. Ends with code 1 unless the
best rate moves by at most one step of the grid over the widths with it, and by more without. Less than ten minutes on one core.
"""

from __future__ import annotations

import email
import math
import sys
from pathlib import Path

import torch
from torch import Tensor

from preheat.model import Transformer, build
from preheat.recipe import Model, Optimizer, WidthTransfer
from preheat.train.optimizer import build_optimizer, set_rate

WIDTHS = (64, 128, 256, 512)
RATES = tuple(2.0**power for power in range(-11, -3))
STEPS, BATCH, LENGTH = 80, 8, 48
HELD_OUT = 64
"""Sequences that are not trained on."""
MUP = WidthTransfer(base_hidden=WIDTHS[0], base_head_dim=WIDTHS[0] // 4)

Losses = dict[int, dict[float, float]]
"""Width -> rate -> held-out loss in nats per byte."""


def text() -> tuple[Tensor, Tensor]:
    """Bytes of the `email` package as sequences of LENGTH + 1: those to train on, and every tenth, which is held out."""
    folder = Path(email.__file__).parent
    content = b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))
    sequences = torch.frombuffer(bytearray(content), dtype=torch.uint8).long().unfold(0, LENGTH + 1, LENGTH)
    held = torch.arange(len(sequences)) % 10 == 0
    return sequences[~held], sequences[held][:HELD_OUT]


def loss_after(width: int, rate: float, mup: WidthTransfer | None) -> float:
    """Held-out loss after STEPS steps: a tenth of linear warm-up, then a linear decay to zero."""
    shape = {"layers": 2, "hidden": width, "heads": 4, "ffn_hidden": 2 * width, "vocab_size": 258, "rope_theta": 1e4}
    transformer = build(Model.model_validate(shape | {"init_std": 0.1, "tied_embeddings": False, "mup": mup}), seed=0)
    optimizer = build_optimizer(transformer, Optimizer())
    train, held_out = text()
    generator = torch.Generator().manual_seed(0)
    warmup = STEPS // 10
    for step in range(1, STEPS + 1):
        batch = train[torch.randint(len(train), (BATCH,), generator=generator)]
        mean_loss(transformer, batch).backward()
        torch.nn.utils.clip_grad_norm_(transformer.parameters(), 1.0)
        set_rate(optimizer, rate * min(step / warmup, (STEPS + 1 - step) / (STEPS + 1 - warmup)))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return mean_loss(transformer, held_out).item()


def mean_loss(transformer: Transformer, sequences: Tensor) -> Tensor:
    """Nats per byte."""
    labels = sequences[:, 1:]
    loss: Tensor = transformer(sequences[:, :-1], labels).total / labels.numel()
    return loss


def best(losses: dict[float, float]) -> float:
    """The rate of the lowest loss."""
    return min(losses, key=lambda rate: losses[rate] if math.isfinite(losses[rate]) else math.inf)


def drift(losses: Losses) -> int:
    """How many steps of the grid the best rates of the widths are apart."""
    places = [RATES.index(best(by_rate)) for by_rate in losses.values()]
    return max(places) - min(places)


def table(losses: Losses) -> str:
    """Markdown: a row a width, a column a rate, the best of each row in bold."""
    rows = ["| width | " + " | ".join(f"2^{math.log2(rate):.0f}" for rate in RATES) + " |", "|--:|" + "--:|" * len(RATES)]
    for width, by_rate in losses.items():
        cells = [f"**{loss:.3f}**" if rate == best(by_rate) else f"{loss:.3f}" for rate, loss in by_rate.items()]
        rows.append(f"| {width} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


PANEL, HEIGHT, MARGIN = 330, 240, 50
COLOURS = ("#9ecae1", "#4292c6", "#08519c", "#081d58")
STYLE = "text{font:12px sans-serif;fill:#333}.t{font-weight:bold}path{fill:none;stroke-width:2}line{stroke:#ddd}"


def svg(panels: dict[str, Losses]) -> str:
    """The losses over the logarithm of the rate, a panel for each parametrization, the best of each width as a dot."""
    every = [loss for losses in panels.values() for by_rate in losses.values() for loss in by_rate.values()]
    low, high = math.floor(min(every) * 10) / 10, math.ceil(max(every) * 10) / 10
    width, height = (PANEL + MARGIN) * len(panels) + 20, HEIGHT + 2 * MARGIN

    def x(panel: int, rate: float) -> float:
        return MARGIN + panel * (PANEL + MARGIN) + RATES.index(rate) * PANEL / (len(RATES) - 1)

    def y(loss: float) -> float:
        return MARGIN + (high - loss) / (high - low) * HEIGHT

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">']
    parts += [f'<style>{STYLE}</style><rect width="{width}" height="{height}" fill="#fff"/>']
    for panel, (title, losses) in enumerate(panels.items()):
        left, right = x(panel, RATES[0]), x(panel, RATES[-1])
        parts.append(f'<text class="t" x="{left}" y="{MARGIN - 20}">{title}: held-out loss, nats per byte</text>')
        for tenths in range(round(low * 10), round(high * 10) + 1, 2):
            top = y(tenths / 10)
            parts.append(f'<line x1="{left}" x2="{right}" y1="{top:.1f}" y2="{top:.1f}"/>')
            parts.append(f'<text x="{left - 6}" y="{top + 4:.1f}" text-anchor="end">{tenths / 10:.1f}</text>')
        for rate in RATES:
            label = f'2<tspan dy="-5" font-size="9">{math.log2(rate):.0f}</tspan>'
            parts.append(f'<text x="{x(panel, rate):.1f}" y="{MARGIN + HEIGHT + 20}" text-anchor="middle">{label}</text>')
        for colour, (name, by_rate) in zip(COLOURS, losses.items(), strict=True):
            points = [(x(panel, rate), y(loss)) for rate, loss in by_rate.items()]
            parts.append(f'<path stroke="{colour}" d="M{"L".join(f"{px:.1f} {py:.1f}" for px, py in points)}"/>')
            px, py = points[RATES.index(best(by_rate))]
            parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5" fill="{colour}"><title>width {name}</title></circle>')
    for place, (colour, name) in enumerate(zip(COLOURS, WIDTHS, strict=True)):
        parts.append(f'<text x="{MARGIN + 110 * place}" y="{height - 8}" style="fill:{colour};font-weight:bold">width {name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """Train, print, draw, judge."""
    torch.set_num_threads(1)
    panels: dict[str, Losses] = {}
    for title, mup in (("maximal update", MUP), ("standard", None)):
        # At the base width both are the same model.
        done = {WIDTHS[0]: panels["maximal update"][WIDTHS[0]]} if panels else {}
        panels[title] = done | {width: {rate: loss_after(width, rate, mup) for rate in RATES} for width in WIDTHS if width not in done}
        print(f"{title}: best rates {drift(panels[title])} grid steps apart\n\n{table(panels[title])}\n", flush=True)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(svg(panels))
    if drift(panels["maximal update"]) > 1 or drift(panels["standard"]) <= 1:
        sys.exit("the best rate does not behave as it should")


if __name__ == "__main__":
    main()
