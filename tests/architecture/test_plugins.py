"""Signatures, guarantees, documentation and tests of the plug-ins of this repository, which the registry cannot see.

The registry asks a plug-in for names alone, since a package elsewhere may be older than the interface.
"""

import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ganger import registry
from ganger.check_api.check_interface import Check
from ganger.check_api.rule_tables import OWN_RULES
from ganger.core.nodes.score_interface import Score
from ganger.core.queue_order.policy_interface import Policy
from ganger.frameworks import plain
from ganger.model.policy import Rules

ROOT = Path(__file__).parents[2]
POLICIES, SCORES, FRAMEWORKS, CHECKS = (
    [module for module in group.values() if module.__name__.startswith(("ganger.", "ganger_baselines."))]
    for group in (registry.policies(), registry.scores(), registry.frameworks(), registry.checks())
)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rank_environment": plain.rank_environment,
    **{name: default for name, default in registry._DEFAULTS.items() if inspect.isfunction(default)},
}
"""The functions of a framework, each with an implementation that has the right number of parameters."""

every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda module: module.NAME)
every_score = pytest.mark.parametrize("score", SCORES, ids=lambda module: module.NAME)
every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda module: module.NAME)
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda module: module.NAME)


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def occurs(name: str, *folders: str) -> bool:
    """Return whether a test in these folders names a plug-in: as text, or as a module that it imports."""
    pattern = re.compile(rf'"{name}"|\bscore {name}\b|^from ganger\.policies import .*\b{name}\b', re.MULTILINE)
    paths = [path for folder in folders for path in (ROOT / "tests" / folder).rglob("test_*.py")]
    return any(pattern.search(path.read_text()) for path in paths)


def test_every_own_plugin_loads() -> None:
    assert registry.broken() == {}
    own, baselines = ROOT / "src" / "ganger", ROOT / "plugins" / "ganger-baselines" / "src" / "ganger_baselines"
    own_folders = (own / name for name in ("policies", "frameworks", "checks", "core/nodes/scores"))
    folders = (*own_folders, *baselines.iterdir())
    names = {info.name for info in pkgutil.iter_modules(map(str, folders))}
    modules = (*POLICIES, *SCORES, *FRAMEWORKS, *CHECKS)
    assert {module.NAME.replace("-", "_") for module in modules} == names, (
        "a plug-in has the name of its file or folder"
    )


@pytest.mark.parametrize(
    ("group", "interface"),
    [(registry.POLICIES, Policy), (registry.SCORES, Score), (registry.CHECKS, Check)],
)
def test_the_registry_asks_for_the_interface(group: str, interface: type) -> None:
    functions = {name for name, value in vars(interface).items() if inspect.isfunction(value) and name[0] != "_"}
    assert set(registry._REQUIRED[group]) == functions | set(interface.__annotations__)


@every_policy
def test_a_policy_has_the_parameters_of_the_interface(policy: ModuleType) -> None:
    for name in registry._REQUIRED[registry.POLICIES]:
        if inspect.isfunction(declared := getattr(Policy, name, None)):
            assert parameters(getattr(policy, name)) == parameters(declared), name


@every_score
def test_a_score_has_the_parameters_of_the_interface(score: ModuleType) -> None:
    for name in ("of_nodes", "of_devices"):
        assert len(parameters(getattr(score, name))) == len(parameters(getattr(Score, name))), name


@every_score
def test_a_score_has_a_test_of_its_choice(score: ModuleType) -> None:
    assert occurs(score.NAME, "pictures", "laws"), "show in tests/pictures which node it prefers"


@every_policy
def test_what_a_policy_guarantees_is_a_law(policy: ModuleType) -> None:
    text = "".join(path.read_text() for path in (ROOT / "tests" / "laws").rglob("test_*.py"))
    laws = set(re.findall(r'^@guaranteeing\("(\w+)",', text, re.MULTILINE))
    assert laws
    assert set(policy.LIVENESS_GUARANTEES) <= laws


@every_policy
def test_a_policy_is_in_the_description_of_the_key_order(policy: ModuleType) -> None:
    (doc,) = [part.metadata["doc"] for part in fields(Rules) if part.name == "order"]
    offered = re.search(rf"\b{policy.NAME}\b", doc) is not None
    assert offered == policy.__name__.startswith("ganger."), (
        "add it to the sentence of Rules.order, and run: make docs; a baseline of simulations is not offered there"
    )


@every_policy
def test_a_policy_has_a_test_of_its_order(policy: ModuleType) -> None:
    assert occurs(policy.NAME, "pictures", "simulator", "core", "laws"), "show in tests/pictures what it puts first"


@every_framework
def test_the_functions_of_a_framework_take_what_the_engine_passes(framework: ModuleType) -> None:
    for name, right in FUNCTIONS.items():
        function = getattr(framework, name, right)
        assert len(parameters(function)) == len(parameters(right)), f"{name} takes {parameters(function)}"


@every_framework
def test_a_framework_with_an_environment_runs_for_real(framework: ModuleType) -> None:
    if (ROOT / "requirements" / f"{framework.NAME}.in").exists():
        assert (ROOT / "examples" / f"train_{framework.NAME}.py").exists() or framework.NAME == "torch"
        assert occurs(framework.NAME, "real"), "run its example in tests/real/test_frameworks.py"


@every_check
def test_a_check_has_the_parameters_of_the_interface(check: ModuleType) -> None:
    assert parameters(check.check) == parameters(Check.check)


@every_check
def test_the_rules_that_a_check_names_have_rows(check: ModuleType) -> None:
    named = re.findall(r'rules\.find\("(\w+)", "([\w ]+)"\)', inspect.getsource(check))
    missing = [(table, code) for table, code in named if code not in OWN_RULES.table(table)]
    assert missing == [], "add the rows to the tables in src/ganger/check_api/rule_tables"


@pytest.mark.parametrize("table", ["gpu", "host", "nic"])
def test_every_rule_of_a_check_has_a_test(table: str) -> None:
    text = "".join(path.read_text() for path in (ROOT / "tests" / "checks").glob("test_*.py"))
    untested = [code for code in OWN_RULES.table(table) if f'"{code}"' not in text]
    assert untested == [], "show in tests/checks what is a fault by it, and what is none"


def test_the_page_of_plug_ins_has_every_name() -> None:
    page = (ROOT / "docs" / "how-to" / "frameworks" / "plug-in.md").read_text()
    frameworks, _, others = page.partition("## A queue order or a placement score")
    scores, _, checks = others.partition("## A check")
    frameworks_table, scores_table, checks_table = (
        set(re.findall(r"^\| `(\w+)", part, re.MULTILINE)) for part in (frameworks, scores, checks)
    )
    assert checks_table == set(registry._REQUIRED[registry.CHECKS])
    assert frameworks_table == {*registry._REQUIRED[registry.FRAMEWORKS], *registry._DEFAULTS}
    assert scores_table == set(registry._REQUIRED[registry.SCORES])
