#!/usr/bin/env bash
# One TPU VM host: sets up an environment with the tpu extra, then runs `specjax generate` with the arguments given.
#
#   tpu_scripts/single_host.sh "Once upon a time" --json
#
# SPECJAX_VENV: the environment to make or reuse (default: .venv-tpu in the clone).
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=${SPECJAX_VENV:-$root/.venv-tpu}

if [[ ! -x $venv/bin/specjax ]]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet "${root}[tpu]"
fi

JAX_PLATFORMS=${JAX_PLATFORMS:-tpu,cpu} exec "$venv/bin/specjax" generate "$@"
