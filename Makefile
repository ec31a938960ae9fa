# Every target does by itself what it needs: make help lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
CONFIG ?= examples/quickstart/sekali.yaml
PACKAGES ?= ./...
# -count=1: the tests talk to servers, which the test cache cannot see.
# -p 1: some tests measure how soon an answer comes; another package's tests
# beside them would be measured too. What is to be built is built before, at once.
TESTFLAGS ?= -race -count=1 -timeout 40m -p 1

GOLANGCI_VERSION := v2.15.0
GOLANGCI := bin/tools/golangci-lint-$(GOLANGCI_VERSION)

# Where the system's Node is too old, test-deps puts a newer one there.
export PATH := $(CURDIR)/bin/tools/node/bin:$(PATH)

.PHONY: help
help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## build, and serve examples/quickstart (CONFIG=FILE serves another one; DATABASE_URL=postgres://... as well)
	bin/sekali serve --config $(CONFIG)

.PHONY: build
build: ## build the static program bin/sekali
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/sekali ./cmd/sekali

.PHONY: test
test: test-deps ## run all tests on SQLite, Postgres and Redis, which are installed if missing and started privately
	@go build -o bin/tools/with-servers ./internal/testenv/cmd/with-servers
	@CGO_ENABLED=1 go test -race -run '^$$' $(PACKAGES) >/dev/null
	CGO_ENABLED=1 bin/tools/with-servers go test $(TESTFLAGS) $(PACKAGES)
	$(if $(filter ./...,$(PACKAGES)),cd bench && ../bin/tools/with-servers go test -count=1 -timeout 10m ./...)

.PHONY: torture-short
torture-short: test-deps ## three minutes of faults against three replicas, workers and callbacks; TORTURE_SEED repeats a run
	@go build -o bin/tools/with-servers ./internal/testenv/cmd/with-servers
	CGO_ENABLED=1 bin/tools/with-servers go test -race -count=1 -tags torture -timeout 60m -v -run '^TestTorture' ./internal/e2e

.PHONY: torture
torture: export TORTURE_SECONDS ?= 600
torture: export TORTURE_JOBS ?= 10000
torture: torture-short ## the same for twenty minutes, 10,000 jobs for the workers, and a minute without the receiver of callbacks

.PHONY: bench
bench: build test-deps ## measure against what people would use instead; BENCH=accept,replay selects, ROUNDS=, SECONDS=, PAGES=docs/benchmarks, BENCHFLAGS=-gate
	cd bench && go build -o ../bin/tools/bench .
	bin/tools/bench -program bin/sekali -sections "$(BENCH)" -rounds $(or $(ROUNDS),5) -seconds $(or $(SECONDS),2) -pages $(or $(PAGES),bench/out) $(BENCHFLAGS)

.PHONY: bench-gate
bench-gate: ## two minutes of the benchmark: fail where a figure that noise hardly moves has become worse
	$(MAKE) bench BENCH=accept,pickup,flatness ROUNDS=3 SECONDS=1 BENCHFLAGS="-gate -finished 300000"

.PHONY: test-deps
test-deps: ## install what the tests start, where it is missing (Postgres, Redis, a C compiler, Python, Node, Chromium)
	@scripts/test-deps.sh

.PHONY: lint
lint: $(GOLANGCI) ## check style, imports and vocabulary
	go vet $(PACKAGES)
	$(GOLANGCI) run $(PACKAGES)
	$(if $(filter ./...,$(PACKAGES)),cd bench && go vet ./... && ../$(GOLANGCI) run)

.PHONY: generate
generate: ## make again what is made from the code: the OpenAPI document, the Go client's core, the references in docs
	scripts/generate.sh

.PHONY: verify
verify: test-deps ## fail unless what generate makes is current, and the OpenAPI document passes two linters
	scripts/verify.sh

.PHONY: swagger-ui
swagger-ui: ## take Swagger UI from npm again, in the version that scripts/swagger-ui.sh names
	scripts/swagger-ui.sh

.PHONY: format
format: $(GOLANGCI) ## format all Go files as lint wants them
	$(GOLANGCI) fmt
	cd bench && ../$(GOLANGCI) fmt

.PHONY: docker
docker: ## build the container image sekali:latest
	docker build --build-arg VERSION=$(VERSION) --tag sekali .

.PHONY: clean
clean: ## remove what was built
	rm -rf bin

$(GOLANGCI):
	GOBIN=$(CURDIR)/bin/tools go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv bin/tools/golangci-lint $@
