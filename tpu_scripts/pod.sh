#!/usr/bin/env bash
# All workers of a TPU pod: `setup` installs this clone on them, `run` runs one command on all of them at once.
#
#   NAME=opt ZONE=us-west4-a tpu_scripts/pod.sh setup
#   NAME=opt ZONE=us-west4-a tpu_scripts/pod.sh run specjax job run gs://bucket/prompts.jsonl --out gs://bucket/answers
#
# Variables are explained in common.sh. The exit code is that of the command.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$root/tpu_scripts/common.sh"
mapfile -t where < <(place)

on_all() {
  gcloud compute tpus tpu-vm ssh "$NAME" "${where[@]}" --worker=all --command="$1"
}

setup() {
  local archive
  archive=$(mktemp -d)
  trap 'rm -rf "$archive"' RETURN
  tar -cf "$archive/specjax.tar" -C "$root" --exclude='__pycache__' pyproject.toml README.md LICENSE specjax configs
  gcloud compute tpus tpu-vm scp "$archive/specjax.tar" "$NAME:" "${where[@]}" --worker=all
  on_all 'set -e
command -v python3.11 >/dev/null || { sudo apt-get -qq update; sudo apt-get -qq install -y python3.11 python3.11-venv; }
rm -rf specjax && mkdir specjax && tar -xf specjax.tar -C specjax
[ -x .specjax/bin/pip ] || python3.11 -m venv .specjax
.specjax/bin/pip install --quiet "./specjax[tpu,gcs]"'
}

run() {
  local words
  (($#)) || die "run requires a command"
  words=$(printf '%q ' "$@")
  on_all "cd specjax && PATH=\$HOME/.specjax/bin:\$PATH JAX_PLATFORMS=tpu,cpu ${CACHE:+JAX_COMPILATION_CACHE_DIR=$(printf '%q' "$CACHE") }$words"
}

need NAME ZONE
case ${1:-} in
  setup) setup ;;
  run) run "${@:2}" ;;
  *) die "usage: pod.sh setup | run COMMAND ..." ;;
esac
