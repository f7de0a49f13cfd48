# Needs make and Python 3.11 or later; `make help` lists what there is.
# With another Python, in an environment of its own: make test PYTHON=python3.13 VENV=.venv-3.13

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
CLIENTS := tests/clients/node tests/clients/resend/node
AGENTS := tests/clients/agents
SERVER ?= llama
UPSTREAM ?=
ARGS ?=

# Tests start hundreds of processes: bytecode is written even where the environment forbids it.
export PYTHONDONTWRITEBYTECODE :=
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

# dev holds base, so where it is installed it does for both.
INSTALLED = $(VENV)/.stamp-$(firstword $(foreach each,$(1),$(if $(wildcard $(VENV)/.stamp-$(each)),$(each))) $(lastword $(1)))

# Where npm is, the Node clients are installed too, and for `make test` the coding agents (800 MB); their tests say that
# they skip elsewhere.
locked_by_npm = $(if $(shell command -v npm),$(foreach each,$(1),$(if $(wildcard $(each)/package-lock.json),$(each)/node_modules/.package-lock.json)))

.PHONY: help setup demo serve test check-lint format bench eval live pictures docs torture audit release redis prometheus ranks lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.stamp-dev ranks $(call locked_by_npm,$(CLIENTS)) ## everything to develop and test with, in .venv

demo: $(call INSTALLED,dev base) ranks ## show what the proxy does, without a key or a model (ARGS=...)
	@$(BIN)/condenser demo $(ARGS)

serve: $(call INSTALLED,dev base) ranks ## run the proxy (UPSTREAM=... ARGS=...)
	@$(BIN)/condenser serve $(if $(UPSTREAM),--upstream $(UPSTREAM)) $(ARGS)

# A worker that crashes ends the run at once, by the name of its test: with another in its place pytest-xdist may wait for ever.
test: setup redis chromium prometheus $(VENV)/gateway/.stamp $(call locked_by_npm,$(AGENTS)) check-lint ## the whole check: lint, types, tests (ARGS=... for pytest)
	@$(BIN)/python -m pytest -n auto --dist loadfile --max-worker-restart 0 $(ARGS)

check-lint: setup ## ruff and mypy
	@$(BIN)/ruff check --output-format concise .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict proxy strategies tests bench eval deploy

format: setup ## let ruff write the form it checks
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup ## measure what the proxy adds (ARGS=...)
	@$(BIN)/python -m bench $(ARGS)

eval: setup .venv-kits/.stamp ## measure what of annotated dialogues reaches the model (ARGS=...)
	@$(BIN)/python -m eval $(ARGS)

# The servers before which the tests can run, by the environments that hold them.
LIVE_llama := .venv-live/.stamp
LIVE_vllm := .venv-vllm/.stamp
live: setup $(LIVE_$(SERVER)) ## tests before a real model server (SERVER=vllm: vLLM's); ARGS=turns measures turns
	@$(if $(LIVE_$(SERVER)),,$(error SERVER is llama or vllm))LIVE_SERVER=$(SERVER) $(BIN)/python -m tests.live $(ARGS)

pictures: setup chromium ## draw the pictures of the documents, from what the program does, into docs/images
	@$(BIN)/python -m bench.pictures

docs: .venv-docs/.stamp ## build the documents as a site with search, in site/; fails on a broken link
	@$(BIN)/python deploy/build_site.py .venv-docs/bin/zensical

torture: setup redis ## the slow and violent tests, and more examples of each property (ARGS=... for pytest)
	@$(BIN)/python -m pytest -m "torture or hypothesis" --hypothesis-profile torture $(ARGS)

# In an environment of its own, because it runs beside the program and is no part of it.
audit: auditor ## look the locked packages up among known vulnerabilities (needs the network)
	@sh deploy/audit.sh $(VENV)/audit/bin/pip-audit requirements/*.txt

# Git says what is published, the changelog whether it is; see CONTRIBUTING.md.
release: ranks auditor ## build what is published and the list of its parts, check and audit it (needs the network)
	@$(BIN)/python -m venv $(VENV)/release
	@$(VENV)/release/bin/python -m pip -qq --disable-pip-version-check install --require-hashes -r requirements/release.txt
	@$(VENV)/release/bin/python deploy/release.py $(VENV)/audit/bin/pip-audit

auditor: | $(VENV)/.stamp-venv
	@$(BIN)/python -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip -qq --disable-pip-version-check install --require-hashes -r requirements/audit.txt

chromium: | $(VENV)/.stamp-dev
	@sh deploy/ensure_chromium.sh

redis: | $(VENV)/.stamp-venv
	@sh deploy/ensure_redis.sh $(VENV)

prometheus: | $(VENV)/.stamp-venv
	@sh deploy/ensure_prometheus.sh $(VENV)

# Verifies the files that are there and fetches only what is missing.
ranks: | $(VENV)/.stamp-venv
	@$(BIN)/python deploy/fetch_ranks.py --into proxy/tokens/ranks

$(VENV)/.stamp-venv: deploy/check_python.py
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) here; name an interpreter with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) deploy/check_python.py
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# A line for each package as it comes, since the first time takes a minute, and all that follows an error. The pipe hides
# whether pip fails; the stamp tells.
$(VENV)/.stamp-%: requirements/%.txt requirements/build.txt pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing the $$(cat requirements/$*.txt requirements/build.txt | grep '==' | sort -u | grep -vcE "platform == '(win32|emscripten)'") packages of requirements/$*.txt"
	@rm -f $@
	@{ $(PIP) install --require-hashes -r requirements/$*.txt -r requirements/build.txt && \
	    $(PIP) -qq install --no-deps --no-build-isolation -e . && touch $@; } 2>&1 | awk ' \
	    /^ *(ERROR|error|Traceback)/ { failed = 1 } \
	    failed { print > "/dev/stderr" } \
	    /^Collecting/ { printf "  %3d %s\n", ++n, $$2; fflush() } \
	    /^Installing/ { print "  unpacking"; fflush() }'
	@test -e $@

# The public kits and the proxies beside us, and what builds the site, in environments of their own: the program depends
# on none of them.
.venv-%/.stamp: requirements/%.txt | $(VENV)/.stamp-venv
	@echo "installing the $$(grep -c '==' $<) packages of $<"
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip -qq --disable-pip-version-check install --require-hashes -r $<
	@touch $@

# A gateway before us, likewise: LiteLLM's proxy, 500 MB.
$(VENV)/gateway/.stamp: requirements/gateway.txt | $(VENV)/.stamp-venv
	@echo "installing the $$(grep -c '==' $<) packages of $<"
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip -qq --disable-pip-version-check install --require-hashes -r $<
	@touch $@

# Model servers and a model, likewise. Some of their other requirements are left out: only the server and the file are used.
.venv-vllm/.stamp: requirements/torch.txt
.venv-live/.stamp .venv-vllm/.stamp: .venv-%/.stamp: requirements/%.txt | $(VENV)/.stamp-venv
	@echo "installing the $$(cat $(filter %.txt,$^) | grep -c '==') packages of $(filter %.txt,$^)"
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip -qq --disable-pip-version-check install --no-deps --require-hashes $(addprefix -r ,$(filter %.txt,$^))
	@touch $@

%/node_modules/.package-lock.json: %/package-lock.json
	@echo "installing $*"
	@cd $* && npm ci --loglevel=error --no-audit --no-fund --ignore-scripts >/dev/null
	@touch $@

# The locks hold no registry address: pip and uv take theirs from the machine's own configuration.
LOCK = $(VENV)/lock/bin/uv pip compile --quiet --generate-hashes --universal --no-emit-index-url \
	--custom-compile-command "make lock" --python-version 3.11 $(ARGS)

lock: | $(VENV)/.stamp-venv ## write requirements/*.txt anew (ARGS=--upgrade takes newer versions)
	@$(BIN)/python -m venv $(VENV)/lock
	@$(VENV)/lock/bin/python -m pip -qq --disable-pip-version-check install --require-hashes -r requirements/lock.txt
	@$(LOCK) pyproject.toml -o requirements/base.txt
	@$(LOCK) pyproject.toml --extra dev -c requirements/base.txt -o requirements/dev.txt
	@$(LOCK) requirements/build.in -c requirements/dev.txt -o requirements/build.txt
	@$(LOCK) requirements/lock.in -o requirements/lock.txt
	@$(LOCK) requirements/audit.in -o requirements/audit.txt
	@$(LOCK) requirements/kits.in -o requirements/kits.txt
	@$(LOCK) requirements/gateway.in -o requirements/gateway.txt
	@$(LOCK) requirements/docs.in -o requirements/docs.txt
	@$(LOCK) requirements/release.in -c requirements/dev.txt -o requirements/release.txt
	@$(LOCK) --no-deps requirements/redis.in -o requirements/redis.txt
	@$(LOCK) --no-deps requirements/live.in -o requirements/live.txt
	@$(LOCK) --override requirements/vllm-without.in requirements/vllm.in -o requirements/vllm.txt

clean: ## remove what the other targets made
	rm -rf $(VENV) .venv-* $(addsuffix /node_modules,$(CLIENTS) $(AGENTS)) dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
