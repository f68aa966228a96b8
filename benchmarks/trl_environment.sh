#!/usr/bin/env bash
# Makes (or finds ready) the environment of the TRL peer: .venv-trl, from hashed requirements and
# this tree without its dependencies.
#   benchmarks/trl_environment.sh            make it; says nothing when it is ready
#   benchmarks/trl_environment.sh --compile  resolve requirements/bench-trl.in again
set -euo pipefail
cd "$(dirname "$0")/.."

environment=.venv-trl
requirements=requirements/bench-trl.txt
stamp="$environment/.requirements.sha256"

uv=$(command -v uv || true)
if [[ -z "$uv" && -x .venv/bin/uv ]]; then uv=.venv/bin/uv; fi
if [[ -z "$uv" ]]; then
    echo "benchmarks/trl_environment.sh: uv: not found on PATH nor in .venv/bin; pip install uv" >&2
    exit 2
fi

if [[ "${1:-}" == --compile ]]; then
    "$uv" pip compile --universal --python-version 3.11 --generate-hashes --no-annotate \
        --no-header --quiet requirements/bench-trl.in -o "$requirements"
fi

wanted=$(sha256sum "$requirements" | cut -d' ' -f1)
if [[ -f "$stamp" && "$(<"$stamp")" == "$wanted" ]]; then exit 0; fi

python=${PYTHON:-.venv/bin/python}
if [[ ! -x "$python" ]]; then python=$(command -v python3); fi
"$uv" venv --quiet --clear --python "$python" "$environment"
"$uv" pip sync --quiet --require-hashes --python "$environment/bin/python" "$requirements"
"$uv" pip check --quiet --python "$environment/bin/python"
# For the scorer of the demo's task, which needs none of our dependencies.
"$uv" pip install --quiet --no-deps --editable . --python "$environment/bin/python"
echo "$wanted" > "$stamp" # last: a half-made environment is made again
