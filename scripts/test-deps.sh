#!/usr/bin/env bash
# Makes sure that the programs which the tests start are on this machine:
# Postgres 14 or newer, PgBouncer, Redis, a C compiler (the race detector needs cgo),
# Python for example receivers and workers, Node 20.19 or newer with npm and Chromium for the clients
# in TypeScript, curl for the commands of the documents, and libfaketime for a
# database whose clock is wrong. Does nothing when they are; else installs them
# with apt-get where it may, without starting any service. The tests start their
# own servers, on free ports and with temporary files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

oldest_postgres=14
oldest_node=20.19
node_package=20.20.2 # taken from npm where the system's Node is older, as Debian 12's is
node_folder=$PWD/bin/tools/node
PATH=$node_folder/bin:$PATH # make test does the same

has() { command -v "$1" >/dev/null 2>&1; }

has_postgres() {
	local postgres version
	for postgres in "$(command -v postgres || true)" /usr/lib/postgresql/*/bin/postgres /usr/pgsql-*/bin/postgres \
		/opt/homebrew/opt/postgresql@*/bin/postgres /usr/local/opt/postgresql@*/bin/postgres; do
		[ -x "$postgres" ] && [ -x "$(dirname "$postgres")/initdb" ] || continue
		version=$("$postgres" --version | grep -oE '[0-9]+' | head -n 1)
		[ "$version" -ge "$oldest_postgres" ] && return 0
	done
	return 1
}

has_c_compiler() {
	local cc
	cc=$(go env CC 2>/dev/null || echo cc)
	has "$cc" && echo '#include <stdlib.h>' | "$cc" -E - >/dev/null 2>&1
}

has_faketime() {
	local library
	for library in /usr/lib/*/faketime/libfaketime.so.1 /usr/lib*/faketime/libfaketime.so.1; do
		[ -e "$library" ] && return 0
	done
	return 1
}

# Redocly, which lints the OpenAPI document, wants 20.19, or 22.12 and above.
has_node() {
	local major minor
	has node && has npm || return 1
	IFS=. read -r major minor _ < <(node --version | tr -d v)
	case $major in
	20) [ "$minor" -ge "${oldest_node#*.}" ] ;;
	22) [ "$minor" -ge 12 ] ;;
	*) [ "$major" -gt 22 ] ;;
	esac
}

has_chromium() { has chromium || has chromium-browser || has google-chrome; }

find_missing() {
	missing=()
	[ -n "${SEKALI_TEST_POSTGRES_URL:-}" ] || has_postgres || missing+=(postgresql-15)
	[ -n "${SEKALI_TEST_REDIS_URL:-}" ] || has redis-server || has valkey-server || missing+=(redis-server)
	has pgbouncer || [ -x /usr/sbin/pgbouncer ] || missing+=(pgbouncer) # not on every user's PATH
	has_c_compiler || missing+=(gcc libc6-dev)
	has python3 || missing+=(python3)
	has node && has npm || missing+=(nodejs npm)
	has_chromium || missing+=(chromium)
	has curl || missing+=(curl)
	has_faketime || missing+=(libfaketime)
}

give_up() {
	cat >&2 <<END
test-deps: $1. The tests need these packages: ${missing[*]}
(any Postgres from $oldest_postgres and any Node from $oldest_node will do). Instead of local programs they take running servers, named in
SEKALI_TEST_POSTGRES_URL (a user who may create databases) and SEKALI_TEST_REDIS_URL.
END
	exit 1
}

# Neither a service nor a database cluster of the system is wanted: a policy and
# a setting say so while the packages are installed, and are removed after it.
no_services() {
	policy=/usr/sbin/policy-rc.d
	cluster=/etc/postgresql-common/createcluster.d/sekali-test-deps.conf
	made=()
	trap '[ ${#made[@]} -eq 0 ] || "${as_root[@]}" rm -f "${made[@]}"' EXIT
	if [ ! -e "$policy" ]; then
		made+=("$policy")
		printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
		"${as_root[@]}" chmod 755 "$policy"
	fi
	made+=("$cluster")
	"${as_root[@]}" mkdir -p "$(dirname "$cluster")"
	echo 'create_main_cluster = false' | "${as_root[@]}" tee "$cluster" >/dev/null
}

install_missing() {
	local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
	echo "test-deps: installing ${missing[*]}" >&2
	no_services
	"${apt[@]}" update
	# Releases other than Debian 12 carry another version, under this name.
	apt-cache show postgresql-15 >/dev/null 2>&1 || missing=("${missing[@]/#postgresql-15/postgresql}")
	"${apt[@]}" install --yes --no-install-recommends "${missing[@]}" >/dev/null
}

# npm has Node itself as a package, for each system one.
install_node() {
	local machine package
	case $(uname -m) in
	x86_64) machine=x64 ;;
	aarch64 | arm64) machine=arm64 ;;
	*) return 1 ;;
	esac
	package=node-$(uname -s | tr '[:upper:]' '[:lower:]')-$machine
	echo "test-deps: putting $package@$node_package into $node_folder" >&2
	mkdir -p "$node_folder/bin"
	npm install --prefix "$node_folder" --no-save --silent "$package@$node_package"
	ln -sf "../node_modules/$package/bin/node" "$node_folder/bin/node"
}

may_install() {
	has apt-get || give_up "there is no apt-get to install with"
	if [ "$(id -u)" -eq 0 ]; then
		as_root=(env)
	elif has sudo && sudo -n true 2>/dev/null; then
		as_root=(sudo -n)
	else
		give_up "installing needs root, or sudo without a password"
	fi
}

find_missing
if [ ${#missing[@]} -gt 0 ]; then
	may_install
	install_missing || give_up "apt-get could not install"
	find_missing
	[ ${#missing[@]} -eq 0 ] || give_up "apt-get installed, but not everything is found"
fi
if ! has_node; then
	missing=("nodejs ($oldest_node or newer)")
	install_node || give_up "Node is older than $oldest_node, and npm could not bring another one"
	hash -r
	has_node || give_up "the Node that npm has brought does not run"
fi
