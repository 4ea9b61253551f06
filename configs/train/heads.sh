#!/bin/sh
# Trains heads for the bundled targets on what they wrote: DATA holds deu.txt.gz, and RUNS gets one folder per head.
# opt-target-* and t5-target-medusa are in the package; equal-* are for the comparison. RUNS is that of bundled.sh, which
# writes the texts of opt-target.
# Every command can be interrupted (Ctrl-C, SIGTERM) and continues when it is run again.
set -eu
: "${DATA:?folder with deu.txt.gz}" "${RUNS:=runs}"
mkdir -p "$RUNS"

# First stage: heads of the first stage of opt-target, which bundled.sh leaves in RUNS/first. Those of the package: hass
# and medusa on a GPU, eagle3 in float32 on two CPU cores.
python "$(dirname "$0")/write_stories.py" --out "$RUNS/openings.txt" --openings 16000 --seed 1
head() {
    target=$1 data=$2 out=$3
    shift 3
    specjax train head "$@" --target "$target" --data "$data" --out "$out" \
        --held-out 0.02 --tokens 4096 --widths 256 --dtype bfloat16 --half --head-dtype bfloat16 \
        --warmup 40 --rate 6e-3 --muon
}
first() {
    name=$1 texts=$2
    shift 2
    specjax train answers --target "$RUNS/first/opt-target/model" --prompts "$RUNS/openings.txt" --most "$texts" \
        --max-new-tokens 240 --out "$RUNS/first/stories-$texts.jsonl" --rows 64
    head "$RUNS/first/opt-target/model" "$RUNS/first/stories-$texts.jsonl" "$RUNS/first/opt-target-$name" \
        "$name" --steps 1200 --decay 600 "$@"
}
# A layer as wide as this target costs a large part of a target pass: the layer of this head is narrower.
first eagle3 3160 --width 96 --kv-heads 1 --mlp-width 256 --taps 4 8 --unroll 5
first hass 8000 --kv-heads 1 --mlp-width 336
first medusa 8000 --unroll 4 --draft-vocab 1024

# Second stage: those heads go on with the package's opt-target, on the texts of bundled.sh.
second() {
    name=$1
    shift
    head bundled/opt-target "$RUNS/stories.jsonl" "$RUNS/opt-target-$name" \
        "$name" --start "$RUNS/first/opt-target-$name/head" --every 100 "$@"
}
second eagle3 --steps 360 --decay 240 --unroll 5
second medusa --steps 300 --decay 200
second hass --steps 260 --decay 180

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
    --heads eagle3="$RUNS/opt-target-eagle3/head" hass="$RUNS/opt-target-hass/head" \
        medusa="$RUNS/opt-target-medusa/head"

# Every kind, and ablations, with equal data and training, to compare them.
equal() {
    name=$1
    shift
    specjax train head "$@" --target bundled/opt-target --data "$RUNS/stories.jsonl" --out "$RUNS/equal-$name" \
        --held-out 0.02 --tokens 1024 --widths 256 --dtype bfloat16 --half --head-dtype bfloat16 \
        --muon --rate 6e-3 --warmup 20 --steps 480 --decay 240 --every 120
}
equal eagle3 eagle3 --mlp-width 336 --kv-heads 1 --draft-vocab 1024 --taps 4 8 --unroll 5
equal peagle peagle --mlp-width 336 --kv-heads 1 --draft-vocab 1024 --taps 4 8 --layers 1
equal dflash dflash --mlp-width 336 --kv-heads 1 --draft-vocab 1024 --taps 4 8 --layers 1
equal eagle eagle --mlp-width 336 --kv-heads 1
equal hass hass --mlp-width 336 --kv-heads 1
equal falcon falcon --mlp-width 336 --kv-heads 1
equal medusa medusa --draft-vocab 1024 --unroll 4
equal mlp mlp --mlp-width 128 --unroll 4
equal eagle-no-features eagle --mlp-width 336 --kv-heads 1 --feature-loss 0
equal eagle3-last eagle3 --mlp-width 336 --kv-heads 1 --draft-vocab 1024 --taps 8 --unroll 5
equal eagle3-one-step eagle3 --mlp-width 336 --kv-heads 1 --draft-vocab 1024 --taps 4 8 --unroll 1
equal falcon-no-glancing falcon --mlp-width 336 --kv-heads 1 --glance 0

# Acceptance, and speed one head after the other; then speed, interleaved on each story.
specjax reproduce heads --prompts story="$RUNS/prompts.txt" --count 16 --gamma 3 --timed 8 --repeats 3 \
    --heads eagle3="$RUNS/equal-eagle3/head" peagle="$RUNS/equal-peagle/head" dflash="$RUNS/equal-dflash/head" \
        eagle="$RUNS/equal-eagle/head" hass="$RUNS/equal-hass/head" falcon="$RUNS/equal-falcon/head" \
        medusa="$RUNS/equal-medusa/head" mlp="$RUNS/equal-mlp/head" \
        eagle-no-features="$RUNS/equal-eagle-no-features/head" eagle3-last="$RUNS/equal-eagle3-last/head" \
        eagle3-one-step="$RUNS/equal-eagle3-one-step/head" falcon-no-glancing="$RUNS/equal-falcon-no-glancing/head" \
    --json "$RUNS/equal.jsonl" --markdown "$RUNS/equal.md"
python "$(dirname "$0")/write_stories.py" --out "$RUNS/stories.txt" --openings 16 --seed 2 --exclude "$RUNS/openings.txt"
python "$(dirname "$0")/../results/compare.py" "$RUNS/stories.txt" eagle3="$RUNS/equal-eagle3/head" \
    peagle="$RUNS/equal-peagle/head" dflash="$RUNS/equal-dflash/head" eagle="$RUNS/equal-eagle/head" \
    hass="$RUNS/equal-hass/head" falcon="$RUNS/equal-falcon/head" medusa="$RUNS/equal-medusa/head" \
    mlp="$RUNS/equal-mlp/head" > "$RUNS/speed.jsonl"
