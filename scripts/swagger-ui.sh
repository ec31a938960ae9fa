#!/usr/bin/env bash
# Takes the files of Swagger UI for the page at /docs out of its npm package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=5.35.0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm pack --silent --pack-destination "$folder" "swagger-ui-dist@$version" >/dev/null
tar -xzf "$folder/swagger-ui-dist-$version.tgz" -C "$folder"
page=docs/openapi/page
for file in swagger-ui-bundle.js swagger-ui.css; do
	# The source maps are not served.
	sed -E 's#(//|/\*)\# sourceMappingURL=.*##' "$folder/package/$file" >"$page/$file"
done
cp "$folder/package/swagger-ui-bundle.js.LICENSE.txt" "$page"
cp "$folder/package/LICENSE" "$page/LICENSE.swagger-ui"
cp "$folder/package/NOTICE" "$page/NOTICE.swagger-ui"
