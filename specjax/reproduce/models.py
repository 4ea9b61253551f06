"""Stand-ins for the published models: bundled ones, or the originals if their weights are public."""

from collections.abc import Callable
from typing import Any, NamedTuple

from specjax.bench.record import Missing, Shelf
from specjax.reproduce import published
from specjax.reproduce.published import BASE, BIGRAM, CNNDM, ENDE, LARGE, SMALL, UNIGRAM
from specjax.reproduce.setup import Setup, other_texts, spelled


class DraftRequest(NamedTuple):
    """Request for a draft."""

    target: Any
    task: str
    gamma: int
    temperature: float
    setup: Setup


class Stand(NamedTuple):
    """Stand-in for a published draft: its name, and (Shelf, DraftRequest) -> LoadedDrafter."""

    name: str
    make: Callable[[Shelf, DraftRequest], Any]


class Target(NamedTuple):
    """Stand-in for a published target: a model, a task, and a stand-in for each draft."""

    model: str
    task: str
    drafts: dict[str, Stand]


class StandIns(NamedTuple):
    """Stand-ins of one kind.

    Attributes:
      opt: models by the names of the report on OPT.
      targets: targets by the names of tables 2 and 3.
      notes, about_t5: notes for all reports, and for those on the paper.
      sizes: parameters of models whose size is checked before download.
    """

    opt: dict[str, str]
    targets: dict[str, Target]
    notes: tuple[str, ...]
    sizes: dict[str, float]
    about_t5: tuple[str, ...] = ()

    @property
    def paper_notes(self) -> tuple[str, ...]:
        return self.notes + self.about_t5


# --- drafts ----------------------------------------------------------------------------------------------------------


def own_model(name: str) -> Stand:
    """A smaller model."""

    def make(shelf: Shelf, work: DraftRequest) -> Any:
        from specjax import drafters

        return drafters.model(shelf.model(name), gamma=work.gamma)

    return Stand(name, make)


def layers(*chosen: int, of: int) -> Stand:
    """Some layers of the target."""

    def make(shelf: Shelf, work: DraftRequest) -> Any:
        from specjax import drafters

        return drafters.layer_skip(work.target, gamma=work.gamma, layers=chosen)

    return Stand(f"{len(chosen)} of the target's {of} layers", make)


def int8() -> Stand:
    """The target with int8 weights."""

    def make(shelf: Shelf, work: DraftRequest) -> Any:
        from specjax import drafters

        return shelf.keep(
            ("int8", work.target.name, work.gamma), lambda: drafters.quantized(work.target, gamma=work.gamma)
        )

    return Stand("the target in int8", make)


def table(order: int) -> Stand:
    """n-gram counts of samples of the target on texts of other tasks, at the same temperature."""

    def make(shelf: Shelf, work: DraftRequest) -> Any:
        from specjax import drafters
        from specjax.training.table import fit_samples

        def fitted() -> Any:
            texts = other_texts(work.task)
            if work.setup.draws == 1:
                texts = texts[: 4 * work.setup.count]
            draws = work.setup.draws if work.temperature > 0 else 1
            asked = spelled(work.target, work.task, texts * draws)
            return fit_samples(
                work.target, asked, order=order, max_new_tokens=work.setup.max_new_tokens, temperature=work.temperature,
                batch=work.setup.batch, seed=work.setup.seed,
            )  # fmt: skip

        key = ("table", order, work.target.name, work.task, work.temperature)
        return drafters.table(shelf.keep(key, fitted), gamma=work.gamma)

    return Stand({1: UNIGRAM, 2: BIGRAM}[order], make)


def nobody(why: str) -> Stand:
    """A draft whose weights were never published."""

    def make(shelf: Shelf, work: DraftRequest) -> Any:
        raise Missing(why)

    return Stand("–", make)


TABLES = {UNIGRAM: table(1), BIGRAM: table(2)}

# --- families --------------------------------------------------------------------------------------------------------

BUNDLED = StandIns(
    opt={"opt-13b": "bundled/opt-target", "opt-1.3b": "bundled/opt-draft", "opt-125m": "bundled/opt-tiny"},
    targets={
        ENDE: Target(
            "bundled/t5-target", "translation",
            {SMALL: own_model("bundled/t5-draft"), BASE: layers(0, 1, 3, of=4), LARGE: int8()} | TABLES,
        ),
        CNNDM: Target(
            "bundled/opt-target", "summarization",
            {
                SMALL: own_model("bundled/opt-tiny"), BASE: own_model("bundled/opt-draft"),
                LARGE: layers(0, 1, 2, 4, 6, 7, of=8),
            } | TABLES,
        ),
        published.GPT: Target(
            "bundled/opt-target", "story", {"GPT-like (6M)": own_model("bundled/opt-draft")} | TABLES
        ),
    },
    notes=(
        "bundled models of 0.4 to 13 million parameters stand for models of 77 million to 137 billion: shapes can be "
        "compared, sizes cannot",
    ),
    sizes={},
)  # fmt: skip

FLAN = {size: f"google/flan-t5-{size}" for size in ("small", "base", "large", "xxl")}
FLAN_DRAFTS = {SMALL: own_model(FLAN["small"]), BASE: own_model(FLAN["base"]), LARGE: own_model(FLAN["large"])}
NO_GPT = "the GPT-like models of table 3 (97M, 6M) were never published"

ORIGINAL = StandIns(
    opt={"opt-13b": "facebook/opt-13b", "opt-1.3b": "facebook/opt-1.3b", "opt-125m": "facebook/opt-125m"},
    targets={
        ENDE: Target(FLAN["xxl"], "translation", FLAN_DRAFTS | TABLES),
        CNNDM: Target(FLAN["xxl"], "summarization", FLAN_DRAFTS | TABLES),
    },
    notes=(),
    about_t5=(
        "the paper fine-tuned T5 v1.1 on each task and published no weights: Flan-T5 of the same shapes, which has "
        "seen both tasks, stands for them",
    ),
    sizes={
        "facebook/opt-13b": 12.9e9, "facebook/opt-1.3b": 1.3e9, "facebook/opt-125m": 0.13e9,
        FLAN["small"]: 0.08e9, FLAN["base"]: 0.25e9, FLAN["large"]: 0.78e9, FLAN["xxl"]: 11.3e9,
    },
)  # fmt: skip


def family(setup: Setup) -> StandIns:
    return {"bundled": BUNDLED, "original": ORIGINAL}[setup.models]
