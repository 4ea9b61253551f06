#!/bin/sh
# Trains the bundled models: DATA holds books.txt.xz, stories.jsonl.gz and deu.txt.gz, RUNS gets one folder per model.
# Every command can be interrupted (Ctrl-C, SIGTERM) and continues when it is run again.
# Results and training curves: specjax/bundled/README.md.
set -eu
: "${DATA:?folder with books.txt.xz, stories.jsonl.gz and deu.txt.gz}" "${RUNS:=runs}"

# Children's books of plain language, and picture books three times.
ADULT='Author: (Edgar Rice|Mark Twain|Jules|H.G|Jack London|Arthur Conan|G.K|Rudyard|P.G|Robert Louis|Oscar|James Stephens|Booth|Jerome|Horatio|Lafcadio|Beatrix)'

english() {
    specjax train lm --data "$DATA/books.txt.xz" "$DATA/stories.jsonl.gz" --repeat 1 3 --exclude "$ADULT" \
        --held-out 0.04 --rate 4e-3 --warmup 60 --muon --half "$@"
}

german() {
    specjax train t5 --data "$DATA/deu.txt.gz" --rate 4e-3 --warmup 60 --muon --half "$@"
}

english --run "$RUNS/opt-target" --width 320 --layers 8 --heads 5 --steps 1500
english --run "$RUNS/opt-draft" --tokenizer "$RUNS/opt-target/tokenizer" --teacher "$RUNS/opt-target/model" \
    --width 80 --layers 1 --heads 2 --rows 8 --steps 1700
english --run "$RUNS/opt-tiny" --tokenizer "$RUNS/opt-target/tokenizer" --teacher "$RUNS/opt-target/model" \
    --width 48 --layers 1 --heads 3 --rows 8 --steps 2400
german --run "$RUNS/t5-target" --encoder-layers 4 --decoder-layers 4 --steps 2300
german --run "$RUNS/t5-draft" --tokenizer "$RUNS/t5-target/tokenizer" --teacher "$RUNS/t5-target/model" \
    --own-outputs 60000 --width 80 --encoder-layers 2 --decoder-layers 1 --heads 2 --head-width 40 --steps 4000

# Acceptance of the pairs on held-out text, speed on this machine, BLEU and chrF.
for draft in opt-draft opt-tiny; do
    specjax bench pair --target "$RUNS/opt-target/model" --draft "$RUNS/$draft/model" --dtype float32 \
        --prompts "$RUNS/opt-target/prompts.txt" --gamma 3 5 --json "$RUNS/pairs.jsonl" --markdown "$RUNS/$draft.md"
done
specjax bench pair --target "$RUNS/opt-draft/model" --draft "$RUNS/opt-tiny/model" --dtype float32 \
    --prompts "$RUNS/opt-target/prompts.txt" --gamma 3 --json "$RUNS/pairs.jsonl" --markdown "$RUNS/small.md"
specjax bench pair --target "$RUNS/t5-target/model" --draft "$RUNS/t5-draft/model" --dtype float32 \
    --prompts "$RUNS/t5-target/held_out.tsv" --gamma 3 5 --json "$RUNS/pairs.jsonl" --markdown "$RUNS/t5.md"
