# Each target sets up what it needs: `make test` works in a fresh clone.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready-$(shell cat requirements-dev.txt pyproject.toml | cksum | cut -d ' ' -f 1)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: test soak lint demo bench corpus proof build-kernels vscode vscode-test

# A hundred processes are started from the tree: what is compiled is kept, whatever is usual here.
test soak: export PYTHONDONTWRITEBYTECODE =

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal

# What `make test` leaves out: all pairs of cases and ways, inductor, two processes, all models, all
# rows, long random runs.
soak: $(READY)
	$(BIN)/python -m pytest -m slow -n auto --dist worksteal

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

demo: $(READY)
	$(BIN)/python -m demo

bench: $(READY)
	$(BIN)/python -m benchmarks

corpus: $(READY)
	$(BIN)/python -m benchmarks.corpus

proof: $(READY)
	$(BIN)/python -m benchmarks.proof

build-kernels: $(READY)
	cd fixtures && ../$(BIN)/python -c "import kernels; kernels.load()"

# Needs npm; what it builds is editors/vscode/dist/trainify.vsix.
vscode:
	cd editors/vscode && npm ci --no-fund --no-audit && npm run package

# VS Code in a browser, to try the extension in: some 300 MB of npm packages.  Needs Chromium too.
vscode-test: vscode $(READY)
	@command -v "$${CHROMIUM:-chromium}" || { echo "Chromium is missing; CHROMIUM says where it is" >&2; exit 1; }
	cd editors/vscode/test && npm ci && npm run prepare-vscode
	$(BIN)/python -m pytest -m slow tests/lsp/test_vscode_session.py

# torch comes first, so that whatever builds against it finds it.
$(READY):
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install "$$(grep '^torch==' requirements-dev.txt)"
	$(PIP) install -r requirements-dev.txt
	$(PIP) install -e .
	rm -f .venv/ready-*
	touch $@
