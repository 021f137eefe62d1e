"""One new thing of each kind in CONTRIBUTING.md: a step for each row of its checklist, and how the step is left out."""

import ast
from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.guides.checkout_copy import ROOT, Edit


class Step(NamedTuple):
    """A change that a row of a checklist asks for.

    edits: make the step. A later row of the same file may find it made.
    omission: leaves it out again; empty: the inverse of the edits.
    generated: for `make docs`, a file that it writes.
    shows: the place where mypy reports the omission, if that is another one.
    """

    edits: tuple[Edit, ...] = ()
    omission: tuple[Edit, ...] = ()
    generated: str = ""
    shows: str = ""

    @property
    def place(self) -> str:
        """The path that the row has, "" for `make docs`."""
        return self.shows or ("" if self.generated else self.left_out()[-1].path)

    def paths(self) -> set[str]:
        """Return the files that the omission changes."""
        return {edit.path for edit in self.left_out()}

    def left_out(self) -> tuple[Edit, ...]:
        """Return the edits that leave the step out."""
        return self.omission or tuple(edit.inverse() for edit in reversed(self.edits))


def made(path: str, old: str, new: str) -> Step:
    """Return a step that is one replacement."""
    return Step((Edit(path, old, new),))


def before(path: str, anchor: str, text: str) -> Step:
    """Return a step that puts text in front of an anchor."""
    return made(path, anchor, text + anchor)


def after(path: str, anchor: str, text: str) -> Step:
    """Return a step that puts text behind an anchor."""
    return made(path, anchor, anchor + text)


def spoiled(path: str, old: str, new: str) -> Step:
    """Return a step that an earlier one has made, and that is left out by a replacement."""
    return Step(omission=(Edit(path, old, new),))


# -- a policy: the newest first ----------------------------------------------------------------------------------------

_POLICY: Final = "src/ganger/policies/newest.py"
_POLICY_TEXT: Final = (ROOT / "src/ganger/policies/las.py").read_text().replace('"las"', '"newest"')
_POLICY_TEST: Final = """

def test_newest_is_installed() -> None:
    from ganger.registry import order

    assert order("newest").NAME == "newest"
"""
POLICY: Final = (
    Step((Edit(_POLICY, "", _POLICY_TEXT),), (Edit(_POLICY, "def fifo_class(", "def class_of("),)),
    spoiled(_POLICY, "def factors(gang: Gang, state: State, now_ms: int)", "def factors(gang: Gang, now_ms: int)"),
    spoiled(_POLICY, '("work_conservation",)', '("work_conservaton",)'),
    after("src/ganger/model/policy.py", '"queue order: ', "newest, "),
    made("tests/pictures/queues/test_order.py", "", _POLICY_TEST),
    Step(generated="src/ganger/manifests/schedulingpolicies.yaml"),
)

# -- a framework: an alias of torch ------------------------------------------------------------------------------------

_FRAMEWORK: Final = "src/ganger/frameworks/caffe.py"
_FRAMEWORK_TEXT: Final = (
    (ROOT / "src/ganger/frameworks/fsdp.py").read_text().replace('"fsdp"', '"caffe"')
    + """

def lacks(counts: dict[str, int]) -> str | None:
    \"\"\"Return None: any roles will do.\"\"\"
    return None
"""
)
_DOC: Final = next(line for line in _FRAMEWORK_TEXT.splitlines(keepends=True) if line.startswith("DOC"))
_GOLDEN: Final = (ROOT / "tests/frameworks/golden/fsdp.txt").read_text()
_PAGE: Final = "# Caffe\n\nAs torch.\n\n<!-- generated: framework caffe -->\n<!-- end -->\n"
FRAMEWORK: Final = (
    Step((Edit(_FRAMEWORK, "", _FRAMEWORK_TEXT),), (Edit(_FRAMEWORK, _DOC, ""),)),
    spoiled(_FRAMEWORK, "def lacks(counts: dict[str, int])", "def lacks()"),
    spoiled(_FRAMEWORK, "RESERVED: Final = C10D", "RESERVED: Final = C10D[:0]"),
    made("tests/frameworks/golden/caffe.txt", "", _GOLDEN),
    Step(
        (Edit("docs/how-to/frameworks/caffe.md", "", _PAGE),),
        (Edit("docs/how-to/frameworks/caffe.md", "<!-- generated: framework caffe -->", ""),),
    ),
    before("mkdocs.yml", "          - DeepSpeed: ", "          - Caffe: how-to/frameworks/caffe.md\n"),
    Step(
        (
            Edit("requirements/caffe.in", "", "caffe\n"),
            Edit("examples/train_caffe.py", "", '"""As train.py."""\n'),
            Edit("tests/real/test_frameworks.py", '["jax", ', '["caffe", "jax", '),
        ),
        (Edit("tests/real/test_frameworks.py", '["caffe", "jax", ', '["jax", '),),
    ),
    Step(generated="src/ganger/job.schema.json"),
)

# -- a check: pressure, an alias of clock_skew -------------------------------------------------------------------------

_CHECK: Final = "src/ganger/checks/pressure.py"
_CHECK_TEXT: Final = (ROOT / "src/ganger/checks/clock_skew.py").read_text().replace('"clock_skew"', '"pressure"')
_CHECK_ROW: Final = '    _row("pressure", Severity.NOTE, "memory pressure of the node", limit=900),\n'
_CHECK_TEST: Final = """

def test_pressure_is_no_fault_of_a_healthy_node() -> None:
    assert "pressure" not in [code for code, _, _ in codes([sample(0)])]
"""
CHECK: Final = (
    Step((Edit(_CHECK, "", _CHECK_TEXT),), (Edit(_CHECK, "DOC: Final", "TITLE: Final"),)),
    spoiled(_CHECK, "def check(state: None, sample: NodeSample,", "def check(state: None, node: NodeSample,"),
    before("src/ganger/check_api/rule_tables/host_table.py", '    _row("lines_lost", ', _CHECK_ROW),
    made("tests/checks/test_host_checks.py", "", _CHECK_TEST),
    Step(generated="docs/reference/node-checks.md"),
)

# -- a job field: what the job is for ----------------------------------------------------------------------------------

_FIELD: Final = '    purpose: str | None = _spec("what the job is for", form="purpose", default=None)\n'
_USE: Final = """

def purpose_variables(spec: JobSpec) -> dict[str, str]:
    \"\"\"Return the variable that tells what the job is for.\"\"\"
    return {"GANGER_PURPOSE": spec.purpose} if spec.purpose else {}
"""
JOB_FIELD: Final = (
    Step(
        before("src/ganger/model/job.py", "    notes: str | None = _spec(", _FIELD).edits,
        (Edit("src/ganger/model/job.py", 'form="purpose", default=None)', 'form="purpose")'),),
    ),
    before(
        "src/ganger/spec/field_types.py",
        '        "notes": Form(',
        '        "purpose": Form(read_notes, {"type": "string"}),\n',
    ),
    before("src/ganger/cli/jobs/explain_spec.py", '    "notes": (', '    "purpose": ("text", "the thesis"),\n'),
    after("src/ganger/sdk/job_fields.py", "    notes: str\n", "    purpose: str\n"),
    made("src/ganger/engine/launch.py", "", _USE),
    before("tests/spec/test_laws.py", "    notes=st.none() | texts,\n", "    purpose=st.none() | texts,\n"),
    Step(generated="docs/reference/spec.md"),
)

# -- an event: a user marks a node -------------------------------------------------------------------------------------

_EVENT: Final = '''\
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMarked:
    """A user marked a node."""

    node: str
    by: str = ""
    kind: Literal["node_marked"] = field(default="node_marked")


'''
_MODEL: Final = "src/ganger/model/event.py"
_IN_REQUEST: Final = ("Request = Submitted | ", "Request = Submitted | NodeMarked | ")
_FOLD: Final = "src/ganger/core/fold/fold.py"
_REFUSAL: Final = """\
        case e.NodeMarked(node=name):
            return None if name in state.nodes.index else f"there is no node {name}"
"""
_ROW: Final = "src/ganger/engine/eventlog/event_row.py"
EVENT: Final = (
    Step(
        (before(_MODEL, "ChangeRequest = ", _EVENT).edits[0], Edit(_MODEL, *_IN_REQUEST)),
        (Edit(_MODEL, *_IN_REQUEST).inverse(),),
    ),
    Step(
        omission=(
            Edit(_MODEL, *_IN_REQUEST).inverse(),
            Edit(_MODEL, "ClusterFact = ServerStarted | ", "ClusterFact = ServerStarted | NodeMarked | "),
        )
    ),
    Step(
        (
            after(_FOLD, "            return fold_attempt.staleness(state, event)\n", _REFUSAL).edits[0],
            before(_FOLD, "e.Deleted() | e.Described()", "e.NodeMarked() | ").edits[0],
        )
    ),
    before(
        "src/ganger/engine/query/event_text.py",
        "        case e.Failed():\n            return _failed_text(event)\n",
        '        case e.NodeMarked(node=node):\n            return f"node {node} was marked"\n',
    ),
    Step(
        (
            after(_ROW, "    NodeLost,\n", "    NodeMarked,\n").edits[0],
            before(
                _ROW,
                "        case PolicySet(",
                '        case NodeMarked(node=node):\n            return [f"node/{node}"]\n',
            ).edits[0],
        )
    ),
    after(
        "tests/service/query/test_sentences.py",
        "TABLE: list[tuple[e.Event, str | None, str]] = [\n",
        '    (e.NodeMarked(node="n1"), None, "node n1 was marked"),\n',
    ),
    before("tests/laws/world.py", "e.NodeLost, e.NodeReturned, ", "e.NodeMarked, "),
    Step(generated="docs/reference/reasons.md"),
)

# -- a command: the colours of the output ------------------------------------------------------------------------------

_CLI: Final = "src/ganger/cli/__init__.py"
_COMMAND: Final = "src/ganger/cli/admin/colours.py"
_COMMAND_TEXT: Final = '''\
"""`ganger colours`: the colours of the output."""

import click

from ganger.cli.options import output_option
from ganger.cli.output.print_output import show_json


@click.command("colours")
@click.option("--dark", is_flag=True, help="For a dark terminal.")
@output_option
def colours_command(dark: bool, output: str) -> None:
    """List the colours of the output."""
    show_json({"dark": dark, "output": output})
'''
COMMAND: Final = (
    before(_CLI, '        "whoami": (', '        "colours": ("admin.colours", "List the colours of the output."),\n'),
    Step(
        (Edit(_COMMAND, "", _COMMAND_TEXT),),
        (Edit(_COMMAND, '    """List the colours of the output."""\n', '    """List colours."""\n'),),
    ),
    spoiled(_COMMAND, ', help="For a dark terminal."', ""),
    before("tests/cli/test_json.py", '    "whoami": "",\n', '    "colours": "",\n'),
    Step(generated="docs/reference/cli.md"),
)

# -- a backend: one that does nothing yet ------------------------------------------------------------------------------


def _backend_text() -> str:
    """Return a module with every method of `Backend`, and the imports that the interface has."""
    body = ast.parse((ROOT / "src/ganger/ports.py").read_text()).body
    imports = [ast.unparse(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    methods = [node for node in classes["Backend"].body if isinstance(node, ast.FunctionDef)]
    heads = [ast.unparse(method).splitlines()[0] for method in methods]
    return "\n".join(
        [
            '"""A backend that does nothing yet."""',
            *imports,
            f"from ganger.ports import {', '.join(sorted(classes))}",
            "class DryBackend:",
            '    """The backend."""',
            *(f"    {head}\n        raise NotImplementedError" for head in heads),
        ]
    )


_BACKEND: Final = "src/ganger/backends/dry/dry_backend.py"
_ASSEMBLY: Final = """

def dry_loop(log: EventLog) -> Loop:
    \"\"\"Return a loop over the backend that does nothing.\"\"\"
    from ganger.backends.dry.dry_backend import DryBackend

    backend = DryBackend()
    return Loop(log, backend, order, WallClock(), __version__)
"""
BACKEND: Final = (
    Step(
        (
            Edit("src/ganger/backends/dry/__init__.py", "", '"""A backend that does nothing yet."""\n'),
            Edit(_BACKEND, "", _backend_text()),
        ),
        (Edit(_BACKEND, "def forget(", "def forget_all("),),
    ),
    made("src/ganger/server/assembly.py", "", _ASSEMBLY),
    spoiled(_BACKEND, "def forget(self, gang: str)", "def forget(self, gang: int)")._replace(
        shows="src/ganger/server/assembly.py"
    ),
    made("tests/conformance/worlds.py", "", '\n\nclass Dry:\n    """backends/dry, which does nothing yet."""\n'),
    before("docs/explanation/how-it-works.md", "| simulator | ", "| dry | nothing yet | the log |\n"),
)

ADDITIONS: Final[Mapping[str, tuple[Step, ...]]] = {
    "policy": POLICY,
    "framework": FRAMEWORK,
    "check": CHECK,
    "job field": JOB_FIELD,
    "event": EVENT,
    "command": COMMAND,
    "backend": BACKEND,
}
NAMES: Final = {"policy": "newest", "framework": "caffe", "check": "pressure", "command": "colours", "backend": "dry"}
"""Values of NAME."""
