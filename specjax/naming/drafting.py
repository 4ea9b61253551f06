"""Drafters by name: `--drafter NAME` or `--drafter NAME:key=value,key=value`, here and in every command and preset.

`parse` reads the text and checks what can be checked without a model; `make` builds the drafter from loaded models.
Nothing here imports jax before a drafter is made.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjax import files
from specjax.defaults import LARGEST_TREE
from specjax.naming import grammar, policing
from specjax.naming.grammar import Key, Kind, Spec, one_of, real, whole
from specjax.naming.nested import (
    SIZE,
    read_cache,
    read_shape,
    selection,
    shape_tree,
    write_cache,
    write_shape,
)

if TYPE_CHECKING:
    from specjax.drafters import LoadedDrafter
    from specjax.model import Model

Settings = dict[str, Any]
SHAPE = "3x2"  # of a tree where nothing else is said
ORDER = 2  # of a table that is fitted to a text


def parse(spec: str) -> Spec:
    """The drafter that a text names, with its settings.

    Raises:
      ValueError: a name or a key that there is not (the nearest is suggested, all are listed), a bad value, or settings
        that do not go together; in one line.
    """
    return grammar.parse(spec, DRAFTERS, "drafter")


def label(spec: Spec) -> str:
    """The canonical text: parse(label(s)) == s."""
    return grammar.label(spec, DRAFTERS)


def needs(spec: Spec) -> int:
    """How many draft models it needs."""
    return DRAFTERS[spec.name].models(spec.settings)


def make(spec: Spec, target: "Model", drafts: "Sequence[Model]") -> "LoadedDrafter":
    """The drafter.

    Args:
      drafts: loaded draft models, the largest first; the first `needs(spec)` are used.

    Raises:
      ValueError: fewer draft models than it needs, or models and settings that do not fit together.
    """
    count = needs(spec)
    if len(drafts) < count:
        models = "a draft model" if count == 1 else f"{count} draft models"
        raise ValueError(f"the drafter {label(spec)!r} needs {models}, got {len(drafts)}")
    return DRAFTERS[spec.name].make(target, list(drafts[:count]), **spec.settings)


def takes_gamma(spec: Spec) -> bool:
    """Whether it drafts chains of a length that can be chosen, and nothing else chooses it."""
    return "gamma" in DRAFTERS[spec.name].keys and "policy" not in spec.settings


def with_gamma(spec: Spec, gamma: int) -> Spec:
    """The same with another draft length.

    Raises:
      ValueError: it has none, or a policy says it.
    """
    if "policy" in spec.settings:
        raise ValueError(f"gamma={gamma} beside the policy of {label(spec)!r}, which says how long to draft")
    if not takes_gamma(spec):
        keys = ", ".join(DRAFTERS[spec.name].keys)
        has = f"its settings are {keys}" if keys else "it has no settings"
        raise ValueError(f"gamma has no meaning for the drafter {spec.name!r}: {has}")
    return parse(label(Spec(spec.name, spec.settings | {"gamma": gamma})))


def with_asked_gamma(spec: Spec, gamma: int) -> Spec:
    """The same with the draft length that is asked for beside it.

    Raises:
      ValueError: it names another one, it has none, or a policy says it.
    """
    if spec.settings.get("gamma", gamma) != gamma:
        raise ValueError(f"gamma={gamma} beside {label(spec)!r}: say gamma once")
    return with_gamma(spec, gamma)


def gammas(spec: Spec, asked: Sequence[int]) -> tuple[int, ...]:
    """The draft lengths at which it is measured: its own where it names one, none where it has none to choose."""
    if not takes_gamma(spec):
        return ()
    return (spec.settings["gamma"],) if "gamma" in spec.settings else tuple(asked)


def with_policy(spec: Spec, policy: str) -> Spec:
    """The same, each row drafting as long as a policy says.

    Raises:
      ValueError: no such policy, or a drafter that takes none.
    """
    chosen = policing.parse(policy)
    if "policy" not in DRAFTERS[spec.name].keys:
        having = ", ".join(name for name, kind in DRAFTERS.items() if "policy" in kind.keys)
        raise ValueError(f"the drafter {spec.name!r} takes no policy: the drafter {having} does")
    if "policy" in spec.settings:
        raise ValueError(f"the drafter {label(spec)!r} has a policy: leave one of them out")
    settings = spec.settings | {"policy": chosen}
    return parse(label(Spec(spec.name, settings)))


def check_files(spec: Spec) -> None:
    """Raises ValueError where a file that it names is not there."""
    for key, file in _files(spec, DRAFTERS):
        if not Path(file).is_file():
            raise ValueError(f"the drafter {label(spec)!r}: there is no {key} at {file}")


def _files(spec: Spec, table: grammar.Table) -> Iterator[tuple[str, str]]:
    for key, value in spec.settings.items():
        if isinstance(value, Spec):
            inside = policing.POLICIES if key == "policy" else DRAFTERS if key == "inner" else {}
            if inside:
                yield from _files(value, inside)
        elif table[spec.name].keys[key].names_file:
            yield key, value


# --- how each is made ------------------------------------------------------------------------------------------------


def _plain(target: Any, drafts: Any) -> Any:
    from specjax import drafters

    return drafters.plain()


def _of_drafts(name: str) -> Callable[..., Any]:
    """Made of a draft model alone."""

    def make(target: Any, drafts: Any, **settings: Any) -> Any:
        from specjax import drafters

        return getattr(drafters, name)(*drafts, **settings)

    return make


def _of_target(name: str) -> Callable[..., Any]:
    """Made of the target: self-speculation."""

    def make(target: Any, drafts: Any, **settings: Any) -> Any:
        from specjax import drafters

        return getattr(drafters, name)(target, **settings)

    return make


def _of_both(name: str) -> Callable[..., Any]:
    """Made of a draft model and the target."""

    def make(target: Any, drafts: Any, **settings: Any) -> Any:
        from specjax import drafters

        return getattr(drafters, name)(drafts[0], target, **settings)

    return make


def _model(target: Any, drafts: Any, *, policy: Spec | None = None, budget: int | None = None,
           cache: Spec | None = None, **settings: Any) -> Any:  # fmt: skip
    rule = {} if policy is None else {"policy": policing.make(policy)}
    return _of_drafts("model")(target, [_bounded(drafts[0], budget, cache)], **settings, **rule)


def _bounded(model: Any, budget: int | None, cache: Spec | None) -> Any:
    """The model over a cache that never grows, where a budget says so."""
    from specjax import drafters

    if budget is None:
        return model
    return drafters.bounded(model, budget=budget, **({} if cache is None else {"selection": selection(cache)}))


def _tree(target: Any, drafts: Any, *, shape: str | Spec = SHAPE, siblings: str = "without") -> Any:
    from specjax import drafters

    return drafters.tree(drafts[0], shape_tree(shape), siblings=getattr(drafters.Siblings, SIBLINGS[siblings]))


SIBLINGS = {"without": "WITHOUT_REPLACEMENT", "with": "WITH_REPLACEMENT", "points": "POINTS"}


def _suffix(name: str) -> Callable[..., Any]:
    def make(target: Any, drafts: Any, *, corpus: str | None = None, **settings: Any) -> Any:
        from specjax import drafters

        past = None if corpus is None else _corpus(target, corpus, settings.get("longest", 16))
        return getattr(drafters, name)(past, **settings)

    return make


def _corpus(target: Any, file: str, longest: int) -> Any:
    """A saved corpus, or one of a text file, a document a line."""
    from specjax import drafters

    if file.endswith(".safetensors"):
        return drafters.load_corpus(file)
    return drafters.corpus([_encoder(target)(line) for line in read_lines(file)], depth=max(16, longest))


def _table(target: Any, drafts: Any, *, text: str | None = None, file: str | None = None, order: int = ORDER,
           **settings: Any) -> Any:  # fmt: skip
    from specjax import drafters

    if text is None:
        return drafters.table(file, **settings)
    fitted = drafters.fitting.fit(map(_encoder(target), read_lines(text)), vocab_size=target.vocab_size, order=order)
    return drafters.table(fitted, **settings)


def _cascade(target: Any, drafts: Any, *, inner: Spec | None = None, middle: str = "draft", budget: int | None = None,
             cache: Spec | None = None, **settings: Any) -> Any:  # fmt: skip
    from specjax import drafters

    whole_model, *rest = [target, *drafts] if middle == "target" else drafts
    writer = _bounded(whole_model, budget, cache)
    return drafters.cascade(writer, make(inner or INNER, writer, rest), **settings)


def _small_kv(target: Any, drafts: Any, *, cache: Spec | None = None, **settings: Any) -> Any:
    chosen = {} if cache is None else {"selection": selection(cache)}
    return _of_target("small_kv")(target, drafts, **settings, **chosen)


def _encoder(target: Any) -> Callable[[str], list[int]]:
    if target.text is None:
        raise ValueError(f"{target.name} has no tokenizer, so no text can be read for it: give a .safetensors file")
    return target.text.encode


def read_lines(file: str) -> list[str]:
    """The lines of a text file that hold something.

    Raises:
      ValueError: no such file, no text, or nothing in it.
    """
    lines = [line for _, line in files.filled(files.lines(file))]
    if not lines:
        raise ValueError(f"{file} holds no text")
    return lines


# --- what does not go together ---------------------------------------------------------------------------------------


def _check_model(settings: Settings) -> None:
    _check_budget("model", settings)
    if "gamma" in settings and "policy" in settings:
        raise ValueError("the drafter 'model' is told gamma and a policy, which says how long to draft: leave one out")


def _check_budget(name: str, settings: Settings) -> None:
    if "cache" in settings and "budget" not in settings:
        raise ValueError(f"the drafter {name!r}: cache is of a budget, such as budget=256")


def _check_table(settings: Settings) -> None:
    if ("file" in settings) == ("text" in settings):
        raise ValueError(
            "the drafter 'table' needs file=FITTED.safetensors or text=FILE, and not both: drafters.fitting writes the "
            "first, and a table is fitted to the second"
        )
    if "order" in settings and "file" in settings:
        raise ValueError("the drafter 'table': order is of a table that is fitted to text=FILE, and a file has its own")


def _check_cascade(settings: Settings) -> None:
    _check_budget("cascade", settings)
    if settings.get("middle") == "target" and "budget" not in settings:
        raise ValueError("the drafter 'cascade': middle=target drafts on a small cache, such as budget=256")
    inner = settings.get("inner", INNER).name
    if inner in ("bridge", "reencode"):
        raise ValueError(
            f"the drafter {inner!r} cannot serve in a cascade, since it takes no tokens back: use one that shares the "
            "middle model's tokenizer"
        )


# --- the table -------------------------------------------------------------------------------------------------------


def _read_verifier(text: str) -> str:
    from specjax import verify

    verify.get(text).require_lossless()
    return text


def _gamma(default: int) -> Key:
    return Key("draft tokens a round", whole(1, LARGEST_TREE - 1), default)


INNER = Spec("model", {})  # of a cascade where nothing else is said
CHAIN, COPIES = "a chain drawn from laws", "a chain of copies"
TREE, POINTS = "a tree drawn without replacement", "a tree of point masses"
TREES = "a tree of point masses for each row"
LONGEST, SHORTEST = Key("longest match", whole(1), 16), Key("shortest match", whole(1), 1)
MATCHING = {
    "longest": LONGEST,
    "shortest": SHORTEST,
    "confidence": Key("share of the matches that a token needs", real(0, 1), 0.1),
    "corpus": Key(
        "past outputs: a saved corpus, or text, a document a line", grammar.path, "the request alone", names_file=True
    ),
}
BOUNDED = {
    "budget": Key("slots, where its cache must not grow", whole(1), "it grows"),
    "cache": Key("what such a cache keeps, as for small-kv", read_cache, "sinks", write_cache),
}
SPELLING = {
    "width": Key("tokens in which one of the other vocabulary is told", whole(1), 4),
    "stretch": Key("draft tokens for each of the target's", whole(1), 2),
}


def one(settings: Settings) -> int:
    """Draft models of a drafter that needs one."""
    del settings
    return 1


def _models_of_cascade(settings: Settings) -> int:
    return (settings.get("middle") != "target") + needs(settings.get("inner", INNER))


DRAFTERS: dict[str, Kind] = {
    "model": Kind(
        "a smaller model with the same tokenizer writes ahead",
        _model,
        {
            "gamma": _gamma(5),
            "policy": Key("how long to draft, by row; see --policy help", policing.parse, None, policing.label),
            **BOUNDED,
        },
        check=_check_model, models=one, makes=CHAIN,
    ),
    "tree": Kind(
        "the smaller model writes several tokens side by side: a tree of one shape",
        _tree,
        {
            "shape": Key(
                "children by level (3x2), parents of the nodes (0-0-1), chain:N, (sequoia:accept=0.6/0.2,size=16)",
                read_shape, SHAPE, write_shape,
            ),
            "siblings": Key("how they come about: without or with replacement, points", one_of(*SIBLINGS), "without"),
        },
        bare="shape", models=one, makes=TREE,
    ),
    "dynamic-tree": Kind(
        "the smaller model grows a tree for each row and round, by path probability (EAGLE-2)",
        _of_drafts("dynamic_tree"),
        {
            "size": Key("nodes that the target reads, the root included", whole(2, LARGEST_TREE), 16),
            "depth": Key("levels, each a call of the draft", whole(1), 4),
            "width": Key("nodes of a level, and tokens that each proposes", whole(1), 4),
        },
        models=one, makes=TREES,
    ),
    "ngram": Kind(
        "copies what followed the same words before (prompt lookup)",
        _of_drafts("ngram"),
        {"gamma": _gamma(8), "longest": LONGEST._replace(default=3), "shortest": SHORTEST},
        makes=COPIES,
    ),
    "suffix": Kind(
        "copies what most often followed the longest match, in the text and in past outputs",
        _suffix("suffix"),
        {"gamma": _gamma(8), **MATCHING},
        makes=COPIES,
    ),
    "suffix-tree": Kind(
        "the same, several continuations side by side",
        _suffix("suffix_tree"),
        {"size": SIZE, "depth": Key("tokens of a continuation", whole(1), 8), **MATCHING},
        makes=TREES,
    ),
    "lookahead": Kind(
        "the target guesses for itself by Jacobi iteration",
        _of_drafts("lookahead"),
        {
            "window": Key("W, columns of guesses", whole(1, LARGEST_TREE), 7),
            "ngram": Key("N, tokens of an n-gram", whole(2, LARGEST_TREE), 5),
            "guesses": Key("G, n-grams tried in a round", whole(1, LARGEST_TREE), 7),
        },
        makes=POINTS,
    ),
    "table": Kind(
        "a unigram, bigram or n-gram table, fitted to text or to the target's own samples",
        _table,
        {
            "gamma": _gamma(5),
            "file": Key("a fitted table", grammar.path, names_file=True),
            "text": Key("a text to fit one to, a document a line", grammar.path, names_file=True),
            "order": Key("of the text's table: 1 unigram, 2 bigram, ...", whole(1, 16), ORDER),
        },
        bare="file", check=_check_table, makes=CHAIN,
    ),
    "cascade": Kind(
        "a smaller model that is drafted for itself, by a still smaller one or any other drafter",
        _cascade,
        {
            "gamma": _gamma(6),
            "inner": Key("the drafter of the middle model", parse, "model", label),
            "verifier": Key("of the inner rounds", _read_verifier, "the one that suits"),
            "middle": Key("what drafts: a draft model, or the target on a budget", one_of("draft", "target"), "draft"),
            **BOUNDED,
        },
        check=_check_cascade, models=_models_of_cascade, makes=CHAIN,
    ),
    "small-kv": Kind(
        "the target itself over few of its keys and values: long texts, large batches",
        _small_kv,
        {
            "gamma": _gamma(4),
            "budget": Key("slots that a draft step reads", whole(1), 256),
            "cache": Key(
                "what is kept: sinks, snapkv, retrieval, or (snapkv:window=32,every=64)", read_cache, "sinks",
                write_cache,
            ),
        },
        makes=CHAIN,
    ),
    "layer-skip": Kind(
        "some of the target's layers, over its weights and cache",
        _of_target("layer_skip"),
        {
            "gamma": _gamma(4),
            "layers": Key(
                "those that draft, such as 0-2+5", grammar.read_layers, "half, evenly spread", grammar.write_layers
            ),
        },
        makes=CHAIN,
    ),
    "quantized": Kind(
        "the target with int8 weights, over its cache",
        _of_target("quantized"),
        {"gamma": _gamma(4)},
        makes=CHAIN,
    ),
    "bridge": Kind(
        "a smaller model with another tokenizer: its law over the shared tokens (TLI)",
        _of_both("bridge"),
        {"gamma": _gamma(5), **SPELLING},
        models=one, makes=CHAIN,
    ),
    "reencode": Kind(
        "a smaller model with another tokenizer: its text in the target's tokens",
        _of_both("reencode"),
        {"gamma": _gamma(5), **SPELLING},
        models=one, makes=COPIES,
    ),
    "plain": Kind("no draft: the baseline", _plain),
}  # fmt: skip
