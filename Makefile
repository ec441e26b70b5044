# Each target sets up what it needs in .venv, build included, and can be called first on a fresh machine.
#   make demo      a small checkpoint, then the embeddings of a real text from it
#   make test      every test: C++ (ctest) and Python (pytest)
#   make lint      formatting, lint and types, the same as CI
#   make sanitize  the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   make docs      the documentation site, into build/docs
#   make fuzz      the checkpoint reader under a coverage-guided fuzzer (100 000 inputs)
#   make bench     the CPU kernels against their baselines (a table of 4 GiB)
#   make gpu-test  every test on a machine with a GPU, with its own Python: see tests/gpu_test
#   make gpu-bench the GPU kernels against their baselines there
#   make clean     remove .venv and everything built
# TORCH_SPEC is the torch to install, PYTHON the interpreter of a new .venv. What was made with other values of
# TORCH_SPEC, CMAKE_ARGS, NGRAM_PLE_BACKEND, NGRAM_PLE_CUDA_ARCHS, NGRAM_PLE_HIP_ARCHS or CXX is made again, and so is
# all of it in a copy of this folder.

TORCH_SPEC ?= torch==2.13.0
PYTHON ?= python3

VENV := .venv
BIN := $(abspath $(VENV)/bin)
# [build-system] of pyproject.toml, installed once instead of for every build
BUILD_TOOLS := 'setuptools>=77' 'cmake>=3.25' ninja 'pybind11>=2.12'
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
CPP_TESTS := -G Ninja -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja -DNGRAM_PLE_TESTS=ON -DNGRAM_PLE_BINDINGS=OFF \
             -DNGRAM_PLE_BACKEND=cpu $(CMAKE_ARGS)
NATIVE := setup.py pyproject.toml CMakeLists.txt $(wildcard cmake/* csrc/*/*)
APT_LINE := apt install make git g++ python3-venv python3-dev libgtest-dev

SETTINGS := build/settings
TORCH_SETTINGS := $(CURDIR) $(TORCH_SPEC)
BUILD_SETTINGS := $(CURDIR) $(CMAKE_ARGS) $(NGRAM_PLE_BACKEND) $(NGRAM_PLE_CUDA_ARCHS) $(NGRAM_PLE_HIP_ARCHS) \
                  $(CXX) $(CXXFLAGS) $(LDFLAGS)

.PHONY: FORCE demo test lint sanitize docs fuzz bench gpu-test gpu-bench clean system
.DELETE_ON_ERROR:

demo: $(VENV)/native $(VENV)/extra-demo
	$(BIN)/ngram-ple demo --out build/demo

test: $(VENV)/native $(VENV)/extra-test build/tests/CMakeCache.txt
	$(BIN)/cmake --build build/tests
	$(BIN)/ctest --test-dir build/tests --output-on-failure --parallel 2
	$(BIN)/python -m pytest

lint: $(VENV)/extra-dev
	PATH="$(BIN):$$PATH" pre-commit run --all-files --show-diff-on-failure

sanitize: $(VENV)/base build/sanitize/CMakeCache.txt
	$(BIN)/cmake --build build/sanitize
	$(BIN)/ctest --test-dir build/sanitize --output-on-failure --parallel 2

docs: $(VENV)/native $(VENV)/extra-docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html docs build/docs

fuzz: $(VENV)/native $(VENV)/extra-fuzz
	$(BIN)/python tests/fuzz/run.py

bench: $(VENV)/native $(VENV)/extra-bench
	$(BIN)/python bench/ngram_ids.py
	$(BIN)/python bench/embed.py
	$(BIN)/python bench/convert.py

gpu-test:
	PYTHON=$(PYTHON) tests/gpu_test

# On what gpu-test built.
gpu-bench: export PYTHONPATH := build/gpu/site$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu-bench:
	$(PYTHON) bench/device_tables.py --json build/gpu/device.json --plot build/gpu/device.png
	$(PYTHON) bench/convert.py --device cuda --json build/gpu/convert.json
	$(PYTHON) bench/host_memory.py --json build/gpu/host_memory.json
	[ "$$(nvidia-smi -L | wc -l)" -lt 2 ] || $(PYTHON) bench/etp.py --json build/gpu/etp.json
	$(PYTHON) bench/host_tables.py --json build/gpu/host.json --plot build/gpu/host.png

clean:
	rm -rf $(VENV) build python/*.egg-info python/ngram_ple/*.so python/ngram_ple/_build_info.json

# What pip cannot install: asked for in one line.
system:
	@command -v $${CXX:-c++} >/dev/null && \
	$(PYTHON) -c 'import ensurepip, os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h"))' \
	  2>/dev/null && \
	echo '#include <gtest/gtest.h>' | $${CXX:-c++} -E -x c++ - >/dev/null 2>&1 || \
	{ echo "A compiler, Python's venv or headers, or GoogleTest is missing. On Debian or Ubuntu:"; \
	  echo "  $(APT_LINE)"; exit 1; }

# Files that hold values, rewritten when those change.
$(SETTINGS)/torch: WANTED = $(TORCH_SETTINGS)
$(SETTINGS)/build: WANTED = $(BUILD_SETTINGS)
$(SETTINGS)/torch $(SETTINGS)/build: FORCE
	@mkdir -p $(@D)
	@echo '$(subst ','\'',$(WANTED))' >$@.new
	@cmp -s $@.new $@ || cp $@.new $@

# torch comes first: the build looks for it and never chooses one.
# The programs of a .venv that was copied along still run the Python of the other one.
$(VENV)/base: pyproject.toml $(SETTINGS)/torch | system
	$(PYTHON) -m venv $$(grep -qxsF '$(CURDIR)' $(VENV)/place || echo --clear) $(VENV)
	echo '$(CURDIR)' >$(VENV)/place
	$(PIP) '$(TORCH_SPEC)' $(BUILD_TOOLS)
	touch $@

# The package in place; a changed C++ source is built again, Python sources need nothing.
$(VENV)/native: $(VENV)/base $(NATIVE) $(SETTINGS)/build
	@echo "Building ngram_ple into $(VENV) (the first time takes minutes)"
	$(PIP) --no-build-isolation --no-deps --editable .
	touch $@

# What one of the extras of pyproject.toml asks for.
$(VENV)/extra-%: $(VENV)/base | $(VENV)/native
	$(PIP) --no-build-isolation --editable '.[$*]'
	touch $@

# The C++ tests, configured from nothing: CMake would keep settings that are no longer given.
build/sanitize/CMakeCache.txt: CPP_TESTS += -DNGRAM_PLE_SANITIZE=ON
build/%/CMakeCache.txt: $(SETTINGS)/build | $(VENV)/base
	$(BIN)/cmake --fresh -S . -B build/$* $(CPP_TESTS)
