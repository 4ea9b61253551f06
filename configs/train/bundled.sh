#!/bin/sh
# Trains the bundled models: DATA holds books.txt.xz, stories.jsonl.gz and deu.txt.gz, RUNS gets one folder per model.
# Every command can be interrupted (Ctrl-C, SIGTERM) and continues when it is run again.
# Results and training curves: specjax/bundled/README.md.
set -eu
: "${DATA:?folder with books.txt.xz, stories.jsonl.gz and deu.txt.gz}" "${RUNS:=runs}"
HERE=$(dirname "$0")

english() {
    specjax train lm --length 256 --rate 4e-3 --warmup 60 --muon "$@"
}

# Drafts learn from what the target writes after first words of stories, and from the stories.
english_draft() {
    english --rows 8 --distill 1 --divergence ce-tv "$@"
}

# English to German, with T5's prefix and without.
german() {
    specjax train t5 --data "$DATA/deu.txt.gz" --prefix "translate English to German: " --rate 4e-3 --warmup 60 --muon \
        --tokens 4096 --widths 10 13 16 20 28 40 --every 250 "$@"
}

# Drafts learn from what the target writes.
german_draft() {
    german --tokenizer "$RUNS/t5-target/tokenizer" --teacher "$RUNS/t5-target/model" "$@"
}

# Stories that write_stories.py has written, picture books, and children's books of plain language.
LONG='Author: (Edgar Rice|Mark Twain|Jules|H.G|Jack London|Arthur Conan|G.K|Rudyard|P.G|Robert Louis|Oscar|James Stephens|Booth|Jerome|Horatio|Lafcadio|Beatrix|Lucy Maud|Louisa May|Johann David)'
english --run "$RUNS/first/opt-target" --data "$HERE/stories.txt.xz" "$DATA/stories.jsonl.gz" "$DATA/books.txt.xz" \
    --repeat 8 3 1 --exclude "$LONG" --vocab-size 4096 --width 336 --layers 8 --heads 7 --steps 1900 --decay 650

python "$HERE/write_stories.py" --out "$RUNS/first/openings.txt" --openings 4000 --seed 1
specjax train answers --target "$RUNS/first/opt-target/model" --prompts "$RUNS/first/openings.txt" \
    --out "$RUNS/first/samples.jsonl" --max-new-tokens 240 --rows 64
english_draft --run "$RUNS/first/opt-tiny" --data "$RUNS/first/samples.jsonl" "$HERE/stories.txt.xz" \
    --tokenizer "$RUNS/first/opt-target/tokenizer" --teacher "$RUNS/first/opt-target/model" \
    --width 48 --layers 1 --heads 3 --steps 2000 --decay 700

# Second stage: all that write_stories.py has written; then drafts on texts of that target.
english --run "$RUNS/opt-target" --start "$RUNS/first/opt-target/model" --rows 32 --half --steps 1800 \
    --data "$HERE/stories.txt.xz" "$HERE/more_stories.txt.xz" "$DATA/stories.jsonl.gz" "$DATA/books.txt.xz" \
    --repeat 3 3 2 1 --exclude "$LONG"

python "$HERE/write_stories.py" --out "$RUNS/openings.txt" --openings 16000 --seed 1
specjax train answers --target "$RUNS/opt-target/model" --prompts "$RUNS/openings.txt" --most 4824 \
    --out "$RUNS/stories.jsonl" --max-new-tokens 240 --rows 64
second_draft() {
    english_draft --data "$RUNS/stories.jsonl" "$HERE/stories.txt.xz" "$HERE/more_stories.txt.xz" --repeat 4 1 1 \
        --teacher "$RUNS/opt-target/model" "$@"
}
second_draft --run "$RUNS/opt-draft" --tokenizer "$RUNS/opt-target/tokenizer" --half \
    --width 128 --layers 2 --heads 4 --steps 5000 --decay 2000
second_draft --run "$RUNS/opt-tiny" --start "$RUNS/first/opt-tiny/model" --steps 900 --decay 500

german --run "$RUNS/t5-target" --width 320 --encoder-layers 3 --decoder-layers 6 --heads 8 --head-width 40 \
    --steps 4200 --decay 1100
german_draft --run "$RUNS/t5-draft" --own-outputs 80000 --steps 2950 --decay 200 \
    --width 96 --encoder-layers 3 --decoder-layers 1 --heads 3 --head-width 32
german_draft --run "$RUNS/t5-middle" --own-outputs 140000 --steps 2400 --decay 300 \
    --width 160 --encoder-layers 4 --decoder-layers 1 --heads 4 --head-width 40

# Acceptance and speed of the pairs on first words and sentences held out, BLEU and chrF.
python "$HERE/write_stories.py" --out "$RUNS/prompts.txt" --openings 64 --seed 2 --exclude "$RUNS/openings.txt"
for draft in opt-draft opt-tiny; do
    specjax sweep --target "$RUNS/opt-target/model" --drafts "$RUNS/$draft/model" --drafters model --gammas 3 5 \
        --file "$RUNS/prompts.txt" --count 64 --timed 8 --repeats 5 \
        --json "$RUNS/pairs.jsonl" --markdown "$RUNS/$draft.md"
done
specjax sweep --target "$RUNS/opt-draft/model" --drafts "$RUNS/opt-tiny/model" --drafters model --gammas 3 \
    --file "$RUNS/prompts.txt" --count 64 --timed 8 --repeats 5 \
    --json "$RUNS/pairs.jsonl" --markdown "$RUNS/small.md"
for draft in t5-draft t5-middle; do
    specjax sweep --target "$RUNS/t5-target/model" --drafts "$RUNS/$draft/model" --drafters model --gammas 3 5 \
        --file "$RUNS/t5-target/held_out.tsv" --count 64 --timed 8 --repeats 5 --scores \
        --json "$RUNS/pairs.jsonl" --markdown "$RUNS/$draft.md"
done
for style in prefix as-is; do
    specjax sweep --target "$RUNS/t5-target/model" --drafts "$RUNS/t5-draft/model" --drafters model --gammas 3 \
        --file "$RUNS/t5-target/held_out.tsv" --count 3069 --batch 64 --style "$style" --temperatures 0 \
        --timed 1 --repeats 1 --scores --json "$RUNS/scores.jsonl"
done
