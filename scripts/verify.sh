#!/usr/bin/env bash
# Fails unless what generate makes is what is there, and the linters find nothing
# in the OpenAPI document. What is out of date is made anew by the way.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

made=(docs/openapi docs/command-line.md docs/configuration.md client/wire examples/client-typescript/src)
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
cp -r --parents "${made[@]}" "$before"
scripts/generate.sh
for folder in "${made[@]}"; do
	diff -r "$before/$folder" "$folder" >"$before/diff" && continue
	head -n 40 "$before/diff" >&2
	echo "verify: $folder was not current; it is now: look at the change and commit it" >&2
	exit 1
done

cd tools/openapi-lint
[ -e node_modules/.package-lock.json ] || npm ci --silent
npm run --silent spectral
npm run --silent redocly 2>&1
