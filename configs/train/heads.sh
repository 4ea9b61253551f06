#!/bin/sh
# Trains heads for the bundled targets on what they wrote: DATA holds deu.txt.gz, and RUNS gets one folder per head.
# The package contains eagle3-narrow, hass and medusa; the others are for the comparison. The heads of opt-target were
# trained on a GPU, except eagle3-narrow, on the first 3,160 texts, and equal-*: on two CPU cores, in float32.
# Every command can be interrupted (Ctrl-C, SIGTERM) and continues when it is run again.
set -eu
: "${DATA:?folder with deu.txt.gz}" "${RUNS:=runs}"
mkdir -p "$RUNS"

python "$(dirname "$0")/write_stories.py" --out "$RUNS/openings.txt" --openings 16000 --seed 1
specjax train answers --target bundled/opt-target --prompts "$RUNS/openings.txt" --most 8000 --max-new-tokens 240 \
    --out "$RUNS/stories.jsonl" --rows 1024 --dtype bfloat16

# All heads: equal data, equal training, a layer of one key-value head.
head() {
    name=$1
    shift
    specjax train head "$@" --target bundled/opt-target --data "$RUNS/stories.jsonl" --out "$RUNS/opt-target-$name" \
        --held-out 0.02 --tokens 4096 --widths 256 --dtype bfloat16 --half --head-dtype bfloat16 \
        --steps 1200 --decay 600 --warmup 40 --rate 6e-3 --muon
}

# Two streams and a draft vocabulary of 880 tokens keep the file under 2 MB.
eagle3() {
    name=$1
    shift
    head "$name" eagle3 --kv-heads 1 --mlp-width 64 --draft-vocab 880 "$@"
}

# A layer as wide as this target costs a large part of a target pass; a narrower layer has the same acceptance.
head eagle3-narrow eagle3 --width 96 --kv-heads 1 --mlp-width 256 --taps 4 8 --unroll 5
head hass hass --kv-heads 1 --mlp-width 336
head medusa medusa --unroll 4 --draft-vocab 1024

eagle3 eagle3 --taps 4 8 --unroll 5
head eagle eagle --kv-heads 1 --mlp-width 336
head eagle-no-features eagle --kv-heads 1 --mlp-width 336 --feature-loss 0
eagle3 eagle3-last --taps 8 --unroll 5
eagle3 eagle3-one-step --taps 4 8 --unroll 1
head falcon falcon --kv-heads 1 --mlp-width 336
head falcon-no-glancing falcon --kv-heads 1 --mlp-width 336 --glance 0

# T5: 60,000 sentences, none of those that `specjax train t5` holds out.
python -c "
import sys
from specjax.training import data
train, _ = data.split_pairs(data.pairs(sys.argv[1]), 0.02)
for source, _ in sorted(train, key=lambda pair: data.share('order ' + pair[0]))[:60000]:
    print('translate English to German:', source)
" "$DATA/deu.txt.gz" > "$RUNS/sentences.txt"
specjax train answers --target bundled/t5-target --prompts "$RUNS/sentences.txt" --out "$RUNS/translations.jsonl" \
    --temperature 0 --max-new-tokens 48 --rows 64
specjax train head medusa --target bundled/t5-target --data "$RUNS/translations.jsonl" --out "$RUNS/t5-target-medusa" \
    --unroll 3 --layers 2 --draft-vocab 1024 --head-dtype bfloat16 --widths 8 12 16 24 40 \
    --steps 1800 --decay 700 --warmup 40 --rate 6e-3 --muon

# Acceptance by position, tokens per target pass, and speed, on other first words of stories.
python "$(dirname "$0")/write_stories.py" --out "$RUNS/prompts.txt" --openings 64 --seed 2 --exclude "$RUNS/openings.txt"
specjax reproduce heads --prompts story="$RUNS/prompts.txt" --count 16 --gamma 3 --timed 8 --repeats 3 \
    --json "$RUNS/heads.jsonl" --markdown "$RUNS/heads.md" --figures "$RUNS" \
    --heads eagle3-narrow="$RUNS/opt-target-eagle3-narrow/head" eagle3="$RUNS/opt-target-eagle3/head" \
        hass="$RUNS/opt-target-hass/head" medusa="$RUNS/opt-target-medusa/head" eagle="$RUNS/opt-target-eagle/head" \
        eagle-no-features="$RUNS/opt-target-eagle-no-features/head" eagle3-last="$RUNS/opt-target-eagle3-last/head" \
        eagle3-one-step="$RUNS/opt-target-eagle3-one-step/head" falcon="$RUNS/opt-target-falcon/head" \
        falcon-no-glancing="$RUNS/opt-target-falcon-no-glancing/head"

# Every kind with equal data and training, to compare them, in float32: a size for two CPU cores.
specjax train answers --target bundled/opt-target --prompts "$RUNS/openings.txt" --most 1000 --max-new-tokens 240 \
    --out "$RUNS/some.jsonl" --rows 64
equal() {
    name=$1
    shift
    specjax train head "$name" --target bundled/opt-target --data "$RUNS/some.jsonl" --out "$RUNS/equal-$name" \
        --tokens 1024 --widths 256 --held-out 0.03 --head-dtype bfloat16 \
        --muon --rate 6e-3 --warmup 20 --steps 480 --decay 240 --every 120 "$@"
}
equal eagle3 --mlp-width 336 --kv-heads 1 --draft-vocab 1024 --taps 4 8 --unroll 5
equal peagle --mlp-width 336 --kv-heads 1 --draft-vocab 1024 --taps 4 8 --layers 1
equal dflash --mlp-width 336 --kv-heads 1 --draft-vocab 1024 --taps 4 8 --layers 1
equal eagle --mlp-width 336 --kv-heads 1
equal hass --mlp-width 336 --kv-heads 1
equal falcon --mlp-width 336 --kv-heads 1
equal medusa --draft-vocab 1024 --unroll 4
equal mlp --mlp-width 128 --unroll 4

specjax reproduce heads --prompts story="$RUNS/prompts.txt" --count 16 --gamma 3 --timed 8 --repeats 3 \
    --heads eagle3="$RUNS/equal-eagle3/head" peagle="$RUNS/equal-peagle/head" dflash="$RUNS/equal-dflash/head" \
        eagle="$RUNS/equal-eagle/head" hass="$RUNS/equal-hass/head" falcon="$RUNS/equal-falcon/head" \
        medusa="$RUNS/equal-medusa/head" mlp="$RUNS/equal-mlp/head" \
    --json "$RUNS/equal.jsonl" --markdown "$RUNS/equal.md"
