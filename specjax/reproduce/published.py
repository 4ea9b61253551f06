"""Published numbers, each table with its source. Nothing in this file was measured with specjax."""

from typing import NamedTuple


class Source(NamedTuple):
    """Source of published numbers."""

    title: str
    place: str

    @property
    def text(self) -> str:
        return f"{self.title}, {self.place}"


REPORT = "Accelerating large model inference with speculative decoding (a project of the course MIT 6.s898)"
PAPER = "Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding (arXiv 2211.17192)"

# --- the report on OPT: gamma, temperature, prompts and the definition of its acceptance rate are not given ----------


class PublishedCost(NamedTuple):
    """c: time of a forward pass of the draft, relative to the target."""

    target: str
    draft: str
    c: float


COSTS_SOURCE = Source(REPORT, "Calculating c for each model pair")
COSTS = (
    PublishedCost("opt-125m", "opt-125m", 1.0),
    PublishedCost("opt-1.3b", "opt-125m", 0.015),
    PublishedCost("opt-1.3b", "opt-1.3b", 1.0),
    PublishedCost("opt-13b", "opt-125m", 0.022),
    PublishedCost("opt-13b", "opt-1.3b", 0.015),
    PublishedCost("opt-13b", "opt-13b", 1.0),
)


class Rate(NamedTuple):
    """A target with its drafts, the largest first: tokens per second and the acceptance rate of each level."""

    target: str
    drafts: tuple[str, ...]
    tokens_per_second: float
    accepted: tuple[float, ...] = ()


PAIRS_SOURCE = Source(REPORT, "Acceptance rates and wall time given M_p and M_q")
PAIRS = (
    Rate("opt-13b", (), 0.047),
    Rate("opt-13b", ("opt-1.3b",), 0.087, (0.19,)),
    Rate("opt-13b", ("opt-125m",), 0.057, (0.15,)),
    Rate("opt-1.3b", (), 0.336),
    Rate("opt-1.3b", ("opt-125m",), 1.05, (0.38,)),
)

HIERARCHY_SOURCE = Source(REPORT, "Results of hierarchical speculative decoding")
HIERARCHY = (
    Rate("opt-13b", (), 0.047),
    Rate("opt-13b", ("opt-1.3b",), 0.087, (0.19,)),
    Rate("opt-13b", ("opt-125m",), 0.057, (0.15,)),
    Rate("opt-13b", ("opt-1.3b", "opt-125m"), 0.030, (0.17, 0.33)),
)

# --- the paper -------------------------------------------------------------------------------------------------------


class Trade(NamedTuple):
    """Table 1: factors over plain decoding, for c = 0, as printed, to two decimals."""

    alpha: float
    gamma: int
    operations: float
    speed: float


TABLE_1_SOURCE = Source(PAPER, "table 1")
TABLE_1 = (
    Trade(0.6, 2, 1.53, 1.96),
    Trade(0.7, 3, 1.58, 2.53),
    Trade(0.8, 2, 1.23, 2.44),
    Trade(0.8, 5, 1.63, 3.69),
    Trade(0.9, 2, 1.11, 2.71),
    Trade(0.9, 10, 1.60, 6.86),
)

FIGURE_3_SOURCE = Source(PAPER, "figure 3: the optimal gamma as a function of alpha for various values of c")
FIGURE_4_SOURCE = Source(PAPER, "figure 4: speedup and operations as a function of alpha for various values of gamma")
FIGURE_5_SOURCE = Source(PAPER, "figure 5: a simplified trace diagram, gamma 7, gamma 3 and standard decoding")
FIGURE_5_GAMMAS = (7, 3)

SMALL, BASE, LARGE = "T5-small", "T5-base", "T5-large"
DRAFTS = (SMALL, BASE, LARGE)  # 77M, 250M, 800M parameters; the target T5-XXL has 11B
ENDE, CNNDM = "EnDe", "CNN/DM"
TASKS = (ENDE, CNNDM)


class Speed(NamedTuple):
    """Table 2: T5-XXL, measured."""

    task: str
    draft: str
    temperature: float
    gamma: int
    alpha: float
    speed: float


TABLE_2_SOURCE = Source(PAPER, "table 2")
TABLE_2 = (
    Speed(ENDE, SMALL, 0.0, 7, 0.75, 3.4),
    Speed(ENDE, BASE, 0.0, 7, 0.80, 2.8),
    Speed(ENDE, LARGE, 0.0, 7, 0.82, 1.7),
    Speed(ENDE, SMALL, 1.0, 7, 0.62, 2.6),
    Speed(ENDE, BASE, 1.0, 5, 0.68, 2.4),
    Speed(ENDE, LARGE, 1.0, 3, 0.71, 1.4),
    Speed(CNNDM, SMALL, 0.0, 5, 0.65, 3.1),
    Speed(CNNDM, BASE, 0.0, 5, 0.73, 3.0),
    Speed(CNNDM, LARGE, 0.0, 3, 0.74, 2.2),
    Speed(CNNDM, SMALL, 1.0, 5, 0.53, 2.3),
    Speed(CNNDM, BASE, 1.0, 3, 0.55, 2.2),
    Speed(CNNDM, LARGE, 1.0, 3, 0.56, 1.7),
)

UNIGRAM, BIGRAM = "unigram", "bigram"
GPT, T5_ENDE, T5_CNNDM, LAMDA = "GPT-like (97M)", "T5-XXL (EnDe)", "T5-XXL (CNN/DM)", "LaMDA (137B)"


class Acceptance(NamedTuple):
    """Table 3: alpha without speed."""

    target: str
    draft: str
    temperature: float
    alpha: float


TABLE_3_SOURCE = Source(PAPER, "table 3")
TABLE_3 = tuple(
    Acceptance(target, draft, temperature, alpha)
    for target, rows in {
        GPT: {UNIGRAM: (0.03, 0.03), BIGRAM: (0.05, 0.05), "GPT-like (6M)": (0.88, 0.89)},
        T5_ENDE: {
            UNIGRAM: (0.08, 0.07), BIGRAM: (0.20, 0.19), SMALL: (0.75, 0.62), BASE: (0.80, 0.68), LARGE: (0.82, 0.71),
        },
        T5_CNNDM: {
            UNIGRAM: (0.13, 0.08), BIGRAM: (0.23, 0.16), SMALL: (0.65, 0.53), BASE: (0.73, 0.55), LARGE: (0.74, 0.56),
        },
        LAMDA: {"LaMDA (100M)": (0.61, 0.57), "LaMDA (2B)": (0.71, 0.71), "LaMDA (8B)": (0.75, 0.74)},
    }.items()
    for temperature in (0.0, 1.0)
    for draft, alpha in ((name, both[int(temperature)]) for name, both in rows.items())
)  # fmt: skip
