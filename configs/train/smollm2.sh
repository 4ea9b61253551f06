#!/bin/sh
# Trains an EAGLE-3 head for SmolLM2-135M-Instruct on answers that it wrote: CHAT is the model, DATA the folder of data
# sets that head_prompts.py names, and RUNS gets the files. messages.jsonl.xz holds messages that the model wrote itself,
# by the commands of head_prompts.py.
# Every command can be interrupted (Ctrl-C, SIGTERM) and continues when it is run again.
set -eu
: "${CHAT:=HuggingFaceTB/SmolLM2-135M-Instruct}" "${DATA:?folder of data sets}" "${RUNS:=runs}"
HERE=$(dirname "$0")
mkdir -p "$RUNS"

python "$HERE/head_prompts.py" others --data "$DATA" --out "$RUNS/others.jsonl"
specjax train answers --target "$CHAT" --prompts "$RUNS/others.jsonl" "$HERE/messages.jsonl.xz" --task chat \
    --out "$RUNS/chats.jsonl" --rows 64 --most 4000
specjax train head eagle3 --target "$CHAT" --data "$RUNS/chats.jsonl" --out "$RUNS/smollm2-eagle3" \
    --features "$RUNS/features" --mlp-width 1536 --draft-vocab 6144 --head-dtype bfloat16 --unroll 5 --kept 0.5 \
    --tokens 1024 --widths 96 192 328 --steps 8000 --decay 2500 --warmup 60 --rate 4e-3 --muon

# Acceptance by position, tokens per target pass, and speed, on questions of MT-bench, GSM8K's test set and HumanEval.
specjax reproduce heads --head-target "$CHAT" --heads eagle3="$RUNS/smollm2-eagle3/head" --gamma 5 --timed 8 --repeats 3 \
    --prompts chat="$DATA/mt-bench/question.jsonl" maths="$DATA/gsm8k/test.jsonl.gz" \
    code="$DATA/humaneval/HumanEval.jsonl.gz" \
    --json "$RUNS/smollm2.jsonl" --markdown "$RUNS/smollm2.md" --figures "$RUNS"
