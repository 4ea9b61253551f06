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
    name=$1
    shift
    specjax train answers --target "$CHAT" --prompts "$RUNS/others.jsonl" "$HERE/messages.jsonl.xz" --task chat \
        --out "$RUNS/chats-$name.jsonl" --dtype bfloat16 "$@"
}
answers 0 --temperature 0 --rows 1024
answers 0.7 --temperature 0.7 --repeats 2 --rows 1024
answers 1 --temperature 1 --rows 1024

specjax train head eagle3 --target "$CHAT" --data "$RUNS/chats-0.jsonl" "$RUNS/chats-0.7.jsonl" "$RUNS/chats-1.jsonl" \
    --out "$RUNS/smollm2-eagle3" --mlp-width 1536 --kv-heads 9 --draft-vocab 6144 --unroll 5 --kept 0.6 \
    --tokens 16384 --widths 192 320 --held-out 0.01 --dtype bfloat16 --half --head-dtype bfloat16 \
    --muon --rate 4e-3 --warmup 150 --steps 5600 --decay 3000 --every 1500

# Acceptance by position, tokens per target pass, and speed, on questions of MT-bench, GSM8K's test set and HumanEval.
specjax reproduce heads --head-target "$CHAT" --heads eagle3="$RUNS/smollm2-eagle3/head" --dtype bfloat16 --gamma 2 \
    --count 16 --max-new-tokens 96 --timed 6 --repeats 2 --prompts chat="$DATA/mt-bench/question.jsonl" \
    maths="$DATA/gsm8k/test.jsonl.gz" code="$DATA/humaneval/HumanEval.jsonl.gz" \
    --json "$RUNS/smollm2.jsonl" --markdown "$RUNS/smollm2.md" --figures "$RUNS"

# Every kind with equal data and training, to compare them: a size for two CPU cores, 3 % of the data above. The heads of
# the results page learned from 1,000 answers, in float32, to messages of both files, drawn at random. Two groups of heads
# read the same hidden states of the target, which are kept.
specjax train answers --target "$CHAT" --prompts "$RUNS/others.jsonl" "$HERE/messages.jsonl.xz" --task chat \
    --out "$RUNS/chats-some.jsonl" --temperature 0.7 --most 1000 --rows 64
equal() {
    name=$1
    states=$2
    shift 2
    specjax train head "$name" --target "$CHAT" --data "$RUNS/chats-some.jsonl" --out "$RUNS/equal-$name" \
        --features "$RUNS/$states" --tokens 1024 --widths 192 256 320 --held-out 0.03 --head-dtype bfloat16 \
        --muon --rate 4e-3 --warmup 20 --steps 240 --decay 120 --every 80 "$@"
}
equal eagle3 taps --mlp-width 1536 --kv-heads 3 --draft-vocab 6144 --unroll 5 --kept 0.6
equal peagle taps --mlp-width 1536 --kv-heads 3 --draft-vocab 6144 --layers 1
equal dflash taps --mlp-width 1536 --kv-heads 3 --draft-vocab 6144 --layers 1
equal eagle last --mlp-width 1536 --kv-heads 3
equal hass last --mlp-width 1536 --kv-heads 3 --kept 0.6
equal falcon last --mlp-width 1536 --kv-heads 3
equal medusa last --draft-vocab 6144 --unroll 4
equal mlp last --mlp-width 192

# What they draft, and their speed, on 8 prompts of each task. The results page has the speeds of another run, with
# --dtype bfloat16 and 48 new tokens, in which all heads are interleaved on 3 prompts of each task.
specjax reproduce heads --head-target "$CHAT" --gamma 2 \
    --heads eagle3="$RUNS/equal-eagle3/head" peagle="$RUNS/equal-peagle/head" dflash="$RUNS/equal-dflash/head" \
        eagle="$RUNS/equal-eagle/head" hass="$RUNS/equal-hass/head" falcon="$RUNS/equal-falcon/head" \
        medusa="$RUNS/equal-medusa/head" mlp="$RUNS/equal-mlp/head" \
    --count 8 --max-new-tokens 32 --timed 3 --repeats 2 --prompts chat="$DATA/mt-bench/question.jsonl" \
    maths="$DATA/gsm8k/test.jsonl.gz" code="$DATA/humaneval/HumanEval.jsonl.gz" \
    --json "$RUNS/equal.jsonl" --markdown "$RUNS/equal.md"
