#!/usr/bin/env bash
# Builds the wheel into dist/ and installs it with the extra `delta` into an empty environment, in the
# locked versions. A new project must pass its test there, and nothing may have brought PySpark along.
set -euo pipefail
cd "$(dirname "$0")/.."

root="$PWD"
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT

rm -f dist/headrace-*.whl
.venv/bin/hatchling build --target wheel -d dist >/dev/null 2>&1
grep '^[a-z]' requirements/dev.lock | sed 's/ *\\$//' >"$place/constraints.txt"  # without hashes

python="$place/env/bin/python"
.venv/bin/python -m venv "$place/env"
"$python" -m pip install --quiet --disable-pip-version-check --constraint "$place/constraints.txt" \
  "$(echo "$root"/dist/headrace-*.whl)[delta]" pytest
cd "$place"
env/bin/headrace init orders >/dev/null
cd orders
"$python" -m pytest --quiet
if "$python" -c 'import pyspark' 2>/dev/null; then
  echo "headrace[delta] has installed PySpark" >&2
  exit 1
fi
echo "$(basename "$root"/dist/headrace-*.whl): installs into an empty environment, without Spark"
