#!/usr/bin/env bash
# mypy --strict by import name: the folders are linked under the names they install as, since mypy reads no package-dir.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
links=$(mktemp -d)
trap 'rm -rf "$links"' EXIT
mkdir "$links/oracles"
for folder in reference properties golden gpu tools; do ln -s "$top/$folder" "$links/oracles/$folder"; done
cd "$links"
MYPYPATH="$links" mypy --config-file "$top/pyproject.toml" --namespace-packages --explicit-package-bases \
    -p oracles.reference -p oracles.properties -p oracles.golden -p oracles.gpu -p oracles.tools
