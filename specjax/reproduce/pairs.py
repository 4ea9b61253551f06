"""A target with a draft, measured: the models that stand for the published ones, and the rows of a pair."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from specjax.bench import tasks
from specjax.bench.record import Case, Row, Shelf
from specjax.reproduce.setup import Items, Setup, other_texts
from specjax.strategy import Strategy


class Stand(NamedTuple):
    """Stand-in for a published draft.

    Attributes:
      name: in reports.
      strategy: without a draft length; None: n-gram counts of samples of the target on texts of other tasks.
      drafts: names of its draft models.
      order: of the n-grams.
    """

    name: str
    strategy: Strategy | None
    drafts: tuple[str, ...] = ()
    order: int = 0


class Target(NamedTuple):
    """Stand-in for a published target: a model, a task, and a stand-in for each draft."""

    model: str
    task: str
    drafts: Mapping[str, Stand]


class StandIns(NamedTuple):
    """Stand-ins of one kind.

    Attributes:
      opt: models by the names of the report on OPT.
      targets: targets by the names of tables 2 and 3.
      notes, about_t5: notes for all reports, and more for those on the paper.
      sizes: parameters of models whose size is checked before download.
    """

    opt: Mapping[str, str]
    targets: Mapping[str, Target]
    notes: tuple[str, ...]
    sizes: dict[str, float]
    about_t5: tuple[str, ...] = ()


# --- stand-ins -------------------------------------------------------------------------------------------------------

SMALL, BASE, LARGE = "T5-small", "T5-base", "T5-large"  # 77M, 250M, 800M parameters; the target T5-XXL has 11B
ENDE, CNNDM, GPT = "EnDe", "CNN/DM", "GPT-like (97M)"
UNIGRAM, BIGRAM = "unigram", "bigram"
TABLES = {UNIGRAM: Stand(UNIGRAM, None, order=1), BIGRAM: Stand(BIGRAM, None, order=2)}
INT8 = Stand("the target in int8", Strategy.of("quantized"))


def own_model(name: str) -> Stand:
    """A smaller model."""
    return Stand(name, Strategy.of("model"), (name,))


BUNDLED = StandIns(
    opt={"opt-13b": "bundled/opt-target", "opt-1.3b": "bundled/opt-draft", "opt-125m": "bundled/opt-tiny"},
    targets={
        ENDE: Target(
            "bundled/t5-target", "translation",
            {SMALL: own_model("bundled/t5-draft"), BASE: own_model("bundled/t5-middle"), LARGE: INT8} | TABLES,
        ),
        GPT: Target("bundled/opt-target", "story", {"GPT-like (6M)": own_model("bundled/opt-draft")} | TABLES),
    },
    notes=(
        "bundled models of 0.2 to 15 million parameters stand for models of 77 million to 137 billion: shapes can be "
        "compared, sizes cannot",
    ),
    sizes={},
)  # fmt: skip

FLAN = {size: f"google/flan-t5-{size}" for size in ("small", "base", "large", "xxl")}
FLAN_DRAFTS = {SMALL: own_model(FLAN["small"]), BASE: own_model(FLAN["base"]), LARGE: own_model(FLAN["large"])} | TABLES

ORIGINAL = StandIns(
    opt={"opt-13b": "facebook/opt-13b", "opt-1.3b": "facebook/opt-1.3b", "opt-125m": "facebook/opt-125m"},
    targets={
        ENDE: Target(FLAN["xxl"], "translation", FLAN_DRAFTS), CNNDM: Target(FLAN["xxl"], "summarization", FLAN_DRAFTS),
    },
    notes=(),
    about_t5=(
        "the paper fine-tuned T5 v1.1 on each task and published no weights: Flan-T5 of the same shapes, which has "
        "seen both tasks, takes their place",
    ),
    sizes={
        "facebook/opt-13b": 12.9e9, "facebook/opt-1.3b": 1.3e9, "facebook/opt-125m": 0.13e9,
        FLAN["small"]: 0.08e9, FLAN["base"]: 0.25e9, FLAN["large"]: 0.78e9, FLAN["xxl"]: 11.3e9,
    },
)  # fmt: skip


def family(setup: Setup) -> StandIns:
    return {"bundled": BUNDLED, "original": ORIGINAL}[setup.models]


# --- measuring -------------------------------------------------------------------------------------------------------


class PairRun(NamedTuple):
    """A target and a draft on prompts.

    Attributes:
      work: target, prompts and settings. Decoder-only models decode past the end of text, encoder-decoders stop there.
      gamma: draft length; 0 is plain decoding.
    """

    shelf: Shelf
    setup: Setup
    work: Any
    task: str
    stand: Stand
    gamma: int
    temperature: float

    def drafter(self) -> Any:
        """The `LoadedDrafter`, built once."""
        key = ("drafter", self.work.target.name, self.task, self.stand, self.gamma, self.temperature)
        return self.shelf.keep(key, self._build)

    def _build(self) -> Any:
        from specjax import drafters
        from specjax.training.table import fit_samples

        if not self.gamma:
            return drafters.plain()
        if self.stand.strategy is not None:
            models = [self.shelf.model(name) for name in self.stand.drafts]
            return self.stand.strategy.replace_settings(gamma=self.gamma).build(self.work.target, models)
        setup, target = self.setup, self.work.target
        texts = other_texts(self.task)
        if setup.draws == 1:
            texts = texts[: 4 * setup.count]
        items = [tasks.Item(text) for text in texts * (setup.draws if self.temperature > 0 else 1)]
        fitted = fit_samples(
            target, tasks.prompts_for(target, self.task, items, setup.style), order=self.stand.order,
            max_new_tokens=setup.max_new_tokens, temperature=self.temperature, batch=setup.batch, seed=setup.seed,
        )  # fmt: skip
        return drafters.table(fitted, gamma=self.gamma)

    def acceptance(self) -> Row:
        """Overlap of p and q at every place of texts of the target: a draft token is tested after each, none accepted.

        Places that a verifier tests are chosen by its own acceptances, since the place after an accepted draft is not
        tested.
        """
        from specjax import verify
        from specjax.bench import grid

        none = verify.TABLE["simulated"]._replace(fn=verify.simulated(0.0))
        options = {"temperature": self.temperature, "drafter": self.drafter(), "verifier": none}
        return grid.acceptance(self.work, self.work.settings | options) | {"prompts": len(self.work.prompts)}

    def speed(self) -> Row:
        """Acceptance, speed beside plain decoding, and the costs of a round."""
        from specjax import verify
        from specjax.bench import grid, rounds

        work, drafter, repeats = self.work, self.drafter(), self.setup.repeats
        row = grid.measure(
            work, Strategy.of("model", gamma=self.gamma), self.temperature, drafter, verify.TABLE["token"]
        )
        settings = work.settings | {"ignore_eos": True, "temperature": self.temperature}
        alone = self.stand.strategy is not None and self.stand.strategy.name == "model"
        draft = self.shelf.model(self.stand.drafts[0]) if alone else None
        of_length = lambda gamma: self._replace(gamma=gamma).drafter()
        costs = rounds.round_costs(
            work.target, work.prompts[: work.timed], of_length, self.gamma, settings, repeats, draft=draft
        )
        return row | {"drafter": self.stand.name, "costs": costs}

    def inner(self) -> Row:
        """Acceptance in the inner rounds of a cascade, over all prompts."""
        import jax

        from specjax import decoding
        from specjax.bench import rates
        from specjax.request import prepare

        counts: dict[str, list[float]] = {name: [] for name in ("rounds", "drafted", "tested", "accepted", "tokens")}
        settings = self.work.settings | {"drafter": self.drafter(), "temperature": self.temperature}
        for number, prompt in enumerate(self.work.prompts):
            request = prepare(self.work.target, [prompt], rows=[number], **settings).begin()
            tally = jax.device_get(decoding.generate(request.params, request.state, **request.static).draft.tally)
            for name in ("rounds", "drafted", "tested", "accepted"):
                counts[name].append(float(getattr(tally, name).sum()))
            counts["tokens"].append(counts["rounds"][-1] + counts["accepted"][-1])
        return {"inner": rates.rate_columns(counts, self.work.prompts)}


def pair_case(
    setup: Setup,
    items: Items,
    target: Target,
    stand: Stand,
    measure: Callable[[PairRun], Row],
    *,
    title: str,
    experiment: str,
    gamma: int,
    temperature: float,
    named: Row,
) -> Case:
    """A case of one row: `named`, and what `measure` finds."""
    own = items[target.task]

    def run(shelf: Shelf) -> list[Row]:
        from specjax.bench import grid

        model = shelf.model(target.model)
        prompts = tasks.prompts_for(model, target.task, own, setup.style)
        settings = {"max_new_tokens": setup.max_new_tokens, "ignore_eos": not model.encoder_decoder, "seed": setup.seed}
        work = grid.Workload(model, prompts, settings, setup.batch, setup.timed, setup.repeats)
        found = measure(PairRun(shelf, setup, work, target.task, stand, gamma, temperature))
        return [found | named | {"addressed": tasks.style_of(model, target.task, setup.style)}]

    key = setup.key(
        experiment, target=target.model, draft=stand.name, gamma=gamma, temperature=temperature,
        digest=tasks.digest(own), of=named,
    )  # fmt: skip
    return Case(key, title, run)
