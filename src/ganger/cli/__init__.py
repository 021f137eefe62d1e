"""The command line: `main` is the program `ganger`, each command a module of this package.

Command modules are imported only when they run, so `--help` is fast: it is printed from the table below, which tests
compare with the commands. All errors end in `call`, as a message and an exit code (docs/reference/exit-codes.md).
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
from ganger.cli.exit_codes import INTERRUPTED, OK, PIPE_CLOSED, exit_code_summary

COMMANDS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Start here": {
        "run": ("jobs.run_submit_wait", "Run a job and follow it until it ends."),
        "ls": ("jobs.list_and_stop", "List pending, running and recently ended jobs, or the elements of an array."),
        "logs": ("jobs.logs", "Show the output of a job's processes."),
        "explain": (
            "jobs.explain_events",
            "Explain why a job is pending, until when, and what would start it now; or why it failed, and what to do.",
        ),
        "stop": ("jobs.list_and_stop", "Stop jobs, after a grace period in which each may save a checkpoint."),
    },
    "Jobs": {
        "submit": ("jobs.run_submit_wait", "Submit a job and return immediately."),
        "sbatch": (
            "jobs.sbatch",
            "Submit a batch script of Slurm: its #SBATCH lines are read, and srun in it starts tasks on all nodes.",
        ),
        "arena": (
            "arena.arena_command",
            "Take a command of Arena, such as `arena submit pytorchjob`: its flags become keys of a job.",
        ),
        "apply": (
            "arena.apply_objects",
            "Submit and resize jobs by objects of et-operator: TrainingJob, ScaleIn and ScaleOut.",
        ),
        "get": ("jobs.list_and_stop", "Show a job in detail."),
        "metrics": ("jobs.metrics", "Show the metrics that a job has reported, also after its end."),
        "wait": ("jobs.run_submit_wait", "Wait until jobs have ended."),
        "diagnose": (
            "jobs.diagnose",
            "Find the cause of a failure in logs: its class, the rank that failed first, and the lines that prove it.",
        ),
        "events": ("jobs.explain_events", "List the events of one job or of all jobs, oldest first."),
        "attach": ("jobs.run_submit_wait", "Attach to a job and follow it until it ends."),
        "exec": ("jobs.exec", "Run a command next to a rank, with its environment, secrets and directory."),
        "fetch": ("jobs.fetch", "Copy files that a job wrote from its copy of the code to this machine."),
        "suspend": (
            "jobs.state_changes",
            "Suspend jobs: each may save a checkpoint, releases its nodes and waits for `resume`.",
        ),
        "resume": (
            "jobs.state_changes",
            "Resume suspended jobs: each becomes pending and restarts from its newest checkpoint.",
        ),
        "priority": (
            "jobs.state_changes",
            "Set the priority of jobs: low, normal, high, or an integer from -1000 to 1000.",
        ),
        "scale": (
            "jobs.state_changes",
            "Set the number of nodes of an elastic job, or of processes of its elastic role.",
        ),
        "rollback": (
            "jobs.state_changes",
            "Restart a job from an older checkpoint, and set the newer ones aside.",
        ),
        "retry": (
            "jobs.retry_clone",
            "Run ended jobs again, with the same spec and the same copy of the code, from their newest checkpoint.",
        ),
        "clone": (
            "jobs.retry_clone",
            "Create a new job from an existing one, as it is or with changes.",
        ),
        "diff": ("jobs.diff", "Show the differences between two jobs: spec, code, outcome, metrics."),
        "delete": (
            "jobs.list_and_stop",
            "Delete ended jobs, their logs, their run directories and their copies of code.",
        ),
        "prune": ("admin.prune", "Delete old ended jobs with their records, logs, run directories and copies of code."),
        "init": ("jobs.init_command", "Create a job.yaml from a template."),
        "explain-spec": ("jobs.explain_spec", "Explain a key of the job file: its meaning, format and default."),
    },
    "Cluster": {
        "top": (
            "cluster.top",
            "Show a live view of the cluster and its queues, or the usage of jobs, ranks, nodes or queues.",
        ),
        "fit": (
            "cluster.fit",
            "Show the largest job that could start now, for each GPU type and topology level.",
        ),
        "defrag": (
            "cluster.defrag",
            "Show which running jobs could be moved so that a larger job fits, and move them.",
        ),
        "report": ("cluster.report", "Report how the time of all jobs was spent and what failures cost."),
        "incidents": ("cluster.incidents", "Show failures of jobs and faults of nodes, joined, with what follows."),
        "queue": ("cluster.queue_command", "List, set and delete queues: quota, borrowing, lending, per-user limits."),
        "policy": ("cluster.policy_command", "Show the policy document, preview changes to it, and apply them."),
        "secret": ("admin.secret", "List, set and delete secrets: variables whose values are never shown."),
        "net": (
            "cluster.net",
            "Show what pods get from a network profile, and find what is wrong with networks and hosts.",
        ),
        "node": ("cluster.node", "List, cordon, uncordon, drain and repair nodes, and plan their maintenance."),
    },
    "Server": {
        "server": ("admin.server_command", "Start, stop and inspect the server, which otherwise starts on demand."),
        "token": ("admin.token", "List, create and revoke tokens for requests over TCP."),
        "login": ("admin.login", "Log in to a server on another machine."),
        "logout": ("admin.login", "Forget the login of a server: the one given, else that of GANGER_SERVER."),
        "whoami": ("admin.whoami", "Show your user, how you reach the server, and the queues you may use."),
        "completion": (
            "admin.completion_script",
            "Print the shell completion script for bash, zsh or fish.",
        ),
        "install": (
            "admin.install",
            "Print the manifests of ganger for a Kubernetes cluster: definitions, roles, controller.",
        ),
        "controller": (
            "admin.controller_command",
            "Run the controller of a Kubernetes cluster in the foreground.",
        ),
        "doctor": (
            "admin.doctor_command",
            "Check this machine and the server, or with --context a cluster, with a repair for each fault.",
        ),
        "replay": ("admin.doctor_command", "Replay a range of the event log and compare the decisions."),
        "sim": ("sim.sim_commands", "Run recorded jobs on a simulated cluster, or write them in ganger's own format."),
    },
}
"""Section -> command -> (module of this package, first sentence of its help)."""

WITHOUT_CONTEXT: Final = {
    **dict.fromkeys(("init", "explain-spec", "completion", "login", "logout"), "it needs no server and no cluster"),
    **dict.fromkeys(("install", "controller"), "it takes the context as kubectl does, or from its own --context"),
    "replay": "it reads the event log of this machine's server",
    "sim": "it replays a trace, or the event log of a server, and a controller keeps no log",
    "server": "it is about this machine's server, and that of a cluster is a Deployment",
    "token": "it is for this machine's server, and the tokens of a cluster are the API server's",
}
"""Commands that take no --context, and why."""
IN_CLUSTER: Final = {
    "server": "kubectl -n ganger-system get deployment ganger-controller",
    "token": "kubectl create token NAME",
}
"""Commands to type instead of one without --context, where that is not the same command."""
LOCAL_COMMANDS: Final = ("server", "token", "doctor", "replay")
"""Commands that need the state directory of the server: they run on its machine."""

OTHER_SCHEDULERS_COMMANDS: Final = {
    "srun": "ganger run -- srun ...",
    "salloc": "ganger run -- COMMAND",
    "squeue": "ganger ls",
    "scancel": "ganger stop JOB",
    "sinfo": "ganger node",
    "sacct": "ganger ls --since now-2days",
    "sreport": "ganger report",
    "scontrol": "ganger get JOB",
    "sattach": "ganger attach JOB",
    "sprio": "ganger explain JOB",
    "torchrun": "ganger run -- torchrun ...",
    "launch": "ganger run -f FILE",
    "down": "ganger stop JOB",
    "check": "ganger doctor",
    "show-gpus": "ganger node",
    "ps": "ganger ls",
    "list": "ganger ls",
    "jobs": "ganger ls",
    "status": "ganger ls",
    "kill": "ganger stop JOB",
    "cancel": "ganger stop JOB",
    "describe": "ganger get JOB",
    "show": "ganger get JOB",
    "rm": "ganger delete JOB",
    "cp": "ganger fetch JOB PATH",
    "hold": "ganger suspend JOB",
    "release": "ganger resume JOB",
    "requeue": "ganger retry JOB",
    "ssh": "ganger exec -it JOB -- bash",
    "shell": "ganger exec -it JOB -- bash",
}
"""Names that other programs give such commands -> what to type here."""

_FIRST_STEPS: Final = (
    ("ganger run -- python train.py", "run a command as a job and follow it"),
    ("ganger ls", "list running, pending and ended jobs"),
    ("ganger logs NAME -f", "show its output"),
    ("ganger explain NAME", "explain why it is pending, and what would start it now"),
    ("ganger stop NAME", "stop it"),
)


class _ClosedPipeError(Exception):
    """The reader of stdout closed the pipe, as in `ganger logs ID | head`."""


class LazyGroup(click.Group):
    """The commands of the table, each imported only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if ctx.params.get("context") is None:
            if cmd_name in LOCAL_COMMANDS and not ctx.resilient_parsing:
                _check_is_local(cmd_name)
        elif cmd_name in WITHOUT_CONTEXT:
            from ganger.cli.output.error_output import Problem

            remedy = IN_CLUSTER.get(cmd_name, f"ganger {cmd_name} ...")
            raise Problem(f"{cmd_name} takes no --context: {WITHOUT_CONTEXT[cmd_name]}", remedy)
        return _load_command(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0].startswith("-") or ctx.resilient_parsing or self.get_command(ctx, args[0]) is not None:
            return super().resolve_command(ctx, args)
        if args[0] in OTHER_SCHEDULERS_COMMANDS:
            from ganger.cli.output.error_output import SHELL_NEXT_TO_A_RANK, Problem

            opens_shell = args[0] == "srun" and "--pty" in args
            raise Problem(
                f"ganger has no command {args[0]}",
                SHELL_NEXT_TO_A_RANK if opens_shell else OTHER_SCHEDULERS_COMMANDS[args[0]],
            )
        raise click.exceptions.NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        """Complete commands from the table, without importing them."""
        from click.shell_completion import CompletionItem

        help_texts = {name: text for commands in COMMANDS.values() for name, (_, text) in commands.items()}
        items = [CompletionItem(name, help=text) for name, text in help_texts.items() if name.startswith(incomplete)]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            # click would exit with 1, which means that the job failed.
            raise _ClosedPipeError from error
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl([(name, sentence) for name, (_, sentence) in commands.items()])


def _check_is_local(name: str) -> None:
    """Raise ClientError (local_only) for a command that the server on another machine cannot carry out."""
    from ganger import settings

    if url := settings.server(os.environ):
        from ganger.client.client_errors import REFUSED, Refused

        detail = f"{name} runs on the server's machine, and {settings.SERVER} names another one: {url}"
        raise Refused("local_only", detail, f"log in there, or: env -u {settings.SERVER} ganger {name} ...", REFUSED)


def _load_command(name: str) -> click.Command | None:
    """Import and return the command of the table, or None if there is no such command."""
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
    epilog=f"Every command has --help, and every command with output has -o json. Exit codes: {exit_code_summary()}.",
)
@click.version_option(__version__, message="ganger %(version)s", help="Print the version and exit.")
@click.option("--context", metavar="NAME", help="Use the Kubernetes cluster and user of this kubeconfig context.")
@click.option("--namespace", metavar="NAME", help="With --context: the namespace of the jobs (default: the context's).")
@click.pass_context
def ganger(ctx: click.Context, context: str | None, namespace: str | None) -> None:
    """Run distributed training jobs: gang-scheduled, and restarted automatically after failures."""
    if namespace is not None and context is None:
        raise click.UsageError("--namespace requires --context")
    if context is not None:
        names = [name for section in COMMANDS.values() for name in section if name not in WITHOUT_CONTEXT]
        ctx.obj |= {"context": context, "namespace": namespace, "commands": names}
    if ctx.invoked_subcommand is None:
        width = max(len(line) for line, _ in _FIRST_STEPS)
        click.echo("ganger runs a training job as one gang: all of its processes start, or none.\n")
        for line, sentence in _FIRST_STEPS:
            click.echo(f"  {line:{width}}   {sentence}")
        click.echo("\nAll commands: ganger --help")


def main() -> None:
    """Run the program `ganger` and exit with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a log may hold characters that the terminal cannot show
    sys.exit(call(sys.argv[1:]))


def call(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors are printed to stderr."""
    target: dict[str, Any] = {}  # with --context: the cluster, and the commands that reach it
    try:
        code = ganger.main(list(arguments), prog_name="ganger", standalone_mode=False, obj=target)
    except _ClosedPipeError:
        _silence(sys.stdout, sys.stderr)
        return PIPE_CLOSED
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Exception as error:
        from ganger.cli.output.error_output import problem_of

        problem = problem_of(error)
        if problem is None:
            raise
        with click.Context(ganger, obj=target):
            problem.show()
        return problem.exit_code
    return code if isinstance(code, int) else OK


def _silence(*streams: TextIO) -> None:
    """Redirect the streams to /dev/null, so that the interpreter does not fail when it flushes them at exit."""
    null_fd = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(null_fd, stream.fileno())
