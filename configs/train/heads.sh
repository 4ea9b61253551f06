#!/bin/sh
# Trains the heads of the package. DATA holds deu.txt.gz, and RUNS the models and files of bundled.sh. Every command can
# be interrupted (Ctrl-C, SIGTERM) and continues when it is run again. Results: specjax/bundled/README.md.
set -eu
: "${DATA:?folder with deu.txt.gz}" "${RUNS:=runs}"

# Medusa for German: what the target writes for the English sentences that it was trained on.
gzip -dc "$DATA/deu.txt.gz" | awk -F'\t' '
    NR == FNR { held[$1]; next }
    !($1 in held) && !($1 in seen) { seen[$1]; print $1 }' "$RUNS/t5-target/held_out.tsv" - > "$RUNS/german.txt"
specjax train answers --target "$RUNS/t5-target/model" --prompts "$RUNS/german.txt" --task translation --style auto \
    --most 60000 --max-new-tokens 48 --rows 64 --out "$RUNS/german.jsonl"
specjax train head medusa --target "$RUNS/t5-target/model" --data "$RUNS/german.jsonl" --out "$RUNS/t5-target-medusa" \
    --unroll 4 --tokens 4096 --widths 8 16 32 64 --steps 1500 --rate 3e-3
