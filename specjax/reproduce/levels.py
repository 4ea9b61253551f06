"""When three levels pay: by theory with measured costs, and in two measured configurations.

The report on OPT found three levels slower than two. Here the same three shapes decode with its acceptance, and with
one at which theory prefers three levels; a map shows what it prefers elsewhere.
"""

import itertools
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from specjax import theory
from specjax.bench.record import Case, Row
from specjax.estimates import MISSING
from specjax.reproduce import opt
from specjax.reproduce.checks import Pair, each_greater
from specjax.reproduce.report import Report, conditions, find
from specjax.reproduce.setup import OPT_SHAPES, Items, Setup
from specjax.strategy import Strategy

PAYING = (0.97, 0.6)  # acceptance of the middle and the small model at which theory prefers three levels
OUTER, INNER = 12, 6  # longest blocks
WIDER = 0.04  # assumed for the choice of block lengths: what a further verified token adds to a step
AXIS = np.linspace(0.3, 0.95, 14)  # of the map


class Costs(NamedTuple):
    """Costs relative to a step of the target.

    Attributes:
      middle, small: a step of each draft model.
      wider: what each further verified token adds to a pass, relative to a step of the same model.
    """

    middle: float
    small: float
    wider: float

    def verify(self, tokens: int) -> float:
        """A pass over some tokens."""
        return 1 + self.wider * (tokens - 1)


class Best(NamedTuple):
    """Speed-up over plain decoding with the best block lengths."""

    factor: float
    gammas: tuple[int, ...]


def two_levels(alpha: float, c: float, costs: Costs) -> Best:
    """A target and one draft model: theorem 3.8 with the cost of verification."""
    factor = lambda gamma: float(theory.expected_tokens(alpha, gamma)) / (gamma * c + costs.verify(gamma + 1))
    return Best(*max((factor(gamma), (gamma,)) for gamma in range(1, OUTER + 1)))


@cache
def three_levels(alphas: tuple[float, float], costs: Costs) -> Best:
    """A target, a middle model whose chains are drafted by a small one, with whole inner rounds."""
    found = []
    for outer, inner in itertools.product(range(1, OUTER + 1), range(1, INNER + 1)):
        whole = costs.verify(outer + 1)
        passes = [costs.middle * costs.verify(inner + 1) / whole, costs.small / whole]
        factor = float(theory.cascade_factor_whole_rounds(alphas, passes, [outer, inner])) / whole
        found.append((factor, (outer, inner)))
    return Best(*max(found))


def gain(alphas: tuple[float, float], costs: Costs) -> float:
    """Three levels over the best of plain decoding and two levels.

    The small model alone is taken to be accepted with the product of both rates.
    """
    two = [two_levels(alphas[0], costs.middle, costs), two_levels(alphas[0] * alphas[1], costs.small, costs)]
    return three_levels(alphas, costs).factor / max(1.0, *(one.factor for one in two))


# --- measuring -------------------------------------------------------------------------------------------------------


def groups(setup: Setup) -> dict[str, tuple[float, ...]]:
    """Acceptance of the middle and the small model."""
    return {"published": opt.HIERARCHY[-1].alphas(setup.gamma), "paying": PAYING}


def entries(setup: Setup) -> list[Any]:
    """Both groups of each target: two levels with either draft model, and three."""
    from specjax.bench.shapes import ShapeRun
    from specjax.reproduce.shapes import STORY, Entry, step_size, targets

    found = []
    for target in targets(setup, OPT_SHAPES, opt.DRAFTS):
        sizes = [step_size(name, setup.dtype) for name in (target, *opt.DRAFTS)]
        costs = Costs(sizes[1] / sizes[0], sizes[2] / sizes[0], WIDER)
        for group, (middle, inner) in groups(setup).items():
            three = three_levels((middle, inner), costs).gammas
            small = Strategy.of("model", gamma=three[1])
            runs = (
                (opt.DRAFTS[:1], Strategy.of("model", gamma=two_levels(middle, costs.middle, costs).gammas[0]), middle),
                (opt.DRAFTS[1:], Strategy.of("model", gamma=two_levels(middle * inner, costs.small, costs).gammas[0]),
                 middle * inner),
                (opt.DRAFTS, Strategy.of("cascade", gamma=three[0], inner=small), middle),
            )  # fmt: skip
            for drafts, strategy, alpha in runs:
                run = ShapeRun(
                    target, drafts, strategy, (round(alpha, 4),), inner, setup.dtype, temperature=opt.TEMPERATURE,
                    prompt=STORY, new=setup.max_new_tokens,
                )  # fmt: skip
                gammas = ", ".join(str(s.gamma) for s in (strategy, small)[: len(drafts)])
                alphas = [round(alpha, 4), *[inner][: len(drafts) - 1]]
                columns = {"acceptance": group, "drafts": ", ".join(drafts), "γ": gammas, "α": alphas}
                found.append(Entry(f"{group}: {', '.join(drafts)}", run, 0.0, columns))
    return found


def cases(setup: Setup, items: Items) -> list[Case]:
    from specjax.reproduce import shapes

    return shapes.cases("levels", entries, setup, items)


# --- the report ------------------------------------------------------------------------------------------------------


def measured_costs(rows: Sequence[Row], target: str) -> Costs | None:
    """Costs of the draft models and of verification, from the rows with one draft model."""
    own = [find(rows, target=target, draft=draft) for draft in opt.DRAFTS]
    if None in own:
        return None
    steps = [row[f"c {draft}"] for row, draft in zip(own, opt.DRAFTS, strict=True) if row]
    pairs = [row for row in rows if row["target"] == target and row["draft"] in opt.DRAFTS]
    wider = [(row["verify"] - 1) / int(row["columns"]["γ"]) for row in pairs]
    return Costs(steps[0], steps[1], max(float(np.median(wider)), 0.0))


def report(setup: Setup, rows: Sequence[Row]) -> Report:
    from specjax.bench.shapes import over_turns
    from specjax.reproduce import shapes

    chosen = sorted({row["target"] for row in rows})
    speed = lambda target, of: over_turns(row, "speedup") if (row := find(rows, target=target, of=of)) else MISSING

    def against(group: str, *, slower: bool) -> list[Pair]:
        """Three levels, and each of the two pairs."""
        *both, three = [f"{group}: {', '.join(drafts)}" for drafts in (opt.DRAFTS[:1], opt.DRAFTS[1:], opt.DRAFTS)]
        found = []
        for target, two in itertools.product(chosen, both):
            greater, less = (two, three) if slower else (three, two)
            found.append(Pair(f"{target}, {two.partition(': ')[2]}:", speed(target, greater), speed(target, less)))
        return found

    checks = [
        each_greater(
            "with the published acceptance, three levels are slower than two", against("published", slower=True)
        ),
        each_greater(f"with acceptance {PAYING}, three levels are faster than two", against("paying", slower=False)),
        *shapes.speed_checks(rows)[:1],
    ]
    lines = shapes.table_of(rows, OPT_SHAPES[0])
    table = [{key: value for key, value in line.items() if key != "speed"} for line in lines]
    maps = maps_of(setup, rows, chosen)
    notes = [line for title, costs in maps.items() for line in map_notes(title, costs)]
    notes.append("the small model alone is taken to be accepted with the product of both rates")
    return Report(table, checks, [*notes, *conditions(rows)], partial(draw, maps=maps) if maps else None)


def maps_of(setup: Setup, rows: Sequence[Row], chosen: Sequence[str]) -> dict[str, Costs]:
    """Costs with each measured target, and with that of the report on OPT, whose step is extrapolated."""
    from specjax.reproduce import shapes

    found = {target: costs for target in chosen if (costs := measured_costs(rows, target)) is not None}
    full = OPT_SHAPES[0]
    if found and full not in found:
        steps = shapes.measured_steps(rows)
        whole = shapes.step_time(steps, setup.dtype)(full)
        middle, small = (steps[draft] / whole for draft in opt.DRAFTS)
        found[f"{full} (extrapolated)"] = Costs(middle, small, found[shapes.largest_target(rows)].wider)
    return found


def map_notes(title: str, costs: Costs) -> list[str]:
    """From which acceptance of the middle model on three levels pay, for some of the small one."""
    parts = []
    for inner in (0.5, 0.7, 0.9):
        gains = [gain((float(alpha), inner), costs) for alpha in AXIS]
        pays = [alpha for alpha, one in zip(AXIS, gains, strict=True) if one > 1]
        parts.append(f"{inner}: " + (f"from {min(pays):.2f}, up to {max(gains):.2f} times" if pays else "never"))
    return [
        f"{title}: c {costs.middle:.3g} and {costs.small:.3g}, a verified token {costs.wider:.3g} of a step. Three "
        f"levels pay, by the α of the small model for the middle one, with an α of the middle one: {'; '.join(parts)}"
    ]


def draw(new_figure: Any, maps: dict[str, Costs]) -> Any:
    """Gain of the third level by both acceptance rates, one panel for each target."""
    figure = new_figure(figsize=(4.6 * len(maps) + 0.8, 4.2), layout="constrained")
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    grid = lambda costs: np.array([[gain((float(a), float(b)), costs) for a in AXIS] for b in AXIS])
    values = {title: grid(costs) for title, costs in maps.items()}
    far = max(0.05, *(float(np.abs(np.log(one)).max()) for one in values.values()))
    for axes, (title, value) in zip(panels, values.items(), strict=True):
        image = axes.pcolormesh(AXIS, AXIS, np.log(value), cmap="RdBu", vmin=-far, vmax=far, shading="nearest")
        axes.contour(AXIS, AXIS, value, levels=[1.0], colors="black", linewidths=1.2)
        axes.set_xlabel("α, middle model for the target")
        axes.set_ylabel("α, small model for the middle one")
        axes.set_title(title, fontsize=11, loc="left")
    bar = figure.colorbar(image, ax=list(panels), label="three levels over the best of two and one")
    ticks = np.linspace(-far, far, 5)
    bar.set_ticks(ticks, labels=[f"{np.exp(tick):.2f}" for tick in ticks])
    return figure
