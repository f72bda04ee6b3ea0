PROFILE ?= h200

# `make help` lists the targets. Variables: PROFILE (a file in notebooks/profiles), SEEDS (all, of the profile),
# SEED (one), TRAIN (auto, always, never), PYTHON (makes the environment), VENV (an environment that is there already),
# EXTRA (report, train, vllm or dev: what to install).
TRAIN ?= auto
PYTHON ?= python3
VENV ?= .venv

# What looks like one of these variables and is none would be ignored.
$(foreach name,PROFILES VARIANTS STAGES PARAMETERS VALUE RUNS STEP EXTRAS TARGET TARGETS,\
  $(if $(filter command,$(origin $(name))),$(error no variable $(name); `make` lists those there are)))
ifeq ($(wildcard notebooks/profiles/$(PROFILE).yaml),)
$(error no profile notebooks/profiles/$(PROFILE).yaml; there are: $(basename $(notdir $(wildcard notebooks/profiles/*.yaml))))
endif
ifneq ($(VARIANT)$(filter variant,$(MAKECMDGOALS)),)
ifeq ($(wildcard notebooks/variants/$(or $(VARIANT),none).yaml),)
$(error VARIANT is "$(VARIANT)"; expected one of $(basename $(notdir $(wildcard notebooks/variants/*.yaml))))
endif
endif
ifeq ($(filter auto always never,$(TRAIN)),)
$(error TRAIN is "$(TRAIN)"; expected auto, always or never)
endif
# the line `seeds: [0, 1]` of the profile
SEEDS ?= $(or $(SEED),$(strip $(shell sed -n 's/^seeds: *\[\(.*\)\].*/\1/p' notebooks/profiles/$(PROFILE).yaml | tr ',' ' ')))
ifeq ($(strip $(SEEDS)),)
$(error notebooks/profiles/$(PROFILE).yaml has no line such as `seeds: [0, 1]`)
endif
ifneq ($(words $(sort $(SEEDS)))$(shell printf '%s\n' '$(SEEDS)' | tr -d '0-9 '),$(words $(SEEDS)))
$(error SEEDS (or SEED) is "$(SEEDS)"; expected different whole numbers such as 0 1)
endif
ifneq ($(and $(filter command,$(origin SEEDS)),$(word 2,$(SEEDS)),$(filter 01_sft 02_dpo 03_grpo trial variant,$(MAKECMDGOALS))),)
$(error SEEDS is "$(SEEDS)"; expected one seed for $(MAKECMDGOALS))
endif
FIRST_SEED := $(firstword $(SEEDS))
export TRAIN SEEDS

# Recorded runs need no torch.
RECORDED := $(wildcard book/results/$(PROFILE)/*/run.json)
EXTRA := train
ifneq ($(TRAIN),always)
ifneq ($(RECORDED)$(filter never,$(TRAIN)),)
EXTRA := report
endif
endif
ifeq ($(filter report train vllm dev,$(EXTRA)),)
$(error EXTRA is "$(EXTRA)"; expected report, train, vllm or dev)
endif
# What is installed already may hold more than what is asked for: of these, the first one that is there, and newer than
# the list of packages, will do.
HOLDS_report := dev vllm train
HOLDS_train := dev vllm
there = $(foreach extra,$(HOLDS_$(1)),$(shell find $(VENV)/.ready-$(extra) -newer pyproject.toml 2> /dev/null))
ready = $(firstword $(there) $(VENV)/.ready-$(1))
READY = $(call ready,$(EXTRA))
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
PY := PYTHONPATH=src $(VENV)/bin/python

NB := runs/$(PROFILE)/notebooks
ARMS := 02_dpo 03_grpo
EXECUTED := $(NB)/00_setup.ipynb $(foreach stage,01_sft $(ARMS),$(foreach seed,$(SEEDS),$(NB)/$(stage)-s$(seed).ipynb))
SETTINGS := $(NB)/.settings
EXECUTE = $(PY) -m lib.build.execute --profile $(PROFILE) --out $@

.NOTPARALLEL:            # two trainings at once would time each other
.DELETE_ON_ERROR:
.SECONDARY:
.DEFAULT_GOAL := help
.PHONY: help book test base record headline verify replay trial variant variant_check serve clean 00_setup 01_sft 02_dpo 03_grpo 04_compare 05_sizing FORCE

help:                    ## this list
	@sed -n 's/^\([a-z0-9_]*\):.*##\(@\?\) \(.*\)/  make \1\t\3/p' Makefile | expand -t 20
	@echo "Variables now: PROFILE=$(PROFILE) SEEDS=\"$(SEEDS)\" TRAIN=$(TRAIN) VENV=$(VENV)"
	@echo "TRAIN=auto: recorded runs where they match, else this copy's own, else train. always: no recorded runs. never: no training."

book: _build/html/index.html  ## the book in _build/html: executes what changed, then builds
	@echo "Book: _build/html/index.html (profile $(PROFILE), seeds $(SEEDS), TRAIN=$(TRAIN))"

# ---------------------------------------------------------------- environment

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	  || { echo "$(PYTHON) is not Python 3.11 to 3.13; name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -f $@; echo "$(PYTHON) -m venv does not work here. Install it \
	(Debian, Ubuntu: apt-get install python3-venv), or name an environment that is there: make VENV=/path/to/it"; exit 1; }

$(VENV)/.ready-%: pyproject.toml | $(VENV)/bin/python
	@echo "Installing into $(VENV) what pyproject.toml lists under '$*'"
	@$(PIP) --no-index --no-build-isolation --editable '.[$*]' > /dev/null 2>&1 \
	  || $(PIP) --editable '.[$*]'   # the first one needs no network, where everything is there already
	@touch $@

# ---------------------------------------------------------------- notebooks, as file targets

# Stamps: files that get newer only when what they hold changed; PPID is this make, of which two may run.
update = if cmp -s $@.$$PPID.new $@; then rm $@.$$PPID.new; else mv $@.$$PPID.new $@; fi
USED = $(wildcard $(patsubst %.ipynb,%.used,$(EXECUTED) $(NB)/04_compare.ipynb $(NB)/05_sizing.ipynb))

# TRAIN and the recorded runs; newer, too, when a record behind an executed notebook changed or vanished
$(SETTINGS): FORCE
	@mkdir -p $(NB)
	@for used in $(USED); do sha256sum --check --status $$used 2> /dev/null || rm -f $@ $$used $${used%.used}.ipynb; done
	@{ echo "TRAIN=$(TRAIN)"; cat /dev/null $(RECORDED) | sha256sum; } > $@.$$PPID.new
	@$(update)

$(NB)/.seeds: FORCE
	@mkdir -p $(NB)
	@echo "$(SEEDS)" > $@.$$PPID.new
	@$(update)

COMMON := notebooks/profiles/$(PROFILE).yaml $(SETTINGS)

$(NB)/00_setup.ipynb: notebooks/00_setup.py $(COMMON) | $(READY)
	@$(EXECUTE) 00_setup
$(NB)/01_sft-s%.ipynb: notebooks/01_sft.py $(NB)/00_setup.ipynb $(COMMON) | $(READY)
	@$(EXECUTE) 01_sft --seed $*
$(NB)/02_dpo-s%.ipynb: notebooks/02_dpo.py $(NB)/01_sft-s%.ipynb $(COMMON) | $(READY)
	@$(EXECUTE) 02_dpo --seed $*
$(NB)/03_grpo-s%.ipynb: notebooks/03_grpo.py $(NB)/01_sft-s%.ipynb $(COMMON) | $(READY)
	@$(EXECUTE) 03_grpo --seed $*
$(NB)/04_compare.ipynb: notebooks/04_compare.py $(EXECUTED) $(NB)/.seeds $(wildcard book/*.yaml) \
  $(wildcard book/results/bench/* book/results/$(PROFILE)/*.csv runs/$(PROFILE)/*/record/run.json) $(COMMON) | $(READY)
	@$(EXECUTE) 04_compare --seeds $(SEEDS)
$(NB)/05_sizing.ipynb: notebooks/05_sizing.py $(EXECUTED) $(NB)/.seeds $(wildcard book/*.yaml book/*.csv) \
  $(wildcard book/results/bench/*) $(COMMON) | $(READY)
	@$(EXECUTE) 05_sizing --seeds $(SEEDS)

-include $(wildcard $(NB)/*.d)   # the modules of src/lib that each notebook imports

00_setup: $(NB)/00_setup.ipynb   ## one stage with what it needs, such as `make 02_dpo SEED=1`
01_sft 02_dpo 03_grpo: %: $(NB)/%-s$(FIRST_SEED).ipynb
04_compare 05_sizing: %: $(NB)/%.ipynb
00_setup 01_sft 02_dpo 03_grpo 04_compare 05_sizing:
	@echo "Executed: $<"

# ---------------------------------------------------------------- the book

PAGES := $(wildcard book/*.md book/*.yml book/*.yaml book/*.bib book/_static/* book/results/*.csv) _config.yml

# one book for all profiles: rebuilt when another profile, other seeds or other pages are asked for
_build/.asked: FORCE
	@mkdir -p _build
	@echo "$(PROFILE) $(SEEDS) $(PAGES)" > $@.$$PPID.new
	@$(update)

_build/html/index.html: $(NB)/04_compare.ipynb $(NB)/05_sizing.ipynb $(EXECUTED) $(PAGES) src/lib/build/publish.py src/lib/build/pages.py src/lib/build/mathml.py _build/.asked | $(READY)
	@$(PY) -m lib.build.publish --profile $(PROFILE) --seeds $(SEEDS)

serve:                   ## the built book on http://localhost:8000
	@test -e _build/html/index.html || { echo "no book yet: make book"; exit 1; }
	$(PYTHON) -m http.server --bind localhost --directory _build/html 8000

# ---------------------------------------------------------------- runs

base: $(call ready,train)  ## retrain the tiny base model that the laptop profile starts from (src/lib/tiny)
	$(PY) -m lib.base

record: | $(call ready,report)  ## copy this copy's finished runs of PROFILE and SEEDS to book/results/PROFILE
	@$(PY) -m lib.audit record $(PROFILE) $(SEEDS)

headline: | $(call ready,report)  ## draw the README's figure from the recorded runs of PROFILE
	@$(PY) -m lib.report.headline $(PROFILE)

verify: | $(call ready,report)  ## recompute what the records claim: scores, rewards, billed seconds, hashes
	@$(PY) -m lib.audit verify

STEPS ?= 3
replay: $(call ready,train)  ## retrain the first STEPS of a recorded RUN (such as dpo-s0) and compare the losses
	@case "$(STEPS)" in ''|*[!0-9]*|0) echo "STEPS is \"$(STEPS)\"; expected a whole number above 0"; exit 1;; esac
	@test -n "$(RUN)" || { echo "name a run: make replay PROFILE=$(PROFILE) RUN=dpo-s0 STEPS=3"; exit 1; }
	$(PY) -m lib.audit replay $(PROFILE) $(RUN) $(STEPS)

trial: $(call ready,train)  ## try VALUES of a PARAMETER of one STAGE on the development split, with seed SEED (or the first)
	@test -n "$(STAGE)" -a -n "$(PARAMETER)" -a -n "$(VALUES)" || { echo "name what to try, such as: make trial \
	PROFILE=laptop STAGE=02_dpo PARAMETER=dpo_learning_rate VALUES='3e-5 1e-4'"; exit 1; }
	@$(PY) -m lib.trials $(PROFILE) $(FIRST_SEED) $(STAGE) $(PARAMETER) $(VALUES)

variant_check: | $(call ready,report)
	@$(PY) -m lib.variants $(PROFILE) $(FIRST_SEED) $(VARIANT) check

variant: variant_check $(call ready,train) $(NB)/01_sft-s$(FIRST_SEED).ipynb  ## run a VARIANT of an arm (a file in notebooks/variants) with seed SEED (or the first)
	@$(PY) -m lib.variants $(PROFILE) $(FIRST_SEED) $(VARIANT)

# ---------------------------------------------------------------- tests

test: $(VENV)/.ready-dev   ## ruff and the tests
	$(PY) -m ruff check .
	$(PY) -m pytest -rs

clean:                   ## remove built pages, executed notebooks and the runs of this copy; recorded runs stay
	rm -rf _build book/stages runs
