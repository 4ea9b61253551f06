#!/usr/bin/env bash
# Fills in a JobSet template and prints it: tpu_scripts/render.sh jobset.yaml COMMAND ... | kubectl apply -f -
#
#   export NAME=opt IMAGE=us-docker.pkg.dev/project/images/specjax TOPOLOGY=4x4 ACCELERATOR=tpu-v5-lite-podslice SLICES=4
#   tpu_scripts/render.sh jobset.yaml specjax job run gs://bucket/prompts.jsonl --out gs://bucket/answers --of 4
#
# SLICES      number of slices (default: 1)
# HOSTS       VMs of a slice (default: chips of the topology / CHIPS)
# CHIPS       TPU chips of a VM (default: 4)
# CACHE       folder of compiled programs that all share, such as gs://bucket/programs (default: none)
# SPOT        true: spot VMs (default: false)
# RESTARTS    how often the JobSet is started again after a failure or a preemption (default: 100)
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$here/common.sh"

(($# > 1)) || die "usage: render.sh jobset.yaml|jobset_training.yaml COMMAND ..."
template=$here/${1##*/}
[[ -f $template ]] || die "no template $1"
shift
need NAME IMAGE TOPOLOGY ACCELERATOR
chips=${CHIPS:-4}
[[ $TOPOLOGY =~ ^[0-9]+(x[0-9]+)+$ ]] || die "TOPOLOGY must be such as 4x4 or 2x2x2, got $TOPOLOGY"
total=$((${TOPOLOGY//x/*}))
((total % chips == 0)) || die "CHIPS=$chips does not divide the $total chips of TOPOLOGY=$TOPOLOGY: set CHIPS"

quoted() { # a JSON string, which is YAML
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  printf '"%s"' "$text"
}

command=
for word in "$@"; do
  [[ $word != *$'\n'* ]] || die "an argument has a line break"
  command+=${command:+, }$(quoted "$word")
done

text=$(<"$template")
fill() {
  text=${text//"@$1@"/"$2"}
}
fill NAME "$NAME"
fill IMAGE "$IMAGE"
fill TOPOLOGY "$TOPOLOGY"
fill ACCELERATOR "$ACCELERATOR"
fill SLICES "${SLICES:-1}"
fill HOSTS "${HOSTS:-$((total / chips))}"
fill CHIPS "$chips"
fill CACHE "${CACHE:-}"
fill SPOT "${SPOT:-false}"
fill RESTARTS "${RESTARTS:-100}"
fill COMMAND "[$command]"
if [[ ${SPOT:-false} != true ]]; then # a node without spot VMs has no such label
  text=$(grep -v 'cloud.google.com/gke-spot: "false"' <<<"$text")
fi
if [[ -z ${CACHE:-} ]]; then
  text=$(sed '/- name: JAX_COMPILATION_CACHE_DIR/,+1d' <<<"$text")
fi
printf '%s\n' "$text"
