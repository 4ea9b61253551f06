"""`specjax generate` from end to end on toy checkpoints."""

import io
import json
import re
import shutil
import sys

import jax.numpy as jnp
import pytest

import specjax as sj
from specjax.cli import main
from specjax.cli.comparing import differences, logit_margin
from specjax.cli.generate import main as generate_main
from specjax.prompts import tokenize

NEW = ["--max-new-tokens", "12"]
SAMPLED = ["--temperature", "0.7", "--logit-bias", "15=-inf"]


@pytest.fixture(scope="module")
def target(models):
    return sj.load(models["target"])


@pytest.fixture
def base(models):
    """Greedy rows of one prompt share programs between tests."""
    return ["generate", "--target", models["target"], "--draft", models["draft"], *NEW, "--temperature", "0"]


@pytest.mark.slow
def test_quiet_prints_the_text_of_generate(specjax_program, base, target):
    ran = specjax_program(*base, "Once", "--quiet")
    expected = sj.generate(target, ["Once"], max_new_tokens=12, temperature=0.0)
    assert expected.texts is not None
    assert ran.code == 0 and ran.err == "" and re.sub("[␀-␡]", "?", ran.out) == _visible(expected.texts[0]) + "\n"


def _visible(text: str) -> str:
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "?", text)


@pytest.mark.slow
def test_text_and_table(specjax_program, base):
    ran = specjax_program(*base, "Once")
    assert ran.code == 0 and ran.out.startswith("Once")
    for name in ("tokens per target pass", "accepted / tested", "accepted / drafted", "overlap", "accepted by depth",
                 "prefill", "draft", "verify", "compile", "tokens/s", "max_tokens", "lossless", "float32"):  # fmt: skip
        assert name in ran.out
    assert "yes, verifier token" in ran.out


def test_marks_removed_give_the_text(specjax_program, base):
    quiet = ["--quiet", "--ignore-eos"]
    plain = specjax_program(*base, "Once", *quiet).out
    marked = specjax_program(*base, "Once", *quiet, "--show-draft").out
    assert "[-" in marked and "{+" in marked
    assert re.sub(r"\{\+(.*?)\+\}", r"\1", re.sub(r"\[-.*?-\]", "", marked)) == plain


@pytest.fixture
def chat_model(models, tmp_path):
    """A model with a chat template."""
    folder = shutil.copytree(models["target"], tmp_path / "chat")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}A:"
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return folder


def test_chat_messages_are_put_into_the_template(specjax_program, base, chat_model, tmp_path):
    model = sj.load(chat_model)
    assert model.chat("Hi") == "user: Hi\nA:"
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    assert model.chat(turns) == "user: Hi\nassistant: Yes\nA:"
    model.save_pretrained(tmp_path / "saved")
    assert sj.load(tmp_path / "saved").chat("Hi") == model.chat("Hi")
    with pytest.raises(ValueError, match="template"):
        sj.load(base[2]).chat("Hi")
    args = ["generate", "--target", str(chat_model), *base[3:]]
    shown, plain = specjax_program(*args, "Hi", "--chat"), specjax_program(*args, "user: Hi\nA:", "--json")
    record = json.loads(specjax_program(*args, "Hi", "--chat", "--json").out)
    assert record["prompts"] == ["user: Hi\nA:"] and record["tokens"] == json.loads(plain.out)["tokens"]
    assert not shown.out.startswith(("user", "Hi"))


@pytest.mark.slow
def test_a_text_that_ends_at_once_is_reported(specjax_program, base, chat_model):
    ends = ["Once", "--logit-bias", "0=1e9"]
    with pytest.warns(UserWarning, match="first token.*--chat"):
        specjax_program("generate", "--target", str(chat_model), *base[3:], *ends)
    with pytest.warns(UserWarning, match="first token") as found:
        specjax_program(*base, *ends)
    assert "--chat" not in str(found[0].message)


def test_json_is_all_of_stdout_and_of_the_file(specjax_program, base, target, tmp_path):
    file = tmp_path / "out.json"
    ran = specjax_program(*base, "Once", "upon", "--json", *SAMPLED, "--seed", "5", "--output", str(file))
    found = json.loads(ran.out)
    assert json.loads(file.read_text()) == found and [p.name for p in tmp_path.iterdir()] == ["out.json"]
    draft = sj.drafters.model(sj.load(found["models"]["draft"]["name"]))
    options = {"max_new_tokens": 12, "temperature": 0.7, "seed": 5, "logit_bias": {15: float("-inf")}}
    expected = sj.generate(target, ["Once", "upon"], drafter=draft, **options)
    assert found["tokens"] == expected.tokens and found["texts"] == expected.texts
    assert found["stop_reasons"] == expected.stop_reasons and found["lossless"] is True and found["verifier"] == "token"
    assert found["stats"]["accepted"] == expected.stats.accepted and found["versions"]["specjax"] == sj.__version__
    assert found["models"]["target"]["dtype"] == "float32" and found["prompts"] == ["Once", "upon"]


def test_prompts_come_from_a_file(specjax_program, base, tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "Once"}\n{"prompt": "upon"}\n')
    found = json.loads(specjax_program(*base, "--prompts", str(file), "--json", *SAMPLED).out)
    assert found["prompts"] == ["Once", "upon"] and len(found["texts"]) == 2


@pytest.mark.slow
def test_stop_string_is_not_printed(specjax_program, base):
    found = json.loads(specjax_program(*base, "Once", "--json").out)
    stop = next(c for c in found["texts"][0][3:] if c.isprintable() and c != "\ufffd")
    before = found["texts"][0].split(stop)[0]
    ran = specjax_program(*base, "Once", "--quiet", "--stop", stop)
    assert ran.out == before + "\n"
    assert json.loads(specjax_program(*base, "Once", "--json", "--stop", stop).out)["stop_reasons"] == ["stop_string"]


@pytest.mark.slow
def test_compare_reports_equality_and_speed_up(specjax_program, base, tmp_path):
    file = tmp_path / "out.json"
    ran = specjax_program(*base, "Once", "--compare", "--repeats", "2", "--output", str(file))
    assert "equal" in ran.out and "speed-up" in ran.out
    found = json.loads(file.read_text())["compare"]
    assert found["equal"] is True and found["repeats"] == 2 and found["differences"] == []
    speed = found["speculative"]["tokens"] / found["speculative"]["decode"]
    assert found["speedup"] == pytest.approx(speed / (found["plain"]["tokens"] / found["plain"]["decode"]))


@pytest.mark.slow
def test_compare_of_sampled_rows_compares_no_tokens(specjax_program, base):
    ran = specjax_program(*base, "Once", "--compare", "--repeats", "1", "--temperature", "1")
    assert "equal in distribution" in ran.out and "outputs equal" not in ran.out


@pytest.mark.slow
def test_a_difference_is_found_with_its_margin(target):
    out = sj.generate(target, ["Once", "upon"], max_new_tokens=6, temperature=0.0)
    prompts, length = tokenize(target, ["Once", "upon"])
    changed = [list(row) for row in out.tokens]
    changed[1][4] = (changed[1][4] + 1) % 257
    other = sj.Generation(None, changed, out.stop_reasons, out.stats, True)
    (found,) = differences(target, prompts, length, out, other)
    assert (found.row, found.position, found.plain, found.fast) == (1, 4, out.tokens[1][4], changed[1][4])
    logits = sorted(
        target.score(jnp.asarray([[*prompts[1, : length[1]].tolist(), *out.tokens[1][:4]]], jnp.int32))[0, -1].tolist()
    )
    assert found.margin == pytest.approx(logits[-1] - logits[-2], rel=1e-4) and found.margin > 0
    shorter = sj.Generation(None, [out.tokens[0], out.tokens[1][:3]], out.stop_reasons, out.stats, True)
    (ended,) = differences(target, prompts, length, out, shorter)
    assert ended.position == 3 and ended.fast is None
    assert differences(target, prompts, length, out, out) == ()
    assert logit_margin(target, [5], []) > 0


def test_nan_is_a_warning_and_an_exit_code(specjax_program, models):
    ran = specjax_program("generate", "--target", models["broken"], "Once", *NEW, "--temperature", "0")
    assert ran.code == 1 and "NaN" in ran.err and len(ran.err.splitlines()) == 1 and "stopped by" in ran.out


@pytest.mark.parametrize("columns", ["0", "20"])
def test_narrow_terminal(columns, specjax_program, base, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    ran = specjax_program(*base, "Once")
    assert ran.code == 0 and ran.out.startswith("Once") and "max_tokens" in ran.out


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_escapes_characters_that_stdout_lacks(encoding, models, monkeypatch):
    prompt = "\U0001f600 d\xe9"
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    args = ["generate", "--target", models["target"], prompt, "--json", *NEW, "--temperature", "0"]
    assert main([*args, "--drafter", "plain"]) == 0
    found = json.loads(written.getvalue().decode(encoding))
    assert found["prompts"] == [prompt] and len(found["tokens"][0]) == 12
    text = sj.load(models["target"]).text
    assert text is not None and "?" not in set(found["texts"][0]) - set(text.decode(found["tokens"][0]))


def test_draft_without_accepted_tokens_is_a_warning(specjax_program, models):
    """A draft of NaN changes no text, and a warning is printed."""
    args = ["generate", "--target", models["target"], "Once", "--temperature", "0", "--max-new-tokens", "40", "--quiet"]
    plain = specjax_program(*args, "--drafter", "plain")
    ran = specjax_program(*args, "--draft", models["broken"])
    assert (ran.code, ran.out) == (0, plain.out) and plain.err == ""
    (line,) = ran.err.splitlines()
    assert "draft tokens was accepted" in line


BAD = {  # arguments, and what the message must contain: the option or the valid name
    "empty prompt": ([""], "prompt 1"),
    "no prompt": ([], "--prompts"),
    "too long": (["x" * 600], "512"),
    "vocabulary": (["x", "--draft", "{other}"], "vocabulary"),
    "gamma 0": (["x", "--gamma", "0"], "--gamma"),
    "negative temperature": (["x", "--temperature", "-1"], "--temperature"),
    "nan temperature": (["x", "--temperature", "nan"], "--temperature"),
    "top-p 0": (["x", "--top-p", "0"], "top_p"),
    "no new tokens": (["x", "--max-new-tokens", "0"], "--max-new-tokens"),
    "many new tokens": (["x", "--max-new-tokens", "99999999999"], "--max-new-tokens"),
    "bias of no token": (["x", "--logit-bias", "-5=1"], "--logit-bias"),
    "bias too large": (["x", "--logit-bias", "5=1e39"], "--logit-bias"),
    "bias": (["x", "--logit-bias", "3"], "--logit-bias"),
    "bias outside": (["x", "--logit-bias", "900=1"], "900"),
    "stop token": (["x", "--stop-token", "-1"], "--stop-token"),
    "stop token outside": (["x", "--stop-token", "900"], "900"),
    "empty stop": (["x", "--stop", ""], "stop"),
    "long stop": (["x", "--stop", "y" * 1025], "stop"),
    "long match": (["x", "--drafter", "ngram:longest=65"], "longest"),
    "unknown drafter": (["x", "--drafter", "ngrm"], "'ngram'"),
    "unknown verifier": (["x", "--verifier", "tokn"], "'token'"),
    "unknown model": (["x", "--target", "bundled/absent"], "bundled"),
    "no model in the folder": (["x", "--target", "{empty}"], "config.json"),
    "unreadable prompts": (["--prompts", "{empty}/absent.txt"], "prompts"),
    "bad JSONL": (["--prompts", "{bad}"], "line 2"),
    "mesh words": (["x", "--mesh", "two by four"], "--mesh"),
    "mesh size": (["x", "--mesh", "3x1"], "devices"),
    "seed": (["x", "--seed", "-1"], "--seed"),
    "output": (["x", "--output", "{empty}/no/file"], "--output"),
    "draft unused": (["x", "--drafter", "ngram", "--draft", "{other}"], "--draft"),
    "draft missing": (["x", "--drafter", "model"], "--draft"),
    "gamma for plain": (["x", "--drafter", "plain", "--gamma", "3"], "--gamma"),
    "unknown option": (["x", "--temprature", "1"], "--temperature"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("nothing_is_computed")
def test_bad_input_is_one_line_and_nothing_is_computed(case, refused, models, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a"}\n{"prompt": \n')
    empty = tmp_path / "empty"
    empty.mkdir()
    args, name = BAD[case]
    filled = [a.format(empty=empty, bad=bad, **models) if a.startswith("{") else a for a in args]
    refused("generate", "--target", models["target"], *filled, name=name)


def test_main_raises_errors_of_bad_input(models, monkeypatch):
    with pytest.raises(ValueError, match="prompt 1"):
        generate_main(["--target", models["target"], ""])


@pytest.mark.slow
def test_temperatures_are_one_for_each_prompt(specjax_program, base):
    args = [*base, "Once", "upon", "--json", "--logit-bias", "15=-inf"]  # programs that other tests compile
    mixed = json.loads(specjax_program(*args, "--temperature", "0", "0.7").out)
    cold = [json.loads(specjax_program(*base, prompt, "--json").out)["tokens"][0] for prompt in ("Once", "upon")]
    assert not any(15 in row for row in cold)  # the bias changes neither
    assert mixed["settings"]["temperature"] == [0, 0.7]
    assert mixed["tokens"][0] == cold[0] and mixed["tokens"][1] != cold[1]
    assert "temperature" in specjax_program(*args, "--temperature", "0", "1", "2").err


def test_token_ids_are_prompts_of_a_model_without_a_tokenizer(specjax_program, models, tmp_path):
    folder, file = tmp_path / "model", tmp_path / "p.jsonl"
    shutil.copytree(models["target"], folder)
    for tokenizer in folder.glob("*token*"):
        tokenizer.unlink()
    file.write_text('{"prompt": [5, 6, 7]}\n')
    args = ["generate", "--target", str(folder), "--drafter", "plain", *NEW, "--temperature", "0"]
    args += ["--prompts", str(file)]
    ran = specjax_program(*args)
    tokens = sj.generate(sj.load(folder), [[5, 6, 7]], max_new_tokens=12, temperature=0).tokens[0]
    assert ran.out.startswith(" ".join(map(str, [5, 6, 7, *tokens])))
    assert "--chat" in specjax_program(*args, "--chat").err
