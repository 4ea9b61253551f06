"""Writes training text with a small chat model: stories for children and simple prose, decoded by specjax. Resumable.

python configs/train/write_stories.py --model SmolLM2-135M-Instruct.Q4_1.gguf --out stories.jsonl --tokens 8_000_000
python configs/train/write_stories.py --out stories.jsonl --filter stories.txt
python configs/train/write_stories.py --out openings.txt --openings 16000 --seed 1
python configs/train/write_stories.py --out prompts.txt --openings 64 --seed 2 --exclude openings.txt

The first command appends one JSON object per line: the user message `prompt`, the whole `text`, its row number `seed`,
the number of new tokens `tokens`, and whether the model `ended` the text itself. It stops once the texts that pass the
filter have the wanted number of tokens. Run it again to continue after Ctrl-C, SIGTERM or a crash: row i depends on
--seed, --rows and i alone, so a resumed run writes the same file as an uninterrupted one.

The second command writes the clean texts, separated by `<|endofbook|>` lines as `specjax train lm` reads them, and
prints how many were dropped for each reason.

The last two write first words of texts, one line each: prompts for a model that was trained on the texts. `--exclude`
leaves out those of another file: prompts for evaluation are none that a draft has learned from.

Prompts follow TinyStories (Eldan and Li, 2023): a hero, three random words, a setting and features of the plot. The
first words of the answer are given, which keeps the model from addressing the reader. Every fifth prompt or so asks for
simple prose instead: a description, an explanation, a letter, a fable, a dialogue.

Measured with SmolLM2-135M-Instruct on 2 idle CPU cores, 64 rows in float32 with an int8 cache: one process on both
cores keeps 255 tokens per second, two processes of one core each (`taskset`, other seeds and files) 277 together: eight
hours for 8 million. `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` saves 6 % on Linux. On an H200, six processes of 1,024 rows
in bfloat16 (seeds 11 to 16), under NVIDIA's multi-process service, wrote 8 million in 2.5 minutes. The filter
drops 7 % of the texts.
"""

import collections
import itertools
import json
import os
import random
import re
import signal
import time
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tyro

NEW_TOKENS = 256  # longer texts drift; a row that has ended waits for the longest of its batch
TEMPERATURE, TOP_P = 0.55, 0.95  # at 0.8 a model of this size changes the subject within a paragraph,
REPETITION_PENALTY = 1.08  # and without a penalty half of its texts end in a loop
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
PROSE = 0.22  # share of prompts that ask for something other than a story


def _items(text: str, mark: str | None = None) -> list[str]:
    return [" ".join(item.split()) for item in text.split(mark)]


GIRLS = _items(
    """
    Lily Anna Mia Lucy Ella Sara Emma Nina Rose Clara Amy Zoe Molly Ruby Alice Daisy Grace Ivy Julia Kate Maya Nora
    Olive Penny Sophie Tess Violet Wendy Amina Bella Carla Dora Eva Fiona Hana Iris Jenny Laura Meena Nelly Pia Sunny
    """
)
BOYS = _items(
    """
    Tom Ben Sam Max Jack Tim Leo Peter Oscar Finn Paul Hugo Luke Noah Adam Eric Felix George Henry Ian Jacob Kevin
    Liam Mark Nick Oliver Ravi Simon Theo Victor Will Omar Kofi Juan Marco Ali Dan Joe Ken Rob Toby Charlie
    """
)
WOMEN = _items("girl | queen | old woman | princess | fairy | witch | mermaid | grandmother | little girl", "|")
MEN = _items("boy | king | old man | fisherman | prince | wizard | knight | grandfather | little boy", "|")
ANIMALS = _items(
    """
    dog cat rabbit fox bear mouse owl frog duck hen horse cow pig sheep goat donkey squirrel hedgehog turtle snail
    bee ant butterfly spider crow swan goose wolf deer lion tiger elephant monkey giraffe zebra hippo crocodile
    parrot penguin whale dolphin seal crab fish octopus kangaroo koala camel bat mole beaver otter rooster pony
    puppy kitten lamb chick robin sparrow ladybug caterpillar dragon lizard worm
    """
)
PEOPLE = _items(
    """
    farmer | baker | teacher | sailor | gardener | tailor | doctor | painter | miller | shepherd | giant | robot |
    snowman | cook | pilot | builder | singer | toymaker
    """,
    "|",
)
TRAITS = _items(
    """
    little brave shy kind happy sad lonely proud gentle clever silly lazy busy careful clumsy curious patient greedy
    honest jealous lucky messy polite stubborn grumpy cheerful young old small
    """
)
NOUNS = _items(
    """
    ball book cake kite boat hat coat spoon cup key door window lamp box bag bed chair table tree flower apple pear
    banana carrot soup bread cheese egg cookie candy drum bell flute toy doll train car truck bike wagon rope ladder
    bridge river lake sea hill cloud rain snow sun moon star stone shell feather nest leaf seed garden gate wall
    tower castle cave mirror clock button ribbon blanket pillow shoe sock glove scarf umbrella basket bucket broom
    brush pencil paper letter picture map coin ring crown treasure candle fire stick mud sand puddle shadow song
    dream wish secret party present balloon bubble swing slide tent bench fence well mushroom pumpkin berry honey
    milk tea pie jam rock wheel paint puzzle whistle rainbow wind hole island path sled pot plate bottle sponge
    """
)
VERBS = _items(
    """
    run jump climb swim fly hide find lose share help hug laugh cry sing dance paint draw build break fix carry push
    pull throw catch kick roll dig plant grow pick cook bake eat drink taste smell listen whisper shout call wait
    wake sleep dream wish hope want need like love miss give take borrow keep bring send buy sell open close lock
    knock wash clean sweep fold sew tie cut read write count learn teach ask answer explain promise forgive thank
    visit travel sail ride drive walk follow chase escape rescue protect watch look stare notice search explore
    discover splash float sink shine blow melt burn shake spin slip fall wave nod smile point clap hurry rest sit
    stand lean crawl sneak
    """
)
ADJECTIVES = _items(
    """
    big small tall short long old new young red blue green yellow bright dark warm cold hot wet dry soft hard loud
    quiet fast slow strong weak brave shy kind mean happy sad angry tired hungry thirsty sleepy lonely proud gentle
    clever silly funny strange lazy busy careful careless clumsy curious patient greedy honest jealous lucky messy
    neat polite rude scared stubborn surprised worried grumpy cheerful calm wild tiny huge heavy light round flat
    smooth rough shiny dirty clean empty full broken sweet sour salty spicy fresh rich poor pretty ugly magic secret
    special beautiful perfect deep
    """
)
SETTINGS = _items(
    """
    in a garden | at the beach | in the forest | on a farm | at school | in the kitchen | at the park | on a hill |
    by a river | in a small village | in a big city | on a train | on a boat | at the zoo | in a castle | in the
    snow | on a rainy day | at night | in a toy shop | at a birthday party | in the library | on an island | in a
    cave | at the market | in an old house | at the lake | in a tree house | on a picnic | in the desert | at
    grandma's house | in the mountains | at the doctor | in a bakery | on the way to school | in a barn | under a
    bridge | at a fair | in the bath | at bedtime | in autumn | in spring | on a hot summer day
    """,
    "|",
)
FEATURES = _items(
    """
    The story has a dialogue. | The story has a happy ending. | The story has a sad ending. | The story has a
    surprise at the end. | Something goes wrong, and a friend helps. | The story teaches a lesson. | Two friends
    have a fight and make up. | Someone tells a lie and says sorry. | Someone learns to share. | Someone is afraid
    at first. | Something is lost and found again. | A stranger turns out to be kind. | The hero makes a mistake. |
    There is a contest. | Someone keeps a promise. | The story has a funny moment. | A small thing turns out to be
    important. | Someone does not listen and regrets it. | Someone makes a new friend. | A storm comes.
    """,
    "|",
)
THINGS = _items(
    """
    why it rains | why the sky is dark at night | how a seed grows | how bees make honey | why we sleep | how bread
    is made | what the moon is | why leaves fall | how birds fly | why we brush our teeth | how a boat floats | what
    a shadow is | where milk comes from | why fish can swim | how to cross the road | what snow is | why we say
    thank you | how to make soup | what a doctor does | why the sun is warm | how to plant a tree | what a farmer
    does | how a clock works | why we wear coats | what a library is | how to make a friend | why cats purr | how a
    caterpillar becomes a butterfly | what a map is for | how to take care of a pet | why we share | what a bridge
    is for | how to fly a kite | what a baker does | why the wind blows | what a rainbow is
    """,
    "|",
)

STORY_OPENINGS = (
    "Once upon a time, there was a {trait} {hero} named {name}.",
    "Once upon a time, a {trait} {hero} named {name} lived",
    "One day, {name} the {hero}",
    "One morning, a {hero} named {name}",
    "{name} was a {trait} {hero} who",
    "There was once a {trait} {hero} called {name}.",
    "{name} the {hero} had a {noun}.",
    "Long ago, a {trait} {hero}",
    "{name} wanted to {verb}.",
    "It was a {weather} day.",
    "{name} and {other} were friends.",
    '"Look at the {noun}!" said {name}.',
)
WEATHER = _items("sunny rainy cold windy warm snowy foggy hot stormy cloudy")


class Prompt(NamedTuple):
    """A user message, and the first words of the answer."""

    message: str
    opening: str


# --- prompts ---------------------------------------------------------------------------------------------------------


def compose(seed: int, row: int) -> Prompt:
    """The prompt of a row: a function of the seed and the row's number."""
    rng = random.Random(f"{seed}/{row}")  # seeded by a hash of the text, the same in every version of Python
    animal, second = rng.sample(ANIMALS, 2)
    names, heroes = rng.choice(((GIRLS, WOMEN), (BOYS, MEN)))
    words = {
        "name": rng.choice(names), "hero": rng.choice((animal, rng.choice(heroes), rng.choice(PEOPLE))),
        "animal": animal, "second": second, "trait": rng.choice(TRAITS), "noun": rng.choice(NOUNS),
        "verb": rng.choice(VERBS), "adjective": rng.choice(ADJECTIVES), "weather": rng.choice(WEATHER),
        "setting": rng.choice(SETTINGS), "why": rng.choice(THINGS),
    }  # fmt: skip
    words["other"] = rng.choice([name for name in GIRLS + BOYS if name != words["name"]])
    message, opening = rng.choice(PROSE_FORMS) if rng.random() < PROSE else _story(rng)
    return Prompt(*(_articles(form.format(**words)) for form in (message, opening)))


PROSE_FORMS = (
    ("Describe a {animal} to a small child.", "A {animal} is"),
    ("Describe a {adjective} {noun} in simple words.", "The {noun} is"),
    ("Explain to a small child {why}.", "Let me tell you {why}."),
    ("Explain to a small child {why}.", "Do you know {why}?"),
    ("Write a short letter from {name} to {other} about a {noun}.", "Dear {other},\n\nThank you for the {noun}."),
    ("Write a short letter from {name} to {other} about a {noun}.", "Dear {other},\n\nToday"),
    ("Write a short fable about a {animal} and a {second}, with a lesson.", "One day, a {animal} met a {second}."),
    ("Write a short fable about a {trait} {animal}, with a lesson.", "There was once a {trait} {animal} who"),
    ("Write a talk between {name} and {other} about a {noun}.", '"What is that?" asked {name}.'),
    ("Write a talk between {name} and {other} {setting}.", '"I have an idea," said {name} to {other}.'),
    ("Describe a {weather} day {setting}.", "It was a {weather} day"),
    ("Tell what {name} did today {setting}.", "Today, {name}"),
    ("Write a page of the diary of a child who got a {noun}.", "Today I got a {noun}"),
    ("Tell a small child about the life of a {animal} in a year.", "In spring, the {animal}"),
)


def _story(rng: random.Random) -> tuple[str, str]:
    """Forms of a message and an opening."""
    about = rng.choice(("a {hero} named {name}", "{name} the {hero}", "a {trait} {hero} named {name}"))
    more = rng.choice(("", "", " and a {noun}", " and a {adjective} {noun}"))
    parts = ('Use the words "{noun}" and "{verb}".', "It happens {setting}.", rng.choice(FEATURES))
    chosen = rng.sample(parts, rng.choice((0, 1, 1, 2)))
    return " ".join([f"Write a short story for children about {about}{more}.", *chosen]), rng.choice(STORY_OPENINGS)


def _articles(text: str) -> str:
    """`an` before a vowel."""
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


# --- decoding --------------------------------------------------------------------------------------------------------


def write(
    model: Any,
    out: Path,
    *,
    tokens: int,
    rows: int,
    seed: int,
    new_tokens: int = NEW_TOKENS,
    stopped: Sequence[int] = (),
    report: Callable[[str], Any] = print,
) -> None:
    """Decodes batches until the texts that pass the filter have `tokens` tokens, or `stopped` holds a signal.

    Raises:
      ValueError: `out` was written with another seed.
    """
    done, kept = recover(out, seed)
    began, before = time.monotonic(), kept
    with out.open("ab") as file:
        while kept < tokens and not stopped:
            batch = range(done // rows * rows, done // rows * rows + rows)
            records = decode(model, seed, batch, new_tokens, stopped)
            if records is None:
                break
            records = records[done - batch[0] :]  # the first lines of the batch may be in the file
            file.write("".join(json.dumps(record) + "\n" for record in records).encode())
            file.flush()
            os.fsync(file.fileno())
            done += len(records)
            kept += sum(record["tokens"] for record in records if not reason(clean(record)))
            rate = (kept - before) / (time.monotonic() - began)
            left = f"{(tokens - kept) / rate / 3600:.1f} h left" if rate else ""
            report(f"{done} texts, {kept:,} of {tokens:,} tokens kept, {rate:.0f} tokens per second, {left}")
    report("stopped: run the command again to continue" if stopped else "done")


def recover(out: Path, seed: int) -> tuple[int, int]:
    """Rows in the file, and the tokens of those that pass the filter. Removes a partial last line.

    Raises:
      ValueError: the file was written with another seed.
    """
    if not out.exists():
        return 0, 0
    with out.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    count = kept = 0
    for record in read(out):
        if record["seed"] != count or record["prompt"] != compose(seed, count).message:
            raise ValueError(f"{out}, line {count + 1}: not row {count} of --seed {seed}; pass another --out")
        count += 1
        kept += 0 if reason(clean(record)) else record["tokens"]
    return count, kept


def decode(model: Any, seed: int, batch: range, new_tokens: int, stopped: Sequence[int]) -> list[dict] | None:
    """Records of the rows in `batch`; None once `stopped` holds a signal."""
    import specjax as sj
    from specjax.bench.tasks import CHATS, fill

    prompts = [compose(seed, row) for row in batch]
    rounds = sj.stream(
        model,
        [SYSTEM + fill(CHATS["chatml"], message=prompt.message) + prompt.opening for prompt in prompts],
        max_new_tokens=new_tokens,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        repetition_penalty=REPETITION_PENALTY,
        seed=seed,
        rows=list(batch),
    )
    for _ in rounds:
        if stopped:
            return None
    result = rounds.result()
    return [
        {
            "prompt": prompt.message,
            "text": prompt.opening + text,
            "seed": row,
            "tokens": len(tokens),
            "ended": ended == "eos",
        }
        for row, prompt, text, tokens, ended in zip(
            batch, prompts, result.texts or (), result.tokens, result.stop_reasons, strict=True
        )
    ]


# --- filter ----------------------------------------------------------------------------------------------------------

PLAIN = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": " - ", "\u2026": "...",
    "\u00a0": " ",
})  # fmt: skip
ASSISTANT = re.compile(
    r"\b(as an ai|ai assistant|language model|sure!|certainly!|of course!? here|here is|here's a|here are|i hope this"
    r"|this (short )?(story|fable|letter|poem|description)|the (story|fable|word)s? \"|small child(ren)? can"
    r"|in this (short )?(story|fable)|simple words|short sentences|\[.*\]|smollm|hugging face)",
    re.IGNORECASE,
)
MARKUP = re.compile(r"\*\*|^\s*(#|\d+[.)] |[-*] |\w+:\s*$)|[<>{}|\\`_]|https?:", re.MULTILINE)
SHORTEST, LONGEST_PARAGRAPH = 45, 1500  # words, characters
NGRAM, SHINGLE = 4, 8  # words
REPEATED = 0.15  # largest share of n-grams that occur earlier in the text
SEEN = 0.2  # largest share of shingles that occur in earlier texts


def clean(record: dict) -> str:
    """The text in plain ASCII punctuation, cut back to its last full sentence."""
    text = unicodedata.normalize("NFKD", record["text"].translate(PLAIN))
    text = "".join(char for char in text if not unicodedata.combining(char))
    text = re.sub(r"[ \t]+", " ", text)
    text = re.sub(r" ?\n\s*", "\n\n", text).strip()
    if not record["ended"]:
        ends = [found.end() for found in re.finditer(r'[.!?]"?(?=\s)', text)]
        text = text[: ends[-1]] if ends else ""
    return text


def reason(text: str) -> str | None:
    """Why a clean text is dropped; None if it is kept."""
    words = text.lower().split()
    if len(words) < SHORTEST:
        return "short"
    if not text.isascii():
        return "not ASCII"
    if MARKUP.search(text) or max(map(len, text.split("\n\n"))) > LONGEST_PARAGRAPH:
        return "markup"
    if ASSISTANT.search(text):
        return "assistant phrase"
    if not re.search(r"([.!?][\"')]?|\n\n[A-Z][a-z]+)$", text):  # a sentence, or the signature of a letter
        return "unfinished"
    grams = [tuple(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1)]
    if 1 - len(set(grams)) / len(grams) > REPEATED:
        return "repetition"
    return None


def near_duplicate(text: str, seen: set[int]) -> bool:
    """Whether earlier texts hold much of this one. Adds its shingles to `seen`: a quarter, chosen by their hash."""
    words = re.findall(r"[a-z']+", text.lower())
    every = (zlib.crc32(" ".join(words[at : at + SHINGLE]).encode()) for at in range(len(words) - SHINGLE + 1))
    shingles = {value for value in every if value % 4 == 0}
    known = len(shingles & seen)
    seen |= shingles
    return known > SEEN * len(shingles)


def filtered(records: Iterable[dict], counts: collections.Counter) -> Iterator[str]:
    """Clean texts; counts the dropped ones by reason."""
    seen: set[int] = set()
    for record in records:
        text = clean(record)
        why = reason(text) or ("near-duplicate" if near_duplicate(text, seen) else "kept")
        counts[why] += 1
        counts["tokens kept"] += record["tokens"] if why == "kept" else 0
        if why == "kept":
            yield text


def read(file: Path) -> Iterator[dict]:
    """Records of the whole lines of a file: another process may be writing the last one."""
    with file.open() as lines:
        yield from (json.loads(line) for line in lines if line.endswith("\n"))


def main(
    out: Path,
    model: str = "SmolLM2-135M-Instruct.Q4_1.gguf",
    tokens: int = 8_000_000,
    rows: int = 64,
    seed: int = 0,
    dtype: str = "float32",
    filter: Path | None = None,
    openings: int = 0,
    exclude: Path | None = None,
) -> None:
    """Write training text with a small chat model, filter it, or write the first words of more.

    Args:
      out: JSONL file, appended to.
      model: a chat model with the ChatML template.
      tokens: number of tokens of texts that pass the filter.
      rows: texts decoded together.
      seed: of prompts and samples.
      dtype: of the weights.
      filter: write the clean texts of `out` to this file, and decode nothing.
      openings: write so many openings to `out`, and decode nothing.
      exclude: a file of openings that are not written.
    """
    if openings:
        from specjax import files

        held = set(exclude.read_text().splitlines()) if exclude else set()
        every = (compose(seed, row).opening for row in itertools.count())
        lines = (line for line in every if "\n" not in line and line not in held)
        files.write_text(out, "".join(line + "\n" for line in itertools.islice(lines, openings)))
        return
    if filter is not None:
        counts: collections.Counter = collections.Counter()
        with filter.open("w") as file:
            for number, text in enumerate(filtered(read(out), counts)):
                file.write(("<|endofbook|>\n" if number else "") + text + "\n")
        for name, count in counts.most_common():
            print(f"{count:>10,}  {name}")
        return
    import jax

    import specjax as sj

    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stopped.append(number))
    sj.enable_compilation_cache()
    sj.limit_programs(smallest_cache=NEW_TOKENS + 96)  # a cache of no more slots than prompt and text need
    cache = "int8" if jax.default_backend() == "cpu" else None  # a smaller cache pays where memory limits the rows
    write(
        sj.load(model, dtype=dtype, cache_dtype=cache), out, tokens=tokens, rows=rows, seed=seed, stopped=stopped,
        report=lambda line: print(time.strftime("%m-%d %H:%M"), line, flush=True),
    )  # fmt: skip


if __name__ == "__main__":
    tyro.cli(main)
