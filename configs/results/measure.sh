#!/bin/sh
# Measures everything on the results pages (docs/results): rows as JSON lines and tables in FOLDER.
#
#     sh configs/results/measure.sh FOLDER
#
# CHAT is SmolLM2-135M-Instruct, TRANSLATIONS a file of sentence pairs that the bundled models have not seen (as
# `specjax train t5` writes held_out.tsv), BOOKS a long text, and DATA a folder of MT-bench, GSM8K and HumanEval. Run it
# again after an interruption: rows that a file of JSON lines has are not measured again.
set -eu
OUT=${1:?"usage: sh configs/results/measure.sh FOLDER"}
: "${CHAT:=HuggingFaceTB/SmolLM2-135M-Instruct}"
: "${TRANSLATIONS:?a file of pairs: English, a tab, German}" "${BOOKS:?a text file}" "${DATA:?folder of data sets}"
HERE=$(dirname "$0")
mkdir -p "$OUT"

swept() {
    name=$1
    shift
    specjax sweep --repeats 5 --json "$OUT/$name.jsonl" --markdown "$OUT/$name.md" "$@"
}
measured() {
    name=$1
    shift
    specjax bench "$@" --json "$OUT/$name.jsonl"
}

# Prompts for the bundled OPT models: first words of stories, none of those from which drafts and heads learned.
python "$HERE/../train/write_stories.py" --out "$OUT/openings.txt" --openings 16000 --seed 1
python "$HERE/../train/write_stories.py" --out "$OUT/prompts.txt" --openings 64 --seed 2 --exclude "$OUT/openings.txt"

# benchmarks.md
swept opt --file "$OUT/prompts.txt" --count 64 --timed 8 --drafters model --gammas 3 5
for draft in t5-draft t5-middle; do
    swept "$draft" --target bundled/t5-target --drafts "bundled/$draft" --file "$TRANSLATIONS" --count 64 --timed 8 \
        --drafters model --gammas 2 3 5 --temperatures 0 1 --scores
done
python "$HERE/translate.py" > "$OUT/translate.jsonl"
measured plain plain --size 125m
measured speculative speculative --size 350m --repeats 3
measured verify verify --size 350m
measured overhead overhead --repeats 3
measured shapes shapes --target t5-large --draft t5-small --alpha 0.75 --gamma 7 --dtype bfloat16
measured shapes shapes --target t5-v1_1-xl --draft t5-v1_1-small --alpha 0.75 --gamma 7 --dtype float32 --repeats 1
measured shapes shapes --target opt-1.3b --draft opt-125m --alpha 0.8 --gamma 5 --dtype bfloat16
measured shapes shapes --target t5-base --draft t5-small --alpha 0.6 --gamma 3 --dtype float32
measured shapes shapes --target smollm2-135m --drafter head:folder=eagle3 --alpha 0.55 --gamma 3 5 --dtype float32
measured verifiers verifiers --rows 1 8
measured committed committed --temperature 1 --gamma 5 8 --prompts "$OUT/prompts.txt"
measured committed committed --target "$CHAT" --drafter quantized --temperature 1 --gamma 5 --prompts "$OUT/prompts.txt"
measured long-context long-context --target "$CHAT" --rows 8 --prompts "$BOOKS" --max-new-tokens 48
measured prefill prefill --target smollm2-135m --rows 1 --prompt-tokens 50 512 2048 4096 --repeats 3
measured prefill prefill --target smollm2-135m --rows 4 --prompt-tokens 2048 --repeats 3
measured prefill prefill --target t5-base --rows 4 --prompt-tokens 512 --repeats 3
measured context context --target smollm2-135m --cache-len 128 8192 --repeats 3
python "$HERE/serving.py" "$OUT/prompts.txt" > "$OUT/serving.json"
swept copying --target "$CHAT" --style plain --tasks summarization code --temperatures 0 --max-new-tokens 48 \
    --drafters ngram suffix suffix-tree:size=8,depth=6 lookahead:window=4,ngram=3,guesses=4 quantized:gamma=2 \
    layer-skip:gamma=2 "cascade:middle=target,budget=256,gamma=4,inner=(ngram)"
python "$HERE/disco.py" "$OUT/prompts.txt" > "$OUT/disco.json"

# reproduce.md
python "$HERE/compare.py" "$OUT/prompts.txt" > "$OUT/compare.jsonl"
swept points --file "$OUT/prompts.txt" --count 16 --timed 1 --temperatures 1 --drafters \
    head:folder=bundled/opt-target-eagle3,dynamic=16 head:folder=bundled/opt-target-hass,dynamic=16
specjax reproduce all --count 16 --timed 8 --repeats 5 \
    --json "$OUT/reproduce.jsonl" --markdown "$OUT/reproduce.md" --figures "$OUT/figures"
specjax reproduce heads --head-target "$CHAT" --heads eagle3=bundled/smollm2-eagle3 --dtype bfloat16 --gamma 2 \
    --count 16 --max-new-tokens 96 --timed 6 --repeats 2 --prompts chat="$DATA/mt-bench/question.jsonl" \
    maths="$DATA/gsm8k/test.jsonl.gz" code="$DATA/humaneval/HumanEval.jsonl.gz" \
    --json "$OUT/smollm2.jsonl" --markdown "$OUT/smollm2.md" --figures "$OUT/figures-smollm2"
specjax reproduce all --shapes real --dtype bfloat16 --targets t5-v1_1-large t5-v1_1-xl opt-2.7b \
    --json "$OUT/shapes-real.jsonl" --markdown "$OUT/shapes-real.md" --figures "$OUT/figures-real"

# advise.md
specjax advise --json > "$OUT/advise.json"

# plan.md
(cd "$HERE/../.." && python -m tests.planning.test_results) > "$OUT/plan.md"
