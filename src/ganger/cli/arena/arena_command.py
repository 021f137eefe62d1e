"""`ganger arena`: the commands of Arena, each as the command of ganger that does it."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import click

from ganger import __version__
from ganger.cli.arena.arena_flags import COMMON, JOB_TYPES, UNSUPPORTED, VERBS, Flags, job_type
from ganger.cli.arena.arena_jobs import spec_of
from ganger.cli.arena.parse_flags import Parsed, parse
from ganger.cli.jobs.run_submit_wait import connect, print_plan, submit_interruptibly
from ganger.cli.jobs.submit_request import print_job_file, request_of_spec
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import say, show
from ganger.model.job import ENDED

_TABLE: Final = "the flags: ganger arena submit TYPE --help"
_HELP: Final = frozenset(("-h", "--help"))
_ALIASES: Final = {"ls": "list", "del": "delete"}


@click.command(
    "arena",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", metavar="SUBCOMMAND [FLAG]... [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def arena_command(ctx: click.Context, words: tuple[str, ...]) -> Any:
    """Take a command of Arena, such as `arena submit pytorchjob`: its flags become keys of a job.

    `submit TYPE`, `list`, `get`, `logs`, `attach`, `delete`, `prune`, `top node`, `top job`, `scaleout`, `scalein`,
    `whoami`, `version` and `completion`. `submit --dry-run` prints the job file. A flag that changes nothing here is
    named, and one that cannot be taken over is an error that names what to write instead. `submit TYPE --help` lists
    them.

    \b
      ganger arena submit pytorchjob --name bert --workers 2 --gpus 8 --image IMAGE 'torchrun train.py'
      ganger arena submit tfjob --dry-run --name tf --ps 1 --workers 2 'python train.py' > job.yaml
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    verb = _ALIASES.get(words[0], words[0])
    if verb in UNSUPPORTED:
        raise Problem(f"ganger has no arena {verb}", UNSUPPORTED[verb])
    if verb not in VERBS and verb != "submit":
        raise Problem(f"arena has no subcommand {verb!r}: there are submit, {', '.join(VERBS)}", "ganger arena --help")
    if _HELP.intersection(words[1:3]):
        kind = job_type(words[1]) if verb == "submit" else None
        show(ctx.get_help() if kind is None else "\n".join(_flag_lines(COMMON | kind.flags)))
        return 0
    try:
        if verb == "submit":
            return _submit(ctx, words[1:])
        parsed = parse(words[1:], VERBS[verb][1], verb)
        _use(ctx, parsed)
        return _ARGUMENTS[verb](ctx, parsed)
    except ValueError as error:
        raise Problem(str(error), _TABLE) from None


def _submit(ctx: click.Context, words: Sequence[str]) -> int:
    name = words[0] if words else ""
    kind = job_type(name)
    if kind is None:
        types = ", ".join(kind.names[0] for kind in JOB_TYPES)
        what = f"arena submit {name}: no such type of jobs" if name else "arena submit: the type of the job is missing"
        raise Problem(what, UNSUPPORTED.get(name, f"one of {types}"))
    is_dry = "--dry-run" in words
    parsed = parse([word for word in words[1:] if word != "--dry-run"], COMMON | kind.flags, f"submit {name}")
    _use(ctx, parsed)
    spec = spec_of(kind, parsed)
    if is_dry:
        print_job_file(spec)
        return 0
    client = connect()
    job = submit_interruptibly(client, client.submit, request_of_spec(spec))
    print_plan(job)
    show(job["row"]["id"])
    return 0


def _flag_lines(flags: Flags) -> Iterator[str]:
    """Yield the flags of a type of jobs, each with what it becomes."""
    parts = ((flags.taken, ""), (flags.noted, "changes nothing: "), (flags.refused, "an error: "))
    for options, prefix in parts:
        for option, text in options.items():
            short, _, long = option.rstrip("!").partition(":")
            yield f"  {f'-{short},' if short else '   '} --{long:<27} {prefix}{text}"


def _use(ctx: click.Context, parsed: Parsed) -> None:
    """Name what changes nothing, and take the namespace."""
    for note in parsed.notes:
        say(f"arena: {note}", dim=True)
    if namespace := parsed.last("namespace"):
        target = ctx.find_root().obj
        if target and target.get("context"):
            target["namespace"] = namespace
        else:
            say("arena: --namespace changes nothing: without --context there are no namespaces", dim=True)


def _run(ctx: click.Context, *arguments: str) -> Any:
    """Run a command of ganger."""
    root = ctx.find_root()
    command = root.command.get_command(root, arguments[0])  # type: ignore[attr-defined]  # it is a group
    with command.make_context(arguments[0], list(arguments[1:]), parent=root) as inner:
        return command.invoke(inner)


def _list(ctx: click.Context, parsed: Parsed) -> Any:
    return _run(ctx, "ls", "--all", *_output(parsed))


def _get(ctx: click.Context, parsed: Parsed) -> Any:
    return _run(ctx, "events" if parsed.last("events") else "get", _job(parsed), *_output(parsed))


def _logs(ctx: click.Context, parsed: Parsed) -> Any:
    options = [f"--{name}" for name in ("follow", "timestamps") if parsed.last(name)]
    tail, since = parsed.last("tail"), parsed.last("since")
    options += ["--tail", tail] if tail and tail != "-1" else []
    moment = parsed.last("since-time") or (f"{since} ago" if since else "")
    options += ["--since", moment] if moment else []
    return _run(ctx, "logs", _job(parsed), *options, *_rank(parsed))


def _attach(ctx: click.Context, parsed: Parsed) -> Any:
    return _run(ctx, "exec", _job(parsed), "-i", "-t", *_rank(parsed), "--", *(parsed.rest[1:] or ("sh",)))


def _delete(ctx: click.Context, parsed: Parsed) -> Any:
    _job(parsed)
    client, code = connect(), 0
    for name in parsed.rest:
        is_over = client.job(name)["row"]["state"] in ENDED
        code = _run(ctx, "delete" if is_over else "stop", name) or code
    return code


def _prune(ctx: click.Context, parsed: Parsed) -> Any:
    return _run(ctx, "prune", "--older-than", parsed.last("since") or "7d")


def _top(ctx: click.Context, parsed: Parsed) -> Any:
    views = {"node": "nodes", "nodes": "nodes", "job": "jobs", "jobs": "jobs"}
    view = parsed.rest[0] if parsed.rest else ""
    if view not in views:
        raise ValueError(f"arena top {view}: write top node or top job")
    return _run(ctx, "top", views[view], *(() if parsed.last("refresh") else ("--once",)))


def _scale(sign: str) -> Callable[[click.Context, Parsed], Any]:
    def scale(ctx: click.Context, parsed: Parsed) -> Any:
        name, count = parsed.last("name"), parsed.last("count", "1")
        if not name or not count.isdigit():
            raise ValueError("write --name JOB --count N")
        return _run(ctx, "scale", name, f"{sign}{count}")

    return scale


def _output(parsed: Parsed) -> tuple[str, ...]:
    output = parsed.last("output", "wide")
    if output not in ("wide", "json"):
        raise ValueError(f"--output={output}: write wide or json")
    return ("-o", "json") if output == "json" else ()


def _job(parsed: Parsed) -> str:
    if not parsed.rest:
        raise ValueError("the name of a job is missing")
    return parsed.rest[0]


def _rank(parsed: Parsed) -> tuple[str, ...]:
    """Return the rank of an instance such as `bert-worker-1`, whose first one may be a master."""
    instance = parsed.last("instance")
    match = re.fullmatch(r"(?:.*?(worker|master|chief|launcher))?-?(\d+)", instance)
    if not instance:
        return ()
    if match is None:
        raise ValueError(f"--instance={instance}: write the number of a rank, or a name such as JOB-worker-0")
    return ("--rank", match[2])


_ARGUMENTS: Final[dict[str, Callable[[click.Context, Parsed], Any]]] = {
    "list": _list,
    "get": _get,
    "logs": _logs,
    "attach": _attach,
    "delete": _delete,
    "prune": _prune,
    "top": _top,
    "scaleout": _scale("+"),
    "scalein": _scale("-"),
    "whoami": lambda ctx, _: _run(ctx, "whoami"),
    "version": lambda _ctx, _: show(f"ganger {__version__}"),
    "completion": lambda ctx, parsed: _run(ctx, "completion", _job(parsed)),
}
