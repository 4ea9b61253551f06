# Sourced by the launchers: where the TPU is. Variables, with those that have no default first:
#
#   NAME        of the queued resource, and of the pod that it provides
#   ZONE        such as us-west4-a
#   ACCELERATOR such as v5litepod-16, v6e-8, v5p-16
#   RUNTIME     image of the hosts (default: by the accelerator)
#   PROJECT     of Google Cloud (default: that of gcloud)
#   CACHE       folder of compiled programs that all hosts and later pods share, such as gs://bucket/programs
#   POLL        seconds between two looks at the state (default: 30)
# shellcheck shell=bash
NAME=${NAME:-}
ZONE=${ZONE:-}

die() {
  echo "${0##*/}: $*" >&2
  exit 2
}

need() {
  local name
  for name in "$@"; do
    [[ -n ${!name:-} ]] || die "set $name"
  done
}

place() { # arguments of gcloud that say where; one per line
  printf '%s\n' "--zone=$ZONE"
  if [[ -n ${PROJECT:-} ]]; then printf '%s\n' "--project=$PROJECT"; fi
}

runtime() {
  case ${RUNTIME:+given}/${ACCELERATOR:-} in
    given/*) echo "$RUNTIME" ;;
    /v5lite*) echo v2-alpha-tpuv5-lite ;;
    /v5p-*) echo v2-alpha-tpuv5 ;;
    /v6e-*) echo v2-alpha-tpuv6e ;;
    *) die "set RUNTIME: no default for the accelerator ${ACCELERATOR:-}" ;;
  esac
}
