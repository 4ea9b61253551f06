"""`advise` from end to end on a made-up machine: runs are computed, not timed."""

import json
import math
import shlex

import numpy as np
import pytest

import specjax as sj
from specjax import theory, trees
from specjax.advisor import measure, rank, running, say, ways
from specjax.advisor.rank import MISS
from specjax.advisor.running import Run
from specjax.advisor.ways import PLAIN
from specjax.cli import record, setup
from specjax.cli.arguments import parse
from specjax.cli.options import Options
from specjax.model import Model
from specjax.models import opt
from specjax.naming import drafting
from tests.cli import toys

NEW = 4000  # tokens a text: rounds need not come out even
FLAT = tuple(1.0 for _ in range(64))
CLIFF = (1.0, 1.0, 1.0, 1.0, *(3.0 for _ in range(60)))
PROMPTS = [[1, 2, 3], [4, 5]]


class Machine:
    """A machine and a pair with these numbers; counts what was run on it.

    Args:
      curve: a call of the target by its tokens. c: a step of the draft. bent: what it costs more, squared by length.
      alpha, copied: acceptance of what a model drafts, and of what is copied.
      whole: tokens of a round of the ways that are weighed as they run. half: acceptance and c of the target in int8.
      skip: acceptance of half of its layers.
    """

    def __init__(
        self, *, curve=FLAT, c=0.05, bent=0.0, alpha=0.8, copied=0.1, second=0.1, whole=(), half=(0.9, 0.9), skip=0.1
    ):
        self.whole, self.half, self.skip = dict(whole), half, skip
        self.curve, self.c, self.bent, self.alpha, self.copied = curve, c, bent, alpha, copied
        drawn = np.random.default_rng(0).random((2, NEW))
        ranks = np.where(drawn < alpha, 0, np.where(drawn < alpha + second * (1 - alpha), 1, MISS))
        self.rows = tuple(map(tuple, ranks.tolist()))
        self.ran = []

    def decode(self, work, way, number):
        self.ran.append(way)
        rows = len(work.batches[number])
        tokens, seconds = self.round(way)
        calls = max(round(NEW / tokens), 1)
        reached = (10**6, round(10**6 * (tokens - 1)))
        if way.kind in ("model", "ngram", "suffix", *ways.SELF):
            alpha = self.accepted(way.kind)
            reached = tuple(round(10**6 * alpha**d) for d in range(way["gamma"] + 1))
        return Run(1.0, calls * seconds, calls, reached, [[1] * NEW] * rows)

    def round(self, way) -> tuple[float, float]:
        """Tokens and seconds of a round."""
        if way.kind in ("plain", "verify"):
            return 1.0, self.curve[way["width"] - 1 if way.settings else 0]
        if way.kind == "tree":
            shape = ways.shape_of(way)
            tokens = rank.replay(shape, self.rows)[0]
            return tokens, self.curve[shape.size - 1] + (shape.width - 1) * self.c
        if way.kind in ways.WHOLE:
            return self.whole.get(way.kind, 1.0), self.curve[ways.nodes(way) - 1]
        gamma = way["gamma"]
        c = {"model": self.c, "quantized": self.half[1], "layer-skip": 0.5}.get(way.kind)
        tokens = float(theory.expected_tokens(self.accepted(way.kind), gamma))
        return tokens, self.curve[gamma] + (gamma * c + gamma**2 * self.bent if c is not None else 0.0)

    def accepted(self, kind) -> float:
        return {"model": self.alpha, "quantized": self.half[0], "layer-skip": self.skip}.get(kind, self.copied)


@pytest.fixture(scope="module")
def models():
    config = opt.OPTConfig(vocab_size=257, width=16, embed_width=16, layers=2, heads=2, mlp_width=32, max_positions=128)
    return [Model(name, opt, config, toys.FMT, toys.params(0, config)) for name in ("big", "hub/small")]


@pytest.fixture
def ask(models, monkeypatch):
    def run(machine, draft=True, **options):
        monkeypatch.setattr(running, "decode", machine.decode)
        monkeypatch.setattr(measure, "ranks_of", lambda draft, prompts, texts: machine.rows)
        return sj.advise(models[0], models[1:] if draft else [], PROMPTS, max_new_tokens=NEW, **options)

    return run


def test_a_cheap_draft_that_is_mostly_right_is_used_at_length(ask):
    advice = ask(Machine(alpha=0.9, c=0.02))
    wanted = theory.best_gamma(0.9, 0.02, gamma_max=rank.GAMMA_MAX)
    assert advice.helps and advice.way == ways.chain("model", int(wanted.gamma), 0)
    assert advice.speedup == pytest.approx(wanted.factor, rel=0.02)
    assert len(advice.trials) >= 3 and not advice.interrupted
    for trial in advice.trials:  # theory holds on a machine that is made of it
        assert trial.candidate.speedup == pytest.approx(trial.speedup, rel=0.02)
    assert advice.drafter == f"model:gamma={wanted.gamma}" and "hub/small" in advice.python
    assert advice.reason.startswith(f"Use model \u03b3={wanted.gamma} small: ")


def test_where_nothing_helps_that_is_said(ask):
    advice = ask(Machine(alpha=0.5, c=0.95, copied=0.0))
    assert not advice.helps and advice.way == PLAIN and (advice.speedup, advice.error) == (1.0, 0.0)
    assert advice.trials and advice.trials[0].speedup <= 1.02
    assert advice.reason.startswith("This will not help: decode plainly.")
    assert "costs 0.95 steps of the target and is accepted 0.50 of the time" in advice.reason
    assert "drafter=" not in advice.python and "--drafter plain" in say.command_line(advice)


def test_a_cliff_of_the_machine_cuts_the_draft(ask):
    advice = ask(Machine(curve=CLIFF, alpha=0.8, c=0.01))
    assert advice.way.kind == "model" and advice.way["gamma"] == 3
    assert all(ways.shape_of(one.way).size <= 4 for one in advice.trials if one.way.kind == "tree")
    assert any("lookahead" in line for line in advice.left_out)


def test_text_that_repeats_itself_needs_no_model(ask):
    advice = ask(Machine(alpha=0.4, copied=0.8))
    assert advice.helps and advice.way.kind in ("ngram", "suffix") and not advice.way.drafts
    assert "--draft " not in say.command_line(advice, prompts="my file.txt")
    assert say.command_line(advice, prompts="my file.txt").endswith("--prompts 'my file.txt'")


@pytest.mark.parametrize("kind", ["dynamic-tree", "suffix-tree"])
def test_what_is_weighed_as_it_runs_can_be_the_answer(ask, kind):
    advice = ask(Machine(whole={kind: 6.5}))
    assert advice.way.kind == kind and advice.way.verifier == "deterministic"
    assert advice.speedup == pytest.approx(6.5, rel=0.02)
    assert "--verifier deterministic" in say.command_line(advice) and f"--drafter {kind}:size=" in say.command_line(
        advice
    )


def test_a_target_alone_may_draft_for_itself(ask):
    machine = Machine(half=(0.95, 0.2))
    advice = ask(machine, draft=False)
    wanted = theory.best_gamma(0.95, 0.2, gamma_max=rank.GAMMA_MAX)
    assert advice.way == ways.chain("quantized", int(wanted.gamma)) and advice.drafts == []
    assert advice.python.startswith(
        'sj.generate(target := sj.load("big"), prompts, drafter=sj.drafters.quantized(target, '
    )
    assert "quantized: a token costs 0.200 steps" in advice.reason
    assert "layer-skip" in {one.way.kind for one in advice.candidates}
    assert "--draft " not in say.command_line(advice)


def test_what_the_target_never_says_is_not_timed(ask):
    """A round calls the target: what commits 1.01 tokens a round cannot be faster by more, however cheap."""
    machine = Machine(half=(0.95, 0.2), skip=0.01)
    advice = ask(machine, draft=False)
    assert [line for line in advice.left_out if line.startswith("layer-skip")] == [
        "layer-skip γ=4: a round commits 1.01 tokens, and every round calls the target"
    ]
    assert "layer-skip" not in {one.way.kind for one in advice.candidates} and advice.way.kind == "quantized"
    assert {way["gamma"] for way in machine.ran if way.kind == "layer-skip"} == {4}


def test_beside_a_draft_model_the_target_drafts_for_itself_only_if_asked(ask):
    machine = Machine()
    ask(machine)
    assert not {"layer-skip", "quantized"} & {way.kind for way in machine.ran}
    assert {"model", "tree", "dynamic-tree", "ngram", "suffix", "suffix-tree"} <= {way.kind for way in machine.ran}
    asked = Machine()
    assert {one.way.kind for one in ask(asked, kinds=("quantized",)).candidates} == {"quantized"}


def test_the_command_line_knows_the_same_kinds():
    from specjax.cli import advise

    assert set(advise.KINDS) == set(ways.KINDS)


def test_what_was_measured_overrules_theory(ask):
    """Two lengths cannot tell that long drafts cost more than their length; the trial does."""
    machine = Machine(alpha=0.95, c=0.01, bent=0.02)
    advice = ask(machine, kinds=("model",))
    assert advice.candidates[0].way != advice.way
    assert advice.speedup == max(trial.speedup for trial in advice.trials)
    assert advice.trials[0].speedup > next(t.speedup for t in advice.trials if t.way == advice.candidates[0].way)
    rate = lambda gamma: machine.round(ways.chain("model", gamma, 0))
    sweep = max(tokens / seconds for tokens, seconds in map(rate, range(1, rank.GAMMA_MAX + 1)))
    assert advice.speedup > 0.95 * sweep


def test_without_trials_the_answer_is_theorys_and_says_so(ask):
    machine = Machine(alpha=0.9, c=0.02)
    advice = ask(machine, verify=0)
    assert advice.helps and advice.trials == [] and "expected, not tried" in advice.reason
    assert advice.speedup == advice.candidates[0].speedup
    assert not ask(Machine(alpha=0.5, c=0.95, copied=0.0), verify=0).helps


def test_a_sweep_says_how_far_the_answer_is_behind(ask):
    """A draft that costs more than its length, which theory cannot know: untried, its answer is too long."""
    machine = Machine(alpha=0.95, c=0.01, bent=0.02)
    rate = lambda gamma: np.divide(*machine.round(ways.chain("model", gamma, 0)))
    best = max(rank.SWEPT, key=rate)
    advice = ask(machine, kinds=("model",), verify=0, sweep=True)
    assert advice.way == advice.candidates[0].way and advice.way["gamma"] > best
    assert {one.way["gamma"] for one in advice.swept} == {*rank.SWEPT, advice.way["gamma"]}
    assert advice.swept[0].way == ways.chain("model", best, 0)
    assert advice.behind == pytest.approx(1 - rate(advice.way["gamma"]) / rate(best), abs=0.02) and advice.behind > 0.2
    assert f"; model \u03b3={advice.way['gamma']} small (then" in advice.reason
    assert f") was {100 * advice.behind:.1f} % behind." in advice.reason
    tried = ask(machine, kinds=("model",), sweep=True)
    assert tried.behind == pytest.approx(0.0, abs=0.02) and advice.as_dict()["behind"] == advice.behind


def test_a_sweep_where_nothing_helps_is_held_against_plain_decoding(ask):
    advice = ask(Machine(alpha=0.5, c=0.95, copied=0.0), sweep=True)
    said = "was the fastest, at" if advice.behind else "none was faster than plain decoding."
    assert advice.way == PLAIN and said in advice.reason
    assert advice.behind == pytest.approx(max(advice.swept[0].speedup, 1) - 1, abs=0.02)
    kinds = {one.way.kind for one in advice.swept}
    assert {"model", "tree", "ngram", "suffix"} <= kinds and ask(Machine()).behind is None
    sizes = [ways.nodes(one.way) for one in advice.swept if one.way.kind == "tree"]
    assert sorted(sizes) == sorted(set(sizes) & {*rank.SIZES})


def test_plain_decoding_is_behind_nothing_where_all_that_is_swept_is_slower(ask):
    advice = ask(Machine(alpha=0.3, c=0.95, copied=0.0, curve=tuple(1.0 + n for n in range(64))), sweep=True)
    assert advice.swept[0].speedup < 0.9 and advice.behind == 0
    assert "none was faster than plain decoding." in advice.reason


def test_a_sweep_that_is_interrupted_leaves_the_answer(ask):
    whole = Machine()
    answer = ask(whole)
    cut = Machine()
    advice = ask(cut, sweep=True, stop=lambda: len(cut.ran) > len(whole.ran) + 3)
    assert advice.interrupted and advice.swept == [] and advice.behind is None
    assert (advice.way, len(advice.trials)) == (answer.way, len(answer.trials)) and "interrupted" in advice.reason


def test_only_what_was_asked_for_is_run(ask):
    machine = Machine()
    advice = ask(machine, kinds=("ngram",), verify=1)
    assert {way.kind for way in machine.ran} == {"plain", "verify", "ngram"}
    assert {one.way.kind for one in advice.candidates} == {"ngram"}


def test_batches_are_filled_and_sampled_chains_are_verified_as_blocks(ask):
    machine = Machine(alpha=0.9, c=0.02)
    advice = ask(machine, batch=3, temperature=0.7)
    assert advice.way.verifier == "block" and advice.settings["batch"] == 3
    assert 'verifier="block"' in advice.python and "--verifier block" in say.command_line(advice)


def test_an_interrupt_keeps_what_was_measured(ask):
    whole = Machine()
    ask(whole)
    early = Machine()
    advice = ask(early, stop=lambda: len(early.ran) >= 6)
    assert advice.interrupted and advice.measured is None and not advice.helps and len(early.ran) == 6
    assert advice.as_dict()["counted"][0]["way"] == "plain" and "No advice" in advice.reason
    tried_from = next(i for i, way in enumerate(whole.ran) if way.kind == "model" and way["gamma"] not in (2, 8))
    late = Machine()
    advice = ask(late, stop=lambda: len(late.ran) >= tried_from)
    assert advice.interrupted and advice.measured is not None and advice.candidates and advice.trials == []
    assert "interrupted" in advice.reason


def test_everything_is_on_record(ask):
    advice = ask(Machine())
    text = record.to_json(record.finite(advice.as_dict()))
    found = json.loads(text)
    assert found["use"] == advice.drafter and found["helps"] is True and found["use_drafts"] == ["hub/small"]
    assert [row["tokens"] for row in found["measured"]["verify"]] == list(measure.WIDTHS)
    assert found["measured"]["chains"][0]["c"] == pytest.approx(0.05, rel=0.05)
    assert math.isclose(found["trials"][0]["measured_speedup"], advice.speedup)
    assert {"drafter", "speedup", "error", "tokens"} <= set(found["candidates"][0])


def test_the_command_is_understood_whatever_is_used(ask):
    advice = ask(Machine(), temperature=0.7)
    kinds = {one.way.kind: one for one in advice.candidates}
    assert {"model", "tree", "ngram", "suffix"} <= set(kinds)
    for one in kinds.values():
        used = advice._replace(trials=[advice.trials[0]._replace(candidate=one)])
        words = shlex.split(say.command_line(used, dtype="bfloat16"))
        options = parse(Options, words[2:], prog="specjax generate")
        plan = setup.plan(options)
        assert words[:2] == ["specjax", "generate"] and plan.drafter == drafting.parse(ways.spec(one.way))
        assert plan.drafts == ("hub/small",) * len(one.way.drafts)
        assert (plan.verifier or sj.verify.default(trees.chain(1), sj.verify.Siblings.POINTS)).name == one.way.verifier
        assert (options.models.dtype, options.sampling.temperature) == ("bfloat16", 0.7)


def test_the_picture_shows_both(ask, tmp_path):
    from specjax.advisor import pictures

    advice = ask(Machine())
    pictures.write(tmp_path / "advice.svg", advice)
    drawn = (tmp_path / "advice.svg").read_text()
    for words in ("Cost of verifying here", "plain decoding", "model small, predicted", "measured"):
        assert words in drawn


BAD = {
    "three drafts": ({"drafts": 3}, "at most 2 drafts"),
    "kind": ({"kinds": ("modle",)}, "got modle"),
    "no kind": ({"kinds": ()}, "got none"),
    "batch": ({"batch": 0}, "batch must be at least 1, got 0"),
    "turns": ({"turns": 0}, "turns must be at least 1, got 0"),
    "verify": ({"verify": -1}, "verify must be at least 0, got -1"),
    "temperature": ({"temperature": -0.5}, "temperature must be at least 0"),
    "nan": ({"temperature": float("nan")}, "temperature must be at least 0"),
    "no prompt": ({"prompts": []}, "prompt"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_anything_is_run(case, models, monkeypatch):
    def decode(*args):
        raise AssertionError("something was run")

    monkeypatch.setattr(running, "decode", decode)
    options, said = BAD[case]
    given = {"drafts": 1, "prompts": PROMPTS} | options
    drafts = [models[1]] * given.pop("drafts")
    with pytest.raises(ValueError) as caught:
        sj.advise(models[0], drafts, given.pop("prompts"), **given)
    assert said in str(caught.value) and "\n" not in str(caught.value)
