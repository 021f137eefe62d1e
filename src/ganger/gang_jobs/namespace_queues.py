"""The queue of the jobs of a namespace, by the policy."""

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from ganger.errors import RequestError
from ganger.gang_jobs.object_names import key_of
from ganger.model.job import Job
from ganger.model.policy import NamespaceQueues
from ganger.model.queue import DEFAULT


def queue_of(namespace: str, queue: str, rules: Iterable[NamespaceQueues]) -> str:
    """Return the queue of a job of a namespace that names `queue`, which is `default` where it names none.

    Raise RequestError (not_permitted) if the jobs of the namespace may not name it.
    """
    rule = next((rule for rule in rules if any(fnmatchcase(namespace, pattern) for pattern in rule.match)), None)
    if rule is None:
        return queue
    if queue in (DEFAULT, rule.queue):
        return rule.queue
    if any(fnmatchcase(queue, pattern) for pattern in rule.others):
        return queue
    permitted = ", ".join((rule.queue, *rule.others))
    detail = f"the policy does not permit the queue {queue} to jobs of namespace {namespace}: it permits {permitted}"
    remedy = f"leave queue out, which is {rule.queue}, or ask an administrator to add it to others in namespaces"
    raise RequestError("not_permitted", detail, f"{remedy} of the SchedulingPolicy", 403)


def in_queue_of_namespace(job: Job, rules: Iterable[NamespaceQueues]) -> Job:
    """Return a job of foreign pods in the queue that its namespace has. Raise RequestError (not_permitted)."""
    queue = queue_of(key_of(job.id).namespace, job.spec.queue, rules)
    return replace(job, spec=replace(job.spec, queue=queue))
