# Every target sets up what it needs: a fresh machine has Python 3.11 or later, make and git (and curl, which
# docs/reference/rest.md types: the tests type what pages say).
#
#   make setup   .venv: the locked base and development requirements, this checkout and its plug-ins
#   make setup-NAME  .venv-NAME: torch, jax, mpi ... as requirements/NAME.txt says, for its example and its test
#   make lint    style, types and import direction
#   make check   lint, and the fast tests of everything
#   make test    what every change must pass: all tests that need no Kubernetes, no framework and little CPU time
#   make test-costs  what each test file takes, written to tests/costs.tsv, by which `make test` sorts them
#   make test-gpu  the tests that need an NVIDIA GPU, by PYTHON, which has ganger and torch with CUDA
#   make test-cluster  a few tests on a real Kubernetes, where one is built: three minutes
#   make test-cluster-full  all of them, and those of plug-ins that need machines of their own; builds Kubernetes first
#   make test-long  every example with its framework, what takes long; then the laws and crash tests on all policies and
#                moments, and 100,000 forged messages, exit records, frames and rows of the log each
#   make seeds   the whole product in one process on virtual time, killed and healed by seed: SEEDS=100 from FIRST=1,
#                or the numbers of SEED
#   make demo    a training job that loses a worker and comes back, told as it happens
#   make bench   the figures, one file of a folder of bench/ each (NAMES="first_line install" picks some)
#   make cluster       a real Kubernetes on this machine (NODES=2 FAKE_NODES=0); prints its KUBECONFIG
#   make cluster-down  nothing of it is left
#   make operators  other people's controllers (JobSet, Kubeflow, Ray ...), once, for the tests of the gangs that they create
#   make chart   the Helm chart in build/chart, written from the manifests, and linted; builds Helm once (3 minutes, Go)
#   make minio   the S3-compatible service that tests of the durable store run against, from its Go module
#   make devices the driver of DRA devices for tests on real nodes, from its Go module
#   make dist    wheels and sdists in dist/, of plug-ins too, checked, and a job run from them in a fresh environment
#   make docs    write again what pages, schemas and definitions take from the code
#   make site    build docs/ into build/site; a warning is an error (npm is needed once, for Mermaid)
#   make lock    resolve requirements/*.txt again from pyproject.toml and requirements/*.in

PYTHON ?= python3
BIN := .venv/bin
TORCH_BIN := .venv-torch/bin
# Many tests wait for processes: more workers than cores of a small machine.
TEST_WORKERS ?= 4
# Tests are processes that write none otherwise, and then each of them, and each server, compiles everything again.
unexport PYTHONDONTWRITEBYTECODE
# What tests of examples and pages run in.
ENVIRONMENTS := torch torchft jax mpi ray spark tensorflow xgboost
FRAMEWORKS := $(filter-out base dev torch uv,$(basename $(notdir $(wildcard requirements/*.in))))
PROJECTS := pyproject.toml plugins/ganger-baselines/pyproject.toml plugins/ganger-ssh/pyproject.toml
SETUP := .venv/.setup-stamp
TORCH_SETUP := .venv-torch/.setup-stamp
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url

.DELETE_ON_ERROR:
.PRECIOUS: .venv-%/.setup-stamp
.PHONY: setup setup-torch setup-frameworks lint check test test-costs test-gpu test-cluster test-cluster-full test-long seeds demo bench cluster cluster-down operators chart minio devices dist docs site lock

setup: $(SETUP)
setup-torch: $(TORCH_SETUP)

$(SETUP): requirements/install.sh requirements/uv.txt requirements/dev.txt $(PROJECTS)
	PYTHON="$(PYTHON)" bash requirements/install.sh .venv requirements/dev.txt
	touch $@

$(TORCH_SETUP): requirements/install.sh requirements/uv.txt requirements/torch.txt $(PROJECTS)
	PYTHON="$(PYTHON)" bash requirements/install.sh .venv-torch requirements/torch.txt
	touch $@

setup-frameworks: $(ENVIRONMENTS:%=.venv-%/.setup-stamp)

# What a job's user would have: the framework, and nothing of ganger.
setup-%: .venv-%/.setup-stamp ;

.venv-%/.setup-stamp: requirements/install.sh requirements/uv.txt requirements/%.txt
	PYTHON="$(PYTHON)" bash requirements/install.sh .venv-$* requirements/$*.txt
	touch $@

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The fast tests of everything: pure code, pages against the code, and the command line without a server.
FAST := tests/architecture tests/core tests/pictures tests/spec tests/docs/test_generated.py tests/docs/test_site.py \
	tests/frameworks/test_golden.py tests/frameworks/test_environment.py tests/cli/test_help.py \
	tests/cli/jobs/test_explain_spec.py tests/cli/test_json.py::test_every_command_is_in_one_of_the_tables \
	tests/cli/output/test_lines.py tests/cli/output/test_story.py tests/cli/test_times.py \
	tests/engine/eventlog/test_codec.py tests/engine/test_pattern.py tests/kubernetes/kubeapi/test_quantity.py \
	tests/kubernetes/nodes/test_topology_levels.py tests/kubernetes/pods/test_pod_template.py \
	tests/launcher/logs/test_python_error.py tests/rest/test_openapi.py tests/sdk/test_names.py \
	tests/service/query/test_sentences.py

check: lint
	$(call LIMIT,300) $(PYTEST) -q -n 2 $(FAST)

PYTEST := $(BIN)/python -m pytest
# A run that does not end is interrupted, so that it says what has failed and what still runs. --foreground: the signal
# is for pytest alone, which ends its workers itself.
LIMIT = timeout --foreground --signal=INT --kill-after=60 $(1)
# A file is run by one worker, which has its fixtures.
BY_FILE := --dist loadfile --no-loadscope-reorder
GATE := not long and not cluster and not gpu

# Both runs, whatever the first one finds. A file of the second measures real seconds of other processes. A test may use
# 5 s of CPU time; beside others on the same cores, and on a slow day, the same work has been 3.5 times as much.
test: $(SETUP)
	failed=0; \
	$(call LIMIT,1200) $(PYTEST) -m "$(GATE) and not serial" -n $(TEST_WORKERS) $(BY_FILE) --maxfail=10 \
		--cpu-limit=20 || failed=$$?; \
	$(call LIMIT,420) $(PYTEST) -m "$(GATE) and serial" --maxfail=10 $(SERIAL) || failed=$$?; \
	exit $$failed

# Files with the marker `serial`: what collects all others needs 10 s to find them.
SERIAL := tests/launcher/health/test_busy.py tests/local/failure tests/rest/server tests/service/attempts

test-costs: $(SETUP)
	$(PYTEST) -m "$(GATE)" -n $(TEST_WORKERS) $(BY_FILE) --write-costs

test-gpu:
	$(PYTHON) -m pytest -m gpu tests/gpu

# What keeps the fake API server honest, and a gang's life on real nodes. One worker: there is one controller.
SMOKE := tests/kubernetes/fakeapi tests/kubernetes/kubeapi/test_api.py tests/kubernetes/manifests/test_admission.py \
	$(addprefix tests/kubernetes/controller/test_controller.py::, \
		test_a_gang_runs_whole_and_its_ranks_know_each_other test_a_pod_that_is_deleted_makes_the_whole_gang_start_anew \
		test_a_killed_controller_loses_nothing_and_doubles_nothing test_the_exit_code_and_the_reason_are_on_the_object) \
	tests/kubernetes/client/test_context_commands.py::test_a_job_is_followed_to_its_end

test-cluster: $(SETUP)
	$(call LIMIT,480) $(BIN)/python -m tools.testcluster run -- $(PYTEST) -m cluster $(SMOKE)

test-cluster-full: $(SETUP) setup-frameworks
	$(BIN)/python -m tools.testcluster build --install
	$(BIN)/python -m tools.testcluster run -- $(PYTEST) -m cluster -n $(TEST_WORKERS) $(BY_FILE) \
		-o timeout_func_only=true

# Other laws of which `make test` draws few examples.
FEW_IN_GATE := tests/engine/test_replay.py tests/engine/query tests/engine/eventlog/test_codec.py \
	tests/engine/eventlog/test_listing.py tests/engine/eventlog/test_pieces.py tests/simulator/metrics \
	tests/simulator/workload/test_gpu_speeds.py tests/simulator/traces/test_trace_laws.py \
	tests/simulator/from_log/test_log_replay.py tests/launcher/checkpoints/test_checkpoint_agreement.py \
	tests/kubernetes/foreign tests/kubernetes/pods/test_binding.py

test-long: $(SETUP) setup-frameworks
	$(PYTEST) -m "long and not cluster and not gpu" -n 2 $(BY_FILE)
	GANGER_TEST_LONG=250 $(PYTEST) tests/laws tests/crash tests/rest/test_fuzz.py tests/train -n 2 $(BY_FILE)
	GANGER_TEST_LONG=250 $(PYTEST) -k "any_ or forged" \
		tests/launcher/launcher_server/test_message_schema.py tests/launcher/protocol/test_forged_input.py \
		tests/local/test_facts.py tests/engine/eventlog/test_damaged_rows.py
	GANGER_TEST_LONG=50 $(PYTEST) -n 2 $(BY_FILE) -m "not cluster and not gpu and not serial" $(FEW_IN_GATE)

SEEDS ?= 100
FIRST ?= 1
seeds: $(SETUP)
	$(BIN)/python -m tests.seeds --seeds $(SEEDS) --first $(FIRST) $(SEED)

demo: $(TORCH_SETUP)
	$(TORCH_BIN)/python examples/demo.py

bench: $(SETUP) $(TORCH_SETUP)
	$(BIN)/python -m bench $(NAMES)

NODES ?= 2
FAKE_NODES ?= 0
cluster: $(SETUP)
	@$(BIN)/python -m tools.testcluster up --nodes $(NODES) --fake-nodes $(FAKE_NODES)

cluster-down: $(SETUP)
	@$(BIN)/python -m tools.testcluster down

operators: $(SETUP)
	$(BIN)/python -m tools.operators

chart: $(SETUP)
	$(BIN)/python -m tools.chart build/chart

minio: $(SETUP)
	$(BIN)/python -m tools.minio

devices: $(SETUP)
	$(BIN)/python -m tools.devicedriver

dist: $(SETUP)
	rm -rf dist
	for project in . plugins/ganger-baselines plugins/ganger-ssh; do \
		$(BIN)/python -m uv build --quiet --no-build-isolation --out-dir dist $$project || exit 1; done
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tools.dist dist

docs: $(SETUP)
	$(BIN)/python -m tools.generate

MERMAID := 11.17.2
MERMAID_SHA256 := 581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8

# The theme would load it from another host.
.venv-docs/mermaid-$(MERMAID).min.js: | .venv-docs/.setup-stamp
	cd .venv-docs && npm pack --silent mermaid@$(MERMAID)
	tar -xzOf .venv-docs/mermaid-$(MERMAID).tgz package/dist/mermaid.min.js > $@
	rm .venv-docs/mermaid-$(MERMAID).tgz
	echo "$(MERMAID_SHA256)  $@" | sha256sum --check --quiet

site: .venv-docs/.setup-stamp .venv-docs/mermaid-$(MERMAID).min.js
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet
	install -m 644 .venv-docs/mermaid-$(MERMAID).min.js build/site/assets/javascripts/mermaid.min.js

lock: $(SETUP)
	$(COMPILE) requirements/uv.in -o requirements/uv.txt
	$(COMPILE) pyproject.toml -o requirements/base.txt
	$(COMPILE) pyproject.toml requirements/dev.in -c requirements/base.txt -o requirements/dev.txt
	$(COMPILE) pyproject.toml --extra kubernetes --extra s3 -c requirements/dev.txt -o requirements/kubernetes.txt
	$(COMPILE) pyproject.toml requirements/torch.in -c requirements/dev.txt -o requirements/torch.txt
	$(foreach name,$(FRAMEWORKS),$(COMPILE) requirements/$(name).in -o requirements/$(name).txt &&) true
