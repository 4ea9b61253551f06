"""`advise` end to end on a simulated machine: times are computed, not measured."""

import ast
import json
import math
import shlex

import numpy as np
import pytest

import specjax as sj
from specjax import files, theory
from specjax.advisor import measure, rank, report, texts
from specjax.advisor.measure import BatchRun
from specjax.advisor.rank import PLAIN
from specjax.advisor.texts import MISS
from specjax.cli.arguments import parse
from specjax.cli.options import Options, merged
from specjax.strategy import Strategy

NEW = 4000  # tokens per text
FLAT = tuple(1.0 for _ in range(64))
CLIFF = (1.0, 1.0, 1.0, 1.0, *(3.0 for _ in range(60)))
PROMPTS = [[1, 2, 3], [4, 5]]


class Machine:
    """A simulated machine and pair of models, which logs the strategies that were run.

    Args:
      curve: cost of a target pass by width. c: cost of a draft step. bent: additional cost, quadratic in the length.
      alpha, copied: acceptance of sampled and of copied tokens.
      fixed: tokens per round of drafters in `rank.FIXED`. int8: acceptance and c of the quantized target.
      skip: acceptance of half of the layers.
    """

    def __init__(
        self, *, curve=FLAT, c=0.05, bent=0.0, alpha=0.8, copied=0.1, second=0.1, fixed=(), int8=(0.9, 0.9), skip=0.1
    ):
        self.fixed, self.int8, self.skip = dict(fixed), int8, skip
        self.curve, self.c, self.bent, self.alpha, self.copied = curve, c, bent, alpha, copied
        drawn = np.random.default_rng(0).random((2, NEW))
        ranks = np.where(drawn < alpha, 0, np.where(drawn < alpha + second * (1 - alpha), 1, MISS))
        self.rows = tuple(map(tuple, ranks.tolist()))
        self.ran = []

    def decode(self, work, strategy, number):
        self.ran.append(strategy)
        tokens, seconds = self.round(strategy)
        passes = max(round(NEW / tokens), 1)
        reached: tuple[int, ...] = (passes, round(passes * (tokens - 1)))
        if strategy.name in (*rank.DRAWN, *rank.COPIED):
            alpha = self.accepted(strategy.name)
            reached = tuple(round(passes * alpha**d) for d in range(strategy["gamma"] + 1))
        return BatchRun(1.0, passes * seconds, passes, (reached,), [range(NEW)] * len(work.batches[number].prompts))

    def round(self, strategy) -> tuple[float, float]:
        """Tokens and seconds per round."""
        if strategy.name in ("plain", "free"):
            return 1.0, self.curve[strategy.get("gamma", 0)]
        if strategy.name == "tree":
            return texts.replay(strategy.tree, self.rows).value, self.curve[
                strategy.nodes - 1
            ] + strategy.levels * self.c
        if strategy.name in rank.FIXED:
            return self.fixed.get(strategy.name, 1.0), self.curve[strategy.nodes - 1]
        gamma = strategy["gamma"]
        c = {"model": self.c, "quantized": self.int8[1], "layer-skip": 0.5}.get(strategy.name)
        tokens = float(theory.expected_tokens(self.accepted(strategy.name), gamma))
        return tokens, self.curve[gamma] + (gamma * c + gamma**2 * self.bent if c is not None else 0.0)

    def accepted(self, name) -> float:
        return {"model": self.alpha, "quantized": self.int8[0], "layer-skip": self.skip}.get(name, self.copied)


@pytest.fixture
def ask(models, monkeypatch):
    def run(machine, draft=True, **options):
        monkeypatch.setattr(measure, "decode", machine.decode)
        monkeypatch.setattr(texts, "scored", lambda *_, **__: (machine.rows, ()))
        return sj.advise(models[0], models[1:] if draft else [], PROMPTS, max_new_tokens=NEW, **options)

    return run


def test_cheap_accurate_draft_gets_a_long_chain(ask):
    advice = ask(Machine(alpha=0.9, c=0.02))
    wanted = theory.best_gamma(0.9, 0.02, gamma_max=rank.GAMMA_MAX)
    assert advice.helps and advice.strategy == rank.chain("model", int(wanted.gamma), 0)
    assert advice.speedup == pytest.approx(wanted.factor, rel=0.02)
    assert len(advice.trials) >= 3 and not advice.interrupted
    for trial in advice.trials:  # the machine follows the theory
        assert trial.candidate.speedup == pytest.approx(trial.speedup, rel=0.02)
    assert advice.drafter == f"model:gamma={wanted.gamma}" and "hub/small" in advice.python
    assert advice.reason.startswith("Use model")


def test_the_fastest_certain_gain_is_recommended(ask):
    advice = ask(Machine())
    one = lambda gamma, speedup, error: rank.Candidate(rank.chain("model", gamma, 0), 3.0, 1.0, 2.0, speedup, error)
    uncertain, certain, slower = one(7, 2.1, 5.2), one(5, 1.9, 0.2), one(3, 1.5, 0.1)
    found = advice._replace(trials=[], candidates=[uncertain, certain, slower])
    assert (found.strategy, found.speedup, found.error) == (certain.strategy, 1.9, 0.2)
    assert advice._replace(trials=[], candidates=[uncertain]).strategy == PLAIN


def test_plain_decoding_if_nothing_helps(ask):
    advice = ask(Machine(alpha=0.5, c=0.95, copied=0.0))
    assert not advice.helps and advice.strategy == PLAIN and (advice.speedup, advice.error) == (1.0, 0.0)
    assert advice.trials and advice.trials[0].speedup <= 1.02
    assert advice.reason.startswith("Use plain decoding") and "0.95" in advice.reason and "0.50" in advice.reason
    assert "drafter=" not in advice.python and "--drafter plain" in advice.command()


def test_a_jump_of_the_verify_curve_limits_the_draft(ask):
    advice = ask(Machine(curve=CLIFF, alpha=0.8, c=0.01))
    assert advice.strategy.name == "model" and advice.strategy["gamma"] == 3
    assert all(one.strategy.tree.size <= 4 for one in advice.trials if one.strategy.name == "tree")
    assert any("lookahead" in line for line in advice.left_out)


def test_repetitive_text_needs_no_draft_model(ask):
    advice = ask(Machine(alpha=0.4, copied=0.8))
    assert advice.helps and advice.strategy.name in ("ngram", "suffix") and not advice.strategy.drafts
    assert "--draft " not in advice.command(prompts="my file.txt")
    assert advice.command(prompts="my file.txt").endswith("--prompts 'my file.txt'")


@pytest.mark.parametrize("name", ["dynamic-tree", "suffix-tree"])
def test_strategies_with_fixed_settings_can_win(ask, name):
    advice = ask(Machine(fixed={name: 6.5}))
    assert advice.strategy.name == name and advice.strategy.verifier is None
    assert advice.speedup == pytest.approx(6.5, rel=0.02)
    assert f"--drafter {name}:" in advice.command() and "--verifier" not in advice.command()


def test_self_drafting_without_a_draft_model(ask):
    machine = Machine(int8=(0.95, 0.2))
    advice = ask(machine, draft=False)
    wanted = theory.best_gamma(0.95, 0.2, gamma_max=rank.GAMMA_MAX)
    assert advice.strategy == rank.chain("quantized", int(wanted.gamma)) and advice.drafts == []
    assert advice.python.startswith(
        'sj.generate(target := sj.load("big"), prompts, drafter=sj.drafters.quantized(target, '
    )
    assert "quantized: 0.200 steps per token" in advice.reason
    assert "layer-skip" in {one.strategy.name for one in advice.candidates}
    assert "--draft " not in advice.command()


def test_the_call_for_a_head_names_the_target_that_it_drafts_for(ask):
    advice = ask(Machine())
    own = Strategy.parse("head:folder=a/head,gamma=3")
    found = advice._replace(trials=[], candidates=[advice.candidates[0]._replace(strategy=own)]).python
    target = next(node for node in ast.walk(ast.parse(found)) if isinstance(node, ast.NamedExpr)).target.id
    assert found.startswith(f'sj.generate({target} := sj.load("big"), ') and f"target={target})" in found


def test_drafters_with_hardly_any_acceptance_are_not_timed(ask):
    machine = Machine(int8=(0.95, 0.2), skip=0.01)
    advice = ask(machine, draft=False)
    assert [line.split()[0] for line in advice.left_out if "layer-skip" in line] == ["layer-skip"]
    assert "layer-skip" not in {one.strategy.name for one in advice.candidates} and advice.strategy.name == "quantized"
    assert {one["gamma"] for one in machine.ran if one.name == "layer-skip"} == {4}


def test_self_drafting_next_to_a_draft_model_only_on_request(ask):
    machine = Machine()
    ask(machine)
    assert not {"layer-skip", "quantized"} & {one.name for one in machine.ran}
    assert {"model", "tree", "dynamic-tree", "ngram", "suffix", "suffix-tree"} <= {one.name for one in machine.ran}
    requested = Machine()
    assert {one.strategy.name for one in ask(requested, kinds=("quantized",)).candidates} == {"quantized"}


def test_trials_override_predictions(ask):
    """Two lengths do not reveal a cost that grows faster than linearly; trials do."""
    machine = Machine(alpha=0.95, c=0.01, bent=0.02)
    advice = ask(machine, kinds=("model",))
    assert advice.candidates[0].strategy != advice.strategy
    assert advice.speedup == max(trial.speedup for trial in advice.trials)
    assert advice.trials[0].speedup > next(
        t.speedup for t in advice.trials if t.strategy == advice.candidates[0].strategy
    )
    rate = lambda gamma: machine.round(rank.chain("model", gamma, 0))
    sweep = max(tokens / seconds for tokens, seconds in map(rate, range(1, rank.GAMMA_MAX + 1)))
    assert advice.speedup > 0.95 * sweep


def test_predictions_only(ask):
    machine = Machine(alpha=0.9, c=0.02)
    advice = ask(machine, verify=0)
    assert advice.helps and advice.trials == [] and "not tried" in advice.reason
    assert advice.speedup == advice.candidates[0].speedup
    assert not ask(Machine(alpha=0.5, c=0.95, copied=0.0), verify=0).helps


def test_sweep_measures_the_gap_to_the_fastest(ask):
    """The cost grows faster than linearly, so that the prediction is too long."""
    machine = Machine(alpha=0.95, c=0.01, bent=0.02)
    rate = lambda gamma: np.divide(*machine.round(rank.chain("model", gamma, 0)))
    best = max(rank.SWEPT, key=rate)
    advice = ask(machine, kinds=("model",), verify=0, sweep=True)
    assert advice.strategy == advice.candidates[0].strategy and advice.strategy["gamma"] > best
    assert {one.strategy["gamma"] for one in advice.swept} == {*rank.SWEPT, advice.strategy["gamma"]}
    assert advice.swept[0].strategy == rank.chain("model", best, 0)
    assert (
        advice.behind == pytest.approx(1 - rate(advice.strategy["gamma"]) / rate(best), abs=0.02)
        and advice.behind > 0.2
    )
    assert f"{100 * advice.behind:.1f} % behind" in advice.reason
    tried = ask(machine, kinds=("model",), sweep=True)
    assert tried.behind == pytest.approx(0.0, abs=0.02) and advice.to_dict()["behind"] == advice.behind


@pytest.mark.slow
def test_sweep_where_nothing_helps(ask):
    advice = ask(Machine(alpha=0.5, c=0.95, copied=0.0), sweep=True)
    assert advice.strategy == PLAIN and "Swept" in advice.reason
    assert advice.behind == pytest.approx(max(advice.swept[0].speedup, 1) - 1, abs=0.02)
    kinds = {one.strategy.name for one in advice.swept}
    assert {"model", "tree", "ngram", "suffix"} <= kinds and ask(Machine()).behind is None
    sizes = [one.strategy.nodes for one in advice.swept if one.strategy.name == "tree"]
    assert sorted(sizes) == sorted(set(sizes) & {*rank.SIZES})


def test_sweep_of_slower_strategies_has_no_gap(ask):
    advice = ask(Machine(alpha=0.3, c=0.95, copied=0.0, curve=tuple(1.0 + n for n in range(64))), sweep=True)
    assert advice.swept[0].speedup < 0.9 and advice.behind == 0


def test_interrupted_sweep_keeps_the_advice(ask):
    whole = Machine()
    answer = ask(whole)
    cut = Machine()
    advice = ask(cut, sweep=True, stop=lambda: len(cut.ran) > len(whole.ran) + 3)
    assert advice.interrupted and advice.swept == [] and advice.behind is None
    assert (advice.strategy, len(advice.trials)) == (
        answer.strategy,
        len(answer.trials),
    ) and "interrupted" in advice.reason


def test_only_the_given_kinds_are_run(ask):
    machine = Machine()
    advice = ask(machine, kinds=("ngram",), verify=1)
    assert {one.name for one in machine.ran} == {"plain", "free", "ngram"}
    assert {one.strategy.name for one in advice.candidates} == {"ngram"}


def test_sampled_chains_use_block_verification(ask):
    machine = Machine(alpha=0.9, c=0.02)
    advice = ask(machine, batch=3, temperature=0.7)
    assert advice.strategy.verifier == "block" and advice.settings["batch"] == 3
    assert 'verifier="block"' in advice.python and "--verifier block" in advice.command()


def test_interrupt_keeps_measurements(ask):
    whole = Machine()
    ask(whole)
    early = Machine()
    advice = ask(early, stop=lambda: len(early.ran) >= 6)
    assert advice.interrupted and advice.measured is None and not advice.helps and len(early.ran) == 6
    assert advice.to_dict()["counted"][0]["strategy"] == "plain" and "No advice" in advice.reason
    tried_from = next(i for i, one in enumerate(whole.ran) if one.name == "model" and one["gamma"] not in (2, 8))
    late = Machine()
    advice = ask(late, stop=lambda: len(late.ran) >= tried_from)
    assert advice.interrupted and advice.measured is not None and advice.candidates and advice.trials == []
    assert "interrupted" in advice.reason


def test_json_record(ask):
    advice = ask(Machine())
    text = files.to_json(advice.to_dict())
    found = json.loads(text)
    assert found["use"] == advice.drafter and found["helps"] is True and found["use_drafts"] == ["hub/small"]
    assert [row["tokens"] for row in found["measured"]["verify"]] == list(measure.WIDTHS)
    assert found["measured"]["chains"][0]["c"] == pytest.approx(0.05, rel=0.05)
    assert math.isclose(found["trials"][0]["measured_speedup"], advice.speedup)
    assert {"drafter", "speedup", "error", "tokens"} <= set(found["candidates"][0])


def test_command_lines_parse_to_the_strategy(ask):
    advice = ask(Machine(), temperature=0.7)
    kinds = {one.strategy.name: one for one in advice.candidates}
    assert {"model", "tree", "ngram", "suffix"} <= set(kinds)
    for one in kinds.values():
        used = advice._replace(trials=[advice.trials[0]._replace(candidate=one)])
        words = shlex.split(used.command(dtype="bfloat16"))
        config = merged(parse(Options, words[2:], prog="specjax generate"))
        assert words[:2] == ["specjax", "generate"] and Strategy.parse(one.strategy.text).text == one.strategy.text
        assert config.drafts == ("hub/small",) * len(one.strategy.drafts)
        assert (config.verifier, config.dtype, config.temperature) == (one.strategy.verifier, "bfloat16", 0.7)


def test_figure(ask, tmp_path):
    advice = ask(Machine())
    report.write_figure(tmp_path / "advice.svg", advice)
    drawn = (tmp_path / "advice.svg").read_text()
    for words in ("Cost of verification", "plain decoding", "model small, predicted", "measured"):
        assert words in drawn


BAD = {
    "three drafts": ({"drafts": 3}, "drafts"),
    "kind": ({"kinds": ("modle",)}, "modle"),
    "no kind": ({"kinds": ()}, "kinds"),
    "batch": ({"batch": 0}, "batch"),
    "turns": ({"turns": 0}, "turns"),
    "verify": ({"verify": -1}, "verify"),
    "temperature": ({"temperature": -0.5}, "temperature"),
    "nan": ({"temperature": float("nan")}, "temperature"),
    "no prompt": ({"prompts": []}, "prompt"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_raise_before_anything_runs(case, models, monkeypatch):
    def decode(*args):
        raise AssertionError("something was run")

    monkeypatch.setattr(measure, "decode", decode)
    options, name = BAD[case]
    given = {"drafts": 1, "prompts": PROMPTS} | options
    drafts = [models[1]] * given.pop("drafts")
    with pytest.raises(ValueError) as caught:
        sj.advise(models[0], drafts, given.pop("prompts"), **given)
    assert name in str(caught.value) and "\n" not in str(caught.value)
