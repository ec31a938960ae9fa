#!/usr/bin/env bash
# Makes what is made from the code: docs/openapi/openapi.{yaml,json} from the
# annotations of the handlers; from that the core of the Go client and the types
# of the TypeScript example; docs/command-line.md and the table of
# docs/configuration.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
swag() { go tool -modfile=tools/go.mod swag "$@"; }

# --pdl 1: the types of the standard library are read too, or .swaggo could not replace them.
swag init --v3.1 --dir handlers,api --generalInfo doc.go --pdl 1 --outputTypes yaml --output "$folder" \
	--overridesFile docs/openapi/.swaggo >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
# swag ends with success when it could not read a type.
if grep -E 'Error parsing|warning:|cannot find' "$folder/log" >&2; then
	echo "generate: swag did not understand everything" >&2
	exit 1
fi
go run ./internal/openapi/cmd/openapi "$folder/swagger.yaml" docs/openapi
go generate ./client/wire

example=examples/client-typescript
[ -e "$example/node_modules/.package-lock.json" ] || npm ci --silent --prefix "$example"
npm run --silent --prefix "$example" generate

go test -count=1 ./gateway ./cmd/sekali -run Reference -update >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
