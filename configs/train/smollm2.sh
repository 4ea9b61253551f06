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

# In four parts: the first drafted token alone learns the fastest, and the later ones follow quickly. The first two parts
# ran on the answers that there were by then, most of them to prompts of the data sets.
python -c "
import itertools, sys
sys.stdout.writelines(itertools.islice(open(sys.argv[1], encoding='utf-8'), 1 + 2392))  # a line of options, and answers
" "$RUNS/chats.jsonl" > "$RUNS/begun.jsonl"
part() {
    name=$1 data=$2
    shift 2
    specjax train head eagle3 --target "$CHAT" --data "$RUNS/$data.jsonl" --out "$RUNS/smollm2-$name" \
        --features "$RUNS/features" --head-dtype bfloat16 --tokens 2048 --widths 96 192 328 --rate 4e-3 --muon "$@"
}
part 1 begun --mlp-width 1536 --kv-heads 9 --draft-vocab 6144 --unroll 5 --kept 0.5 --steps 205 --decay 1 --warmup 60
part 2 begun --start "$RUNS/smollm2-1/head" --unroll 1 --steps 1005 --decay 4 --warmup 60
part 3 chats --start "$RUNS/smollm2-2/head" --unroll 1 --steps 350 --decay 1 --warmup 40
part eagle3 chats --start "$RUNS/smollm2-3/head" --unroll 5 --kept 0.5 --steps 750 --decay 420 --warmup 40

# Acceptance by position, tokens per target pass, and speed, on questions of MT-bench, GSM8K's test set and HumanEval.
specjax reproduce heads --head-target "$CHAT" --heads eagle3="$RUNS/smollm2-eagle3/head" --gamma 5 --timed 8 --repeats 3 \
    --prompts chat="$DATA/mt-bench/question.jsonl" maths="$DATA/gsm8k/test.jsonl.gz" \
    code="$DATA/humaneval/HumanEval.jsonl.gz" \
    --json "$RUNS/smollm2.jsonl" --markdown "$RUNS/smollm2.md" --figures "$RUNS"
