"""Trained heads of one target: acceptance by position, tokens per target pass, and speed, beside the published ones."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from specjax import defaults, trees
from specjax.bench import rates, tasks
from specjax.bench.record import Case, Row, Shelf
from specjax.estimates import MISSING, Estimate, combine
from specjax.plotting import finish, looks
from specjax.reproduce.checks import ONE, ClaimCheck, Pair, each_greater
from specjax.reproduce.report import Report, conditions, shown
from specjax.reproduce.setup import Experiment, Items, Setup, other_texts
from specjax.strategy import Strategy
from specjax.types import Siblings

TASKS = ("chat", "maths", "code", "story")
TEMPERATURES = (0.0, 1.0)
DRAFTED, SPEED = "drafted", "speed"  # parts of a measurement
LONGEST = 7  # of the chains
NODES = (8, 16, 32)  # of the trees, the root included
RANKS, LEVELS = 8, 4  # of the tables that static trees are calibrated by
COPYING = ("ngram", "suffix")
DRAFT = "draft model"
UNTRAINED = (DRAFT, *COPYING)  # drafters that were not trained for the target's hidden states
EVEN = (2, 2, 2, 2)  # a tree that is not calibrated, of 31 nodes
SOURCES = (
    "Li et al. 2024 (EAGLE, arXiv 2401.15077; EAGLE-2, 2406.16858), Li et al. 2025 (EAGLE-3, 2503.01840), Zhang et al. "
    "2024 (HASS, 2408.15766), Cai et al. 2024 (Medusa, 2401.10774), P-EAGLE (2602.01469), Gao et al. 2024 (Falcon, "
    "2412.12639)"
)


class Drafting(NamedTuple):
    """What is measured: a head, or a drafter that was not trained for the target.

    Attributes:
      name: in the report; the claims are about the names of `CLAIMS`.
      folder: of the head; "" for other drafters.
      strategy: of other drafters.
      drafts: their draft models.
    """

    name: str
    folder: str = ""
    strategy: Strategy | None = None
    drafts: tuple[str, ...] = ()


def compared(setup: Setup) -> list[Drafting]:
    """The heads of the setup, by default those of the package, and drafters that need no training.

    Raises:
      ValueError: a head that is not given as NAME=FOLDER.
    """
    heads = [Drafting(name, folder) for name, folder in map(named_folder, setup.heads or bundled(setup.head_target))]
    names = [one.name for one in heads]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--heads names {name} twice")
    drafts = defaults.DRAFTS[:1] if setup.head_target == defaults.TARGET else ()
    own = [Drafting(DRAFT, strategy=Strategy.of("model"), drafts=drafts)] if drafts else []
    return [*heads, *own, *(Drafting(name, strategy=Strategy.of(name)) for name in COPYING)]


def named_folder(text: str) -> tuple[str, str]:
    name, mark, folder = text.partition("=")
    if not mark or not name or not folder:
        raise ValueError(f"--heads {text}: write NAME=FOLDER, such as eagle3=runs/eagle3/head")
    return name, folder


def bundled(target: str) -> list[str]:
    """NAME=FOLDER of the heads of the package for a bundled target."""
    from specjax.convert.locate import BUNDLED, BUNDLED_FOLDER

    stem = target.removeprefix(BUNDLED) + "-"
    found = sorted(folder.name for folder in BUNDLED_FOLDER.glob(f"{stem}*") if (folder / "config.json").is_file())
    of_heads = [name for name in found if target.startswith(BUNDLED) and f"{BUNDLED}{name}" not in defaults.DRAFTS]
    return [f"{name.removeprefix(stem)}={BUNDLED}{name}" for name in of_heads]


# --- measuring -------------------------------------------------------------------------------------------------------


def cases(setup: Setup, items: Items) -> list[Case]:
    """Cases for each drafter, task and temperature: first those of what is drafted, then those of its speed."""
    drafting = compared(setup)
    weights = {one.folder: fingerprint(one.folder) for one in drafting}  # read once, not for each case
    every = [(one, task, temperature) for one in drafting for task in TASKS for temperature in TEMPERATURES]
    untimed = {"timed": None, "repeats": None, "gamma": None}  # what is drafted does not depend on them
    return [
        Case(
            setup.key(
                "heads", heads=None, name=one.name, weights=weights[one.folder], task=task,
                temperature=temperature, digest=tasks.digest(items[task]), **own,
            ),
            f"{one.name}, {task}, T={temperature:g}, {part}",
            partial(measure, part, setup, one, task, items[task], temperature),
        )
        for part, own in ((DRAFTED, untimed), (SPEED, {}))
        for one, task, temperature in every
    ]  # fmt: skip


def fingerprint(folder: str) -> str:
    """A short hash of the files of a head; "" for a drafter without files."""
    if not folder:
        return ""
    from specjax import convert

    hashed = hashlib.blake2b(digest_size=8)
    for file in sorted(convert.local_folder(folder, convert.HEAD_FORMATS).glob("*")):
        hashed.update(file.read_bytes() if file.is_file() else b"")
    return hashed.hexdigest()


def measure(
    part: str, setup: Setup, one: Drafting, task: str, items: Sequence[tasks.Item], temperature: float, shelf: Shelf
) -> list[Row]:
    """A row for each chain and tree, or for those of `timed`; none where the task is one of chat models, and the target
    has no template. Greedy chains of a head are counted on one run."""
    from specjax.bench import grid, replay
    from specjax.request import named_verifier

    target = shelf.model(setup.head_target)
    style = tasks.style_of(target, task, setup.style)
    if task != "story" and style != tasks.OWN:
        return []
    prompts = tasks.prompts_for(target, task, items, setup.style)
    settings = {"max_new_tokens": setup.max_new_tokens, "ignore_eos": style != tasks.OWN, "seed": setup.seed}
    work = grid.Workload(target, prompts, settings, setup.batch, setup.timed, setup.repeats)
    built = dict(shapes(setup, one, target, temperature, shelf))
    chains = {chain(gamma): gamma for gamma in range(1, LONGEST + 1) if chain(gamma) in built}
    found: dict[str, Row] = {}
    if part == DRAFTED and one.folder and temperature == 0:
        each = replay.greedy_chains(work, built[next(reversed(chains))], list(chains.values()))
        found = {shape: each[gamma] for shape, gamma in chains.items()}
    plain = settings | {"temperature": temperature}
    for shape, drafter in built.items():
        if shape in found or (part == SPEED and shape not in timed(setup)):
            continue
        drafted = plain | {"drafter": drafter, "verifier": named_verifier(drafter, None)}
        found[shape] = (
            grid.speed(work, Strategy.of("plain"), drafted, plain) if part == SPEED else grid.acceptance(work, drafted)
        )
    own = {"name": one.name, "task": task, "temperature": temperature, "addressed": style}
    return [own | {"shape": shape} | row for shape, row in found.items()]


def chain(gamma: int) -> str:
    return f"chain of {gamma}"


def tree(nodes: int) -> str:
    return f"tree of {nodes}"


def timed(setup: Setup) -> tuple[str, str]:
    """Shapes whose speed is measured."""
    return chain(setup.gamma), tree(NODES[1])


def shapes(setup: Setup, one: Drafting, target: Any, temperature: float, shelf: Shelf) -> Iterator[tuple[str, Any]]:
    """Names and drafters of the chains and trees that a drafter can draft, built once.

    Above temperature 0 the nodes of trees are distinct samples: as point masses, tokens are accepted with the target's
    probability alone, however well the head knows it.
    """
    from specjax import drafters, heads
    from specjax.drafters.head import ONE_PASS, most_drafted

    if one.strategy is not None:
        models = [shelf.model(name) for name in one.drafts]
        for gamma in range(1, LONGEST + 1):
            strategy = one.strategy.replace_settings(gamma=gamma)
            yield chain(gamma), shelf.keep(("head", one.name, gamma), partial(strategy.build, target, models))
        return
    head = shelf.keep(("head", one.folder), lambda: heads.load_head(one.folder, target))
    built = lambda **shape: shelf.keep(("head", one.folder, str(shape)), lambda: drafters.head(head, **shape))
    for gamma in range(1, min(LONGEST, most_drafted(head)) + 1):
        yield chain(gamma), built(gamma=gamma)
    if temperature > 0:
        accepted = shelf.keep(("samples", one.folder), lambda: sample_acceptance(setup, head, temperature))
        deepest, drawn = min(LONGEST, most_drafted(head)), Siblings.WITHOUT_REPLACEMENT
        for nodes in NODES:
            yield tree(nodes), built(tree=trees.sequoia(accepted, nodes, depth=deepest), siblings=drawn)
        return
    if not isinstance(head.config, ONE_PASS):
        for nodes in NODES:
            yield tree(nodes), built(dynamic=nodes)
        return
    table = shelf.keep(("ranks", one.folder), lambda: rank_acceptance(setup, head))
    for nodes in NODES:
        yield tree(nodes), built(tree=trees.best_tree(table, nodes))
    if len(EVEN) <= len(table):
        yield "even tree", built(tree=trees.regular(EVEN))


def levels_of(head: Any) -> int:
    """Levels of the tree that measures a head's ranks."""
    from specjax.drafters.head import most_drafted

    return min(LEVELS, most_drafted(head))


def calibrating(setup: Setup, head: Any, siblings: Siblings, settings: Row) -> tuple[list[list[Any]], list[list[int]]]:
    """Rounds and texts of prompts of no task, drafted with `RANKS` children of the first node of each level."""
    from specjax import drafters
    from specjax.trace import rounds

    shape = trees.from_paths([(0,) * level + (rank,) for level in range(levels_of(head)) for rank in range(RANKS)])
    prompts = tasks.prompts_for(head.target, "story", [*map(tasks.Item, other_texts("story"))][: setup.batch])
    settings = settings | {"max_new_tokens": setup.max_new_tokens, "ignore_eos": True}
    trace = rounds.record(head.target, prompts, drafters.head(head, tree=shape, siblings=siblings), settings)
    return [trace.row(number) for number in range(len(prompts))], trace.out.tokens


def rank_acceptance(setup: Setup, head: Any) -> list[list[float]]:
    """Share of places where the head's token of some depth and rank is the target's, on prompts of no task.

    The head drafts at every place of greedy texts, none of its tokens is accepted, and its levels do not depend on each
    other: the table by which Medusa's trees are calibrated (section 2.3.3 of the paper).
    """
    from specjax import verify

    none = verify.TABLE["simulated"]._replace(fn=verify.simulated(0.0))
    rows, texts = calibrating(setup, head, Siblings.POINTS, {"temperature": 0.0, "verifier": none})
    levels = levels_of(head)
    hits, tried = np.zeros((levels, RANKS)), np.zeros((levels, 1))
    for row, text in zip(rows, texts, strict=True):
        at = 0  # of the first drafted token
        for one in row:
            for level in range(min(levels, len(text) - at)):
                drafted = [node.token for node in one.nodes if node.depth == level + 1 and node.valid]
                if drafted:
                    tried[level] += 1
                    hits[level, : len(drafted)] += np.equal(drafted, text[at + level])
            at += len(one.tokens)
    return (hits / np.maximum(tried, 1)).tolist()


def sample_acceptance(setup: Setup, head: Any, temperature: float) -> list[float]:
    """Share of nodes whose child of some rank is accepted where children are distinct samples, on prompts of no task.

    One table for all depths, as Sequoia's trees are calibrated (Chen et al. 2024, arXiv 2402.12374, section 4.1).
    """
    settings = {"temperature": temperature, "seed": setup.seed}
    rows, _ = calibrating(setup, head, Siblings.WITHOUT_REPLACEMENT, settings)
    hits, tried = np.zeros(RANKS), 0
    for one in (one for row in rows for one in row):
        parent = 0
        while children := [node for node in one.nodes if node.parent == parent and node.valid]:
            tried += 1
            accepted = [rank for rank, node in enumerate(children) if node.accepted]
            if not accepted:
                break
            hits[accepted[0]] += 1
            parent = children[accepted[0]].node
    return (hits / max(tried, 1)).tolist()


# --- pooled over tasks -----------------------------------------------------------------------------------------------


def pooled(rows: Sequence[Row], name: str, temperature: float, shape: str) -> Row | None:
    """The rows of all tasks as one: their prompts together."""
    wanted = {"name": name, "temperature": temperature, "shape": shape}
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    counted, run = ([row for row in found if key in row] for key in ("counts", "runs"))
    whole: Row = {}
    if counted:
        shared = set.intersection(*(set(row["counts"]) for row in counted))
        counts = {key: [value for row in counted for value in row["counts"][key]] for key in shared}
        whole |= {"counts": counts, "sample": " ".join(row["sample"] for row in counted)}
    if run:
        joined = lambda program, key: np.concatenate([row["runs"][program][key] for row in run], axis=1).tolist()
        programs = {
            program: {key: joined(program, key) for key in ("seconds", "tokens")} for program in rates.PROGRAMS.values()
        }
        whole |= {"runs": programs} | {key: " ".join(row[key] for row in run) for key in ("timed_sample", "turns")}
    return whole or None


Measured = Callable[[str, float, str], Row | None]


def tokens_per_pass(row: Row | None) -> Estimate:
    """Tokens per target pass, τ."""
    return rates.rate(row, "tokens_per_call")


def speed(row: Row | None) -> Estimate:
    """Times plain decoding."""
    return rates.speed(row) if row is not None and "runs" in row else MISSING


# --- the report ------------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """A published ordering: the first of two heads drafts more tokens per target pass.

    Attributes:
      text: with the published numbers.
      greater, less: names of heads.
      shape, other: of the two.
    """

    text: str
    greater: str
    less: str
    shape: str = tree(NODES[-1])
    other: str = tree(NODES[-1])


CLAIMS = (
    Claim("EAGLE drafts more than Medusa (τ 3.94 against 2.52, Vicuna-7B)", "eagle", "medusa"),
    Claim(
        "Medusa drafts more than a small draft model (2.52 against 2.36)", "medusa", DRAFT,
        other=chain(LONGEST - 2),
    ),
    Claim("HASS drafts more than EAGLE-2 (5.15 against 4.61, Llama-2-7B)", "hass", "eagle"),
    Claim("EAGLE-3 drafts more than EAGLE-2 (6.65 against 4.83, Vicuna-13B)", "eagle3", "eagle"),
    Claim("EAGLE-3 drafts more than HASS", "eagle3", "hass"),
    Claim(
        "without a loss of features EAGLE drafts more (5.37 against 4.05, Llama-3.1-8B)", "eagle-no-features", "eagle"
    ),
    Claim("three fused streams draft more than the last one (6.13 against 5.37)", "eagle3", "eagle3-last"),
    Claim("the training-time test makes EAGLE-3 draft more", "eagle3", "eagle3-one-step"),
    Claim("glancing makes Falcon draft more (3.34 against 2.78, Vicuna-7B)", "falcon", "falcon-no-glancing"),
    Claim("Medusa's calibrated tree drafts more than an even one", "medusa", "medusa", other="even tree"),
)  # fmt: skip
FLAT = 0.1  # largest fall of a flat acceptance over the positions
POSITIONS = 4


def report(setup: Setup, rows: Sequence[Row]) -> Report:
    at: Measured = partial(pooled, rows)
    names, measured = (list(dict.fromkeys(row[key] for row in rows)) for key in ("name", "task"))
    by_task = {task: [row for row in rows if row["task"] == task] for task in measured}
    groups = by_task | {"all": rows} if len(by_task) > 1 else by_task
    table = [
        {"task": task} | line(setup, partial(pooled, group), name, temperature)
        for task, group in groups.items()
        for temperature in TEMPERATURES
        for name in names
    ]
    greedy = lambda name, shape: tokens_per_pass(at(name, 0.0, shape))
    pair = lambda one: Pair(
        f"{one.greater} and {one.less}:", greedy(one.greater, one.shape), greedy(one.less, one.other)
    )
    checks = [each_greater(one.text, [pair(one)]) for one in CLAIMS]
    checks += [
        flat("the acceptance of EAGLE-3 does not fall with the position", at, "eagle3"),
        flat("nor does that of HASS", at, "hass"),
        fastest(setup, at, names),
    ]
    notes = [
        f"target {setup.head_target}; τ: tokens per target pass, its own included",
        "greedy trees are dynamic where the head reads its own tokens, else calibrated on other texts; at temperature "
        f"1 they are Sequoia's, of distinct samples; even: {EVEN}",
        "claims are about all tasks together, and those on τ about T = 0; published trees have 25 to 64 nodes, ours at "
        f"most {NODES[-1]}",
    ]
    return Report(table, checks, [*notes, *conditions(rows)], partial(draw, at=at, names=names))


def line(setup: Setup, at: Measured, name: str, temperature: float) -> Row:
    """One line of the table."""
    show = "{:.2f}".format
    positions = [rates.at_position(longest(at, name, temperature), place) for place in range(POSITIONS)]
    taus = lambda shapes: ", ".join(tokens_per_pass(at(name, temperature, one)).shown(show) for one in shapes)
    drawn, grown = timed(setup)
    return {
        "drafter": name, "T": temperature,
        "accepted at 0, 1, ...": ", ".join(one.shown(show) for one in positions if one.measured) or None,
        **{f"τ of γ = {gamma}": shown(tokens_per_pass(at(name, temperature, chain(gamma)))) for gamma in (1, 3, 5, 7)},
        f"τ of trees of {', '.join(map(str, NODES))}": taus(map(tree, NODES)) if at(name, temperature, grown) else None,
        f"× plain, {drawn}": shown(speed(at(name, temperature, drawn))),
        f"× plain, {grown}": shown(speed(at(name, temperature, grown))),
    }  # fmt: skip


def longest(at: Measured, name: str, temperature: float) -> Row | None:
    """The row of the longest chain that was measured."""
    chains = (at(name, temperature, chain(gamma)) for gamma in range(LONGEST, 0, -1))
    return next((row for row in chains if row), None)


def flat(claim: str, at: Measured, name: str) -> ClaimCheck:
    """Whether the acceptance at the later positions is at most FLAT below that at the first one."""
    row = at(name, 0.0, chain(LONGEST))
    first = combine(lambda value: value - FLAT, rates.at_position(row, 0))
    return each_greater(
        f"{claim} (by at most {FLAT} up to the fourth)",
        [Pair(f"position {place}:", rates.at_position(row, place), first) for place in range(1, POSITIONS)],
    )


def fastest(setup: Setup, at: Measured, names: Sequence[str]) -> ClaimCheck:
    """Whether the fastest head is faster than plain decoding and than the fastest of the other drafters."""
    pairs = []
    for temperature in TEMPERATURES:
        every = [(name, shape, speed(at(name, temperature, shape))) for name in names for shape in timed(setup)]
        ranked = sorted((one for one in every if one[2].measured), key=lambda one: -one[2].value)
        own = next((one for one in ranked if one[0] not in UNTRAINED), ("no head", "", MISSING))
        other = next((one for one in ranked if one[0] in UNTRAINED), ("none", "", MISSING))
        label = f"T = {temperature:g}, {own[0]} {own[1]} and"
        pairs += [Pair(f"{label} plain decoding:", own[2], ONE), Pair(f"{label} {other[0]}:", own[2], other[2])]
    return each_greater("the best head is faster than plain decoding and than the best drafter without training", pairs)


def draw(new_figure: Any, at: Measured, names: Sequence[str]) -> Any:
    """Acceptance by position, and tokens per target pass by draft length, greedy."""
    figure = new_figure(figsize=(11.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, look in looks(names).items():
        row = longest(at, name, 0.0)
        places = [(place, rates.at_position(row, place).value) for place in range(LONGEST)]
        left.plot(*zip(*places, strict=True), label=name, markersize=4, **look)
        taus = {gamma: tokens_per_pass(at(name, 0.0, chain(gamma))) for gamma in range(1, LONGEST + 1)}
        known = {gamma: tau.value for gamma, tau in taus.items() if tau.measured}
        right.plot(list(known), list(known.values()), label=name, markersize=4, **look)
    finish(left, "position", "accepted / tested", "Acceptance by position, T = 0")
    finish(right, "γ", "tokens per target pass", "Chains, T = 0")
    right.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))  # a dozen names hide lines
    return figure


EXPERIMENTS = {
    "heads": Experiment("Trained heads: acceptance, tokens per pass, speed", SOURCES, TASKS, cases, report),
}
