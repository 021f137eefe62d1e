"""`ganger apply`: objects of et-operator, TrainingJob, ScaleIn and ScaleOut (kai.alibabacloud.com/v1alpha1).

A TrainingJob becomes a job with a range of nodes, ScaleIn and ScaleOut a change of its size. The script of these, which
tells a running launcher of new hosts, is not run: a resize is a new attempt from the newest checkpoint.
"""

from collections.abc import Iterator

import click

from ganger.cli.jobs.run_submit_wait import connect, print_plan, submit_interruptibly
from ganger.cli.jobs.state_changes import change_job
from ganger.cli.jobs.submit_request import print_job_file, request_of_spec
from ganger.cli.options import read_text_file
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import say, shell_quote, show
from ganger.client import Client
from ganger.gang_jobs.training_jobs import API_VERSION, KINDS, Object, read_size_change, read_training_job


@click.command("apply")
@click.option("-f", "--file", "path", required=True, metavar="FILE", help="File with one or several objects.")
@click.option("--dry-run", is_flag=True, help="Print the job files, and change nothing.")
def apply_command(path: str, dry_run: bool) -> int:
    """Submit and resize jobs by objects of et-operator: TrainingJob, ScaleIn and ScaleOut.

    A TrainingJob becomes a job with nodes MIN..MAX; ScaleOut and ScaleIn change its size, never below its minimum.

    \b
      ganger apply -f trainingjob.yaml
      ganger apply -f scaleout.yaml
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    objects = list(_read(path))
    if not objects:
        raise Problem(f"{path} has no objects", f"cat {shell_quote(path)}")
    client = None if dry_run else connect()
    for item in objects:
        try:
            _apply(client, item)
        except ValueError as error:
            metadata = item.get("metadata")
            name = metadata.get("name", "") if isinstance(metadata, dict) else ""
            raise Problem(f"{path}: {item['kind']} {name}: {error}", "kubectl explain trainingjob.spec") from None
    return 0


def _read(path: str) -> Iterator[Object]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        documents = list(YAML(typ="safe").load_all(read_text_file(path, "job", "ls")))
    except RecursionError:
        raise Problem(f"{path} is nested too deep", "ganger apply -f FILE") from None
    except (YAMLError, ValueError) as error:
        raise Problem(f"{path} is not YAML: {' '.join(str(error).split())[:200]}", "ganger apply -f FILE") from None
    for item in filter(None, documents):
        if not isinstance(item, dict) or item.get("apiVersion") != API_VERSION or item.get("kind") not in KINDS:
            fields = item if isinstance(item, dict) else {}
            written = f"{fields.get('apiVersion') or 'no apiVersion'}, kind {fields.get('kind') or 'missing'}"
            detail = f"{path} has {written}, and ganger apply takes {', '.join(KINDS)} of {API_VERSION}"
            command = "kubectl apply" if "apiVersion" in fields else "ganger submit"
            raise Problem(detail, f"{command} -f {shell_quote(path)}")
        yield item


def _apply(client: Client | None, item: Object) -> None:
    if item["kind"] != "TrainingJob":
        _scale(client, item)
        return
    spec, _, notes = read_training_job(item)
    _say(notes)
    if client is None:
        print_job_file(spec)
        return
    job = submit_interruptibly(client, client.submit, request_of_spec(spec))
    print_plan(job)
    show(job["row"]["id"])


def _scale(client: Client | None, item: Object) -> None:
    name, nodes, notes = read_size_change(item)
    _say(notes)
    if client is None:
        show(f"ganger scale {shell_quote(name)} {nodes:+}")
        return
    row = change_job(client, name, nodes=f"{nodes:+}")["row"]
    show(f"scaled {shell_quote(row['id'])}: its size is {row['shape']} now")


def _say(notes: list[str]) -> None:
    for note in notes:
        say(note, dim=True)
