#!/usr/bin/env bash
# A TPU pod as a queued resource: created, waited for, and created again whenever it was taken away.
#
#   export NAME=opt ZONE=us-west4-a ACCELERATOR=v5litepod-16 CACHE=gs://bucket/programs
#   tpu_scripts/queued_resource.sh create --spot     # or --reserved, or neither
#   tpu_scripts/queued_resource.sh wait
#   tpu_scripts/queued_resource.sh run specjax job run gs://bucket/prompts.jsonl --out gs://bucket/answers
#   tpu_scripts/queued_resource.sh watch --spot -- specjax job run gs://bucket/prompts.jsonl --out gs://bucket/answers
#   tpu_scripts/queued_resource.sh delete
#
# watch does all of it until the command succeeds: creates the resource if it does not exist, waits, sets the workers up, runs
# the command, and after a preemption (SUSPENDED or FAILED) deletes, creates and starts again. It ends with the exit code
# of a command that fails on a healthy pod RETRIES times in a row (default: 3), or at once with 2, bad input.
#
# Variables are explained in common.sh.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$here/common.sh"
mapfile -t where < <(place)

state() { # of the resource; ABSENT if it does not exist
  gcloud compute tpus queued-resources describe "$NAME" "${where[@]}" --format='value(state.state)' 2>/dev/null || echo ABSENT
}

create() {
  local image terms=()
  while (($#)); do
    case $1 in
      --spot | --reserved) terms+=("$1") ;;
      *) die "create takes --spot or --reserved, got $1" ;;
    esac
    shift
  done
  need ACCELERATOR
  image=$(runtime)
  gcloud compute tpus queued-resources create "$NAME" "${where[@]}" --node-id="$NAME" \
    --accelerator-type="$ACCELERATOR" --runtime-version="$image" "${terms[@]}"
}

delete() {
  gcloud compute tpus queued-resources delete "$NAME" "${where[@]}" --force --quiet
}

await() { # until ACTIVE; fails once it is taken away
  local now
  while true; do
    now=$(state)
    case $now in
      ACTIVE) return 0 ;;
      SUSPENDING | SUSPENDED | FAILED | DELETING | ABSENT)
        echo "$NAME: $now" >&2
        return 1
        ;;
    esac
    echo "$NAME: $now" >&2
    sleep "${POLL:-30}"
  done
}

watch() {
  local terms=() failures=0 code
  while (($#)) && [[ $1 != -- ]]; do
    terms+=("$1")
    shift
  done
  (($# > 1)) || die "usage: queued_resource.sh watch [--spot|--reserved] -- COMMAND ..."
  shift
  while true; do
    case $(state) in
      ABSENT) create "${terms[@]}" ;;
      SUSPENDED | FAILED)
        delete
        create "${terms[@]}"
        ;;
      SUSPENDING | DELETING) sleep "${POLL:-30}" ;;
    esac
    await || continue
    code=0
    { "$here/pod.sh" setup && "$here/pod.sh" run "$@"; } || code=$?
    case $code in 0 | 2) return "$code" ;; esac
    sleep "${POLL:-30}" # a preemption shows some seconds after the connections broke
    if [[ $(state) == ACTIVE ]]; then
      failures=$((failures + 1))
      if ((failures >= ${RETRIES:-3})); then return "$code"; fi
    else
      failures=0
    fi
  done
}

need NAME ZONE
case ${1:-} in
  create | delete | watch) "$1" "${@:2}" ;;
  wait) await ;;
  run) "$here/pod.sh" run "${@:2}" ;;
  state) state ;;
  *) die "usage: queued_resource.sh create|wait|run|watch|delete|state ..." ;;
esac
