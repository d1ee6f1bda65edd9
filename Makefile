# `make` or `make help` lists the targets. Nothing has to be run before any of them: they set up .venv themselves.

PYTHON ?= python3
# Extras: the tests need those of all that they test, a table those that its file names (extras: [hf]).
TABLE_FILE = $(if $(filter %.yaml,$(TABLE)),$(TABLE),conf/tables/$(TABLE).yaml)
OF_TABLE = $(shell sed -n 's/^extras: *\[\(.*\)\].*/\1/p' "$(TABLE_FILE)" 2>/dev/null | tr -d ' ')
OF_GOAL = $(if $(filter test,$(MAKECMDGOALS)),hf)$(if $(filter reproduce,$(MAKECMDGOALS)),$(OF_TABLE))
EXTRAS ?= dev$(addprefix $(COMMA),$(OF_GOAL))
PYTHONS := $(PYTHON) $(filter-out $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
RUN := .venv/bin/python
STAMPS = $(addprefix .venv/.installed-,$(subst $(COMMA), ,$(EXTRAS)))
INSTALLED = [ $@ -nt pyproject.toml ] && [ $@ -nt constraints.txt ]
LOOPS := .venv/.compiled
COMMA := ,
TABLES = $(basename $(notdir $(wildcard conf/tables/*.yaml)))
SWEEPS = $(basename $(notdir $(wildcard conf/sweeps/*.yaml)))

# Kept bytecode halves the time of every start. Where the environment forbids it, .venv would never have any.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup test check reproduce status table data clean needs-table needs-sweep sweep

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2} /^#  +\[/ {print substr($$0, 2)}' Makefile

setup: $(STAMPS) $(LOOPS) ## Make .venv with the pinned dependencies, when it is not there or out of date.
#               [EXTRAS=dev,wandb,tensorboard,hf] [PYTHON=path/to/python3]
	@:

test: setup ## Run the tests. Those whose data is not there are skipped and say so.
#               [ARGS="-k inference"]
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -q -n auto --maxprocesses=4 --dist loadfile --no-loadscope-reorder $(ARGS)

check: setup ## Run the linters, the type checker, the import rules, the size budget and conf/.
	@$(RUN) -m ruff check --quiet --output-format concise .
	@$(RUN) -m ruff format --check --quiet . || { echo "Not formatted as ruff does it; run: $(RUN) -m ruff format ." >&2; exit 1; }
	@$(RUN) -m scripts.check_size
	@$(RUN) -m scripts.check_conf
	@$(RUN) -c 'from importlinter.cli import lint_imports_command as main; main()' --no-logo
	@$(RUN) -m mypy

reproduce: needs-table setup ## Run what is not yet done of a paper's table and draw it: make reproduce TABLE=quickstart
#               [ROWS=ce,dynamic_nce] [COLUMNS=bibtex,genbase] [SEEDS=0,1,2] [JOBS=2] [FRESH=1] [VERIFY=1] [DRY=1]
#               [ON=slurm] [CLUSTER=conf/cluster/cpu.yaml] [LOGGER=conf/logger/wandb.yaml]
	@$(RUN) -m scripts.reproduce "$(TABLE)" $(if $(ROWS),--rows "$(ROWS)") $(if $(COLUMNS),--columns "$(COLUMNS)") \
	    $(if $(SEEDS),--seeds "$(SEEDS)") $(if $(JOBS),--jobs "$(JOBS)") $(if $(FRESH),--fresh) \
	    $(if $(VERIFY),--verify) $(if $(DRY),--dry-run) $(if $(ON),--on "$(ON)") \
	    $(if $(CLUSTER),--cluster "$(CLUSTER)") $(if $(LOGGER),--logger "$(LOGGER)")

status: needs-table setup ## Show the state of each run of a table and its job in SLURM: make status TABLE=seal_mlc
	@$(RUN) -m scripts.reproduce "$(TABLE)" --status $(if $(ROWS),--rows "$(ROWS)") \
	    $(if $(COLUMNS),--columns "$(COLUMNS)") $(if $(SEEDS),--seeds "$(SEEDS)")

table: needs-table setup ## Draw a table again from the finished runs, without running any: make table TABLE=seal_mlc
	@$(RUN) -m scripts.reproduce "$(TABLE)" --collect $(if $(LOGGER),--logger "$(LOGGER)")

sweep: needs-sweep setup ## Run a W&B sweep file, its trials as ordinary runs: make sweep SWEEP=implicit_cd
#               [ENGINE=local|wandb] [JOBS=2] [COUNT=20] [ADOPT=conf/tuned/seal_mlc/bibtex.yaml:cd] [DRY=1]
#               [ON=slurm] [CLUSTER=conf/cluster/cpu.yaml]
	@$(RUN) -m scripts.sweep "$(SWEEP)" $(if $(ENGINE),--engine "$(ENGINE)") $(if $(JOBS),--jobs "$(JOBS)") \
	    $(if $(COUNT),--count "$(COUNT)") $(if $(ADOPT),--adopt "$(ADOPT)") $(if $(DRY),--dry-run) \
	    $(if $(ON),--on "$(ON)") $(if $(CLUSTER),--cluster "$(CLUSTER)")

data: setup ## Fetch and verify the data sets, or one: make data DATASET=bibtex. LIST=1 shows them all.
	@$(RUN) -m scripts.fetch_data $(subst $(COMMA), ,$(DATASET)) $(if $(LIST),--list)

clean: ## Remove .venv and the tools' caches. Runs, results and data stay.
	@rm -rf .venv .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
	@find . -name __pycache__ -type d -not -path './runs/*' -not -path './data/*' -prune -exec rm -rf {} +

needs-table:
	@test -n "$(strip $(TABLE))" || { \
	    echo "Which table? Name one, for example: make $(firstword $(MAKECMDGOALS)) TABLE=quickstart" >&2; \
	    echo "There are: $(if $(TABLES),$(TABLES),none in conf/tables)" >&2; exit 1; }

needs-sweep:
	@test -n "$(strip $(SWEEP))" || { \
	    echo "Which sweep? Name one, for example: make sweep SWEEP=implicit_cd" >&2; \
	    echo "There are: $(if $(SWEEPS),$(SWEEPS),none in conf/sweeps)" >&2; exit 1; }

# One stamp an extra: older than its sources when they changed, and not there when an installation broke off.
# The first one that is not up to date installs all extras at once.
.venv/.installed-%: pyproject.toml constraints.txt
	@$(INSTALLED) && exit 0; \
	for python in $(PYTHONS); do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "Python 3.11 or newer is needed, and none was found (looked for: $(PYTHONS))." >&2; \
	    echo "Install it, or say where it is: make $(MAKECMDGOALS) PYTHON=path/to/python3" >&2; exit 1; \
	fi; \
	if ! $(RUN) -m pip --version >/dev/null 2>&1 && ! "$$found" -m venv --clear .venv; then \
	    echo "$$found could not make .venv, see above. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; \
	fi
	@$(INSTALLED) || echo "Setting up .venv from constraints.txt ($(EXTRAS)): once, a few minutes, mostly downloads (log: .venv/install.log)."
	@$(INSTALLED) && exit 0; \
	$(RUN) -m pip install --no-compile --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]" >.venv/install.log 2>&1 & \
	pip=$$!; trap 'kill $$pip; exit 130' INT TERM; \
	while kill -0 $$pip 2>/dev/null; do \
	    if [ -t 1 ]; then printf '\r\033[K%.78s' "$$(tail -n 1 .venv/install.log)"; fi; sleep 1; \
	done; \
	if [ -t 1 ]; then printf '\r\033[K'; fi; \
	wait $$pip || { \
	    grep -i error .venv/install.log >&2; \
	    echo "The installation failed; .venv/install.log says it all. Once that is mended, run the same command again." >&2; \
	    exit 1; }
	@$(INSTALLED) && exit 0; \
	for stamp in $(STAMPS); do \
	    [ $$stamp -nt pyproject.toml ] && [ $$stamp -nt constraints.txt ] || touch $$stamp; \
	done; echo "Set up."

# What is compiled stands beside the code; numba alone would not see that a file it is compiled with changed.
# Meanwhile a command that imports what a run does leaves its bytecode.
$(LOOPS): $(firstword $(STAMPS)) $(wildcard inference/chain/kernels/*.py)
	@echo "Compiling the loops of chains for this processor: once, about half a minute."
	@$(RUN) -m scripts.train --help all >/dev/null & $(RUN) -m scripts.compile_chain && wait
	@touch $@
