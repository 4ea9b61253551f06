#!/bin/sh
# Trains the package's EAGLE-3 head for SmolLM2-135M-Instruct on answers that it wrote: CHAT is the model, DATA the folder
# of data sets that head_prompts.py names, and RUNS gets the files. messages.jsonl.xz holds messages that the model wrote
# itself, by the commands of head_prompts.py. For a GPU: on one H200 the head takes four and a half minutes.
# Every command can be interrupted (Ctrl-C, SIGTERM) and continues when it is run again.
set -eu
: "${CHAT:=HuggingFaceTB/SmolLM2-135M-Instruct}" "${DATA:?folder of data sets}" "${RUNS:=runs}"
HERE=$(dirname "$0")
mkdir -p "$RUNS"

# Greedy answers, as most requests are, and sampled ones, of which there is no end. Those of the package's head, 37,944 of
# 6.9 million tokens, were sampled from the same weights by another program, in larger batches than these commands; its
# draft vocabulary was counted on the first 8,192.
python "$HERE/head_prompts.py" others --data "$DATA" --out "$RUNS/others.jsonl"
answers() {
    specjax train answers --target "$CHAT" --prompts "$RUNS/others.jsonl" "$HERE/messages.jsonl.xz" --task chat \
        --out "$RUNS/chats-$1.jsonl" --temperature "$1" --repeats "$2" --rows 1024 --dtype bfloat16
}
answers 0 1
answers 0.7 2
answers 1 1

specjax train head eagle3 --target "$CHAT" --data "$RUNS/chats-0.jsonl" "$RUNS/chats-0.7.jsonl" "$RUNS/chats-1.jsonl" \
    --out "$RUNS/smollm2-eagle3" --mlp-width 1536 --kv-heads 9 --draft-vocab 6144 --unroll 5 --kept 0.6 \
    --tokens 16384 --widths 192 320 --held-out 0.01 --dtype bfloat16 --half --head-dtype bfloat16 \
    --muon --rate 4e-3 --warmup 150 --steps 5600 --decay 3000 --every 1500

# Acceptance by position, tokens per target pass, and speed, on questions of MT-bench, GSM8K's test set and HumanEval.
specjax reproduce heads --head-target "$CHAT" --heads eagle3="$RUNS/smollm2-eagle3/head" --dtype bfloat16 --gamma 2 \
    --count 16 --max-new-tokens 96 --timed 6 --repeats 2 --prompts chat="$DATA/mt-bench/question.jsonl" \
    maths="$DATA/gsm8k/test.jsonl.gz" code="$DATA/humaneval/HumanEval.jsonl.gz" \
    --json "$RUNS/smollm2.jsonl" --markdown "$RUNS/smollm2.md" --figures "$RUNS"
