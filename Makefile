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
TESTFLAGS ?= -race -count=1 -timeout 20m -p 1

GOLANGCI_VERSION := v2.15.0
GOLANGCI := bin/tools/golangci-lint-$(GOLANGCI_VERSION)

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

.PHONY: torture-short
torture-short: test-deps ## two minutes of faults against three replicas; TORTURE_SEED repeats a run, TORTURE_SECONDS=600 makes it longer
	@go build -o bin/tools/with-servers ./internal/testenv/cmd/with-servers
	CGO_ENABLED=1 bin/tools/with-servers go test -race -count=1 -tags torture -timeout 60m -v -run '^TestTorture' ./internal/e2e

.PHONY: bench
bench: test-deps ## measure the gateway; compare the lines of one run with each other
	@go build -o bin/tools/with-servers ./internal/testenv/cmd/with-servers
	bin/tools/with-servers go test -run '^$$' -bench . -benchtime 2s ./bench

.PHONY: test-deps
test-deps: ## install what the tests start, where it is missing (Postgres, Redis, a C compiler, Python, Node)
	@scripts/test-deps.sh

.PHONY: lint
lint: $(GOLANGCI) ## check style, imports and vocabulary
	go vet $(PACKAGES)
	$(GOLANGCI) run $(PACKAGES)

.PHONY: format
format: $(GOLANGCI) ## format all Go files as lint wants them
	$(GOLANGCI) fmt

.PHONY: docker
docker: ## build the container image sekali:latest
	docker build --build-arg VERSION=$(VERSION) --tag sekali .

.PHONY: clean
clean: ## remove what was built
	rm -rf bin

$(GOLANGCI):
	GOBIN=$(CURDIR)/bin/tools go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv bin/tools/golangci-lint $@
