"""The command line. `main` is the program `ganger`; each group of commands is one module of this package.

Nothing of a command is imported before it runs: help is printed from the table below, which the tests hold against
the commands themselves. Errors of every command end here, as text and an exit code (docs/reference/exit-codes.md).
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

from ganger import __version__
from ganger.cli.exit_codes import INTERRUPTED, OK, PIPE_CLOSED, in_short

COMMANDS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Start here": {
        "run": ("jobs.run_submit_wait", "Run a job and follow it to its end."),
        "ls": ("jobs.list_get_stop", "List jobs: what is live, and what ended last; or the elements of an array."),
        "logs": ("jobs.logs", "Show what a job's processes wrote."),
        "explain": ("jobs.explain_events", "Say why a job waits, for whom, until when, and what would start it now."),
        "stop": ("jobs.list_get_stop", "Stop jobs: each may save its work first."),
    },
    "Jobs": {
        "submit": ("jobs.run_submit_wait", "Submit a job and return at once."),
        "get": ("jobs.list_get_stop", "Show everything about a job."),
        "wait": ("jobs.run_submit_wait", "Wait until a job has ended."),
        "events": ("jobs.explain_events", "Show what happened, to one job or to all, oldest first."),
        "attach": ("jobs.attach", "Follow a job that was started before, to its end."),
        "exec": ("jobs.exec", "Run a command beside a rank, with its variables, secrets and directory."),
        "suspend": (
            "jobs.state_changes",
            "Suspend jobs: each may save its work, gives its nodes back, and waits for `resume`.",
        ),
        "resume": (
            "jobs.state_changes",
            "Resume suspended jobs: each waits for its turn, and goes on from its newest checkpoint.",
        ),
        "priority": (
            "jobs.state_changes",
            "Set the priority of jobs: low, normal, high, or an integer from -1000 to 1000.",
        ),
        "retry": ("jobs.retry_clone", "Run ended jobs again: the same spec, the same copy of the code."),
        "clone": (
            "jobs.retry_clone",
            "Make a new job from one that lives or has ended: exactly it, or with something changed.",
        ),
        "diff": ("jobs.diff", "Show what differs between two jobs: spec, code, outcome."),
        "delete": ("jobs.list_get_stop", "Take ended jobs, with their logs, out of the listings."),
        "prune": ("admin.prune", "Delete ended jobs: their records, logs and copies of code."),
        "init": ("jobs.init_command", "Write a job.yaml to start from."),
        "explain-spec": ("jobs.explain_spec", "Say what a key of a job file means and how it is written."),
    },
    "Cluster": {
        "top": (
            "cluster.top",
            "Show the cluster and its queue as a picture; or what each rank, each node or each queue uses.",
        ),
        "fit": (
            "cluster.fit",
            "Show how large a job may be to start now: for each type of GPU, at each level of the network.",
        ),
        "report": ("cluster.report", "Show where the time of all jobs went, and what failures cost."),
        "queue": ("cluster.queue_command", "List, set and delete queues: quota, lending, limits of each user."),
        "policy": ("cluster.policy_command", "Show the policy document, change it, and see what a change would do."),
        "secret": ("admin.secret", "List, set and remove secrets: variables whose values are never shown."),
        "node": ("cluster.node", "List nodes, take them out of service or back, and empty them."),
    },
    "Server": {
        "server": ("admin.server_command", "Start, stop and look at the server; it also starts by itself."),
        "token": ("admin.token", "List, create and revoke tokens for requests over TCP."),
        "whoami": ("admin.whoami", "Show who you are to the server, how you reach it, and which queues you may use."),
        "completion": (
            "admin.completion_script",
            "Print the script that makes Tab complete: commands, options, jobs, queues, nodes, states.",
        ),
        "install": (
            "admin.install",
            "Print what a Kubernetes cluster needs for ganger: definitions, roles, the controller.",
        ),
        "controller": (
            "admin.controller_command",
            "Run the controller of a Kubernetes cluster until it is told to end.",
        ),
        "doctor": ("admin.doctor_command", "Check this machine and the server; each fault comes with its repair."),
        "replay": ("admin.doctor_command", "Decide a stretch of the log again, and compare."),
        "sim": ("sim.sim_commands", "Run recorded jobs on a simulated cluster, or write them in ganger's own format."),
    },
}
"""Section -> command -> (module of this package, first sentence of its help)."""

IN_CONTEXT: Final = {
    "jobs.kubernetes_jobs": ("run", "submit", "ls", "explain", "logs", "exec", "stop"),
    "jobs.kubernetes_live": ("get", "wait", "suspend", "resume", "priority"),
}
"""What goes to a Kubernetes cluster with --context: module of this package -> commands."""
ASK_CONTROLLER: Final = ("top", "fit", "report", "policy", "queue", "node")
"""Commands that with --context ask the controller of the cluster, by way of the API server."""
INSTEAD: Final = {
    "events": "kubectl describe gangjob JOB",
    "attach": "ganger --context NAME logs JOB -f",
    "retry": "ganger --context NAME submit -f FILE",
    "clone": "ganger --context NAME submit -f FILE",
    "diff": "kubectl get gangjobs JOB OTHER -o yaml",
    "delete": "kubectl delete gangjob JOB",
    "prune": "kubectl delete gangjob JOB",
    "secret": "kubectl create secret generic ganger-secrets --from-literal=NAME=VALUE",
    "server": "kubectl -n ganger-system get deployment ganger-controller",
    "token": "kubectl create token NAME",
    "whoami": "kubectl auth whoami",
}
"""Of commands that ask a server of ganger's alone: what does it in a cluster. The rest ask neither."""

_FIRST_STEPS: Final = (
    ("ganger run -- python train.py", "run a command as a job and follow it"),
    ("ganger ls", "what runs, what waits, what ended"),
    ("ganger logs NAME -f", "what it writes"),
    ("ganger explain NAME", "why it waits, and what would start it now"),
    ("ganger stop NAME", "end it"),
)


class _ReaderLeftError(Exception):
    """Whoever read the output is gone, as in `ganger logs ID | head`."""


class LazyGroup(click.Group):
    """The commands of the table, each imported when it is run and not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if ctx.params.get("context") is not None:
            return _in_context(cmd_name)
        return _of_table(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0].startswith("-") or ctx.resilient_parsing or self.get_command(ctx, args[0]) is not None:
            return super().resolve_command(ctx, args)
        raise click.exceptions.NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        """Commands, from the table: a shell that completes waits for no import of them all."""
        from click.shell_completion import CompletionItem

        found = {name: sentence for commands in COMMANDS.values() for name, (_, sentence) in commands.items()}
        items = [CompletionItem(name, help=found[name]) for name in found if name.startswith(incomplete)]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            # click would exit with 1, which is a failed job's.
            raise _ReaderLeftError from error
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl([(name, sentence) for name, (_, sentence) in commands.items()])


def _in_context(name: str) -> click.Command | None:
    """The command of that name for the jobs of a Kubernetes cluster."""
    from ganger.cli.output.error_output import Problem

    for where, commands in IN_CONTEXT.items():
        if name in commands:
            command = getattr(importlib.import_module(f"{__name__}.{where}"), f"{name}_command")
            return command if isinstance(command, click.Command) else None
    if name in ASK_CONTROLLER:
        return _of_table(name)
    if name in INSTEAD:
        raise Problem(f"{name} asks a server of ganger's, and --context speaks to the API server", INSTEAD[name])
    if any(name in section for section in COMMANDS.values()):
        raise Problem(f"{name} asks no cluster: leave --context out", f"ganger {name} ...")
    return None


def _of_table(name: str) -> click.Command | None:
    for section in COMMANDS.values():
        if name in section:
            module = importlib.import_module(f"{__name__}.{section[name][0]}")
            command = getattr(module, f"{name.replace('-', '_')}_command")
            return command if isinstance(command, click.Command) else None
    return None


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"Every command has --help, and -o json where it answers. Exit codes: {in_short()}.",
)
@click.version_option(__version__, message="ganger %(version)s", help="Print the version and leave.")
@click.option("--context", metavar="NAME", help="Of your kubeconfig: its Kubernetes cluster, and who you are there.")
@click.option("--namespace", metavar="NAME", help="With --context: whose jobs; without it: the context's.")
@click.pass_context
def ganger(ctx: click.Context, context: str | None, namespace: str | None) -> None:
    """Run distributed training: a whole gang starts or nothing, and comes back when something breaks."""
    if namespace is not None and context is None:
        raise click.UsageError("--namespace goes with --context")
    if context is not None:
        ctx.obj = (context, namespace)
    if ctx.invoked_subcommand is None:
        width = max(len(line) for line, _ in _FIRST_STEPS)
        click.echo("ganger runs a training job as one gang: all of it starts or nothing.\n")
        for line, sentence in _FIRST_STEPS:
            click.echo(f"  {line:{width}}   {sentence}")
        click.echo("\nAll commands: ganger --help")


def main() -> None:
    """The program `ganger`."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a log may hold what the terminal cannot show
    sys.exit(call(sys.argv[1:]))


def call(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code. Errors are on stderr by then; nothing is raised but defects."""
    try:
        code = ganger.main(list(arguments), prog_name="ganger", standalone_mode=False)
    except _ReaderLeftError:
        _silence(sys.stdout, sys.stderr)
        return PIPE_CLOSED
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Exception as error:
        from ganger.cli.output.error_output import problem_of

        problem = problem_of(error)
        if problem is None:
            raise
        problem.show()
        return problem.exit_code
    return code if isinstance(code, int) else OK


def _silence(*streams: TextIO) -> None:
    """Give the streams somewhere to go, so that the interpreter does not complain when it flushes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
