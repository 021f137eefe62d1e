"""CEL rules of the custom resources, for what JSON Schema cannot express.

Each rule belongs to a place in the schema and has a message for the user who broke it. CEL does not see fields that may
have several types. The admission policy keeps a spec unchanged; the controller reports every other fault of a job as
`phase: Refused` with the reason in the status.
"""

from typing import Any, Final, NamedTuple

MAX_JOB_NAME: Final = 52
"""Names of pods are made of it, and are labels too: 63 characters, with generation and rank."""


class Rule(NamedTuple):
    """at: keys from the root of the schema, with `*` for the items of a list."""

    at: str
    rule: str
    message: str
    only: str = ""
    """The key below it that the message is about."""

    def written(self) -> dict[str, Any]:
        """Return the rule as an entry of `x-kubernetes-validations`."""
        key = {"fieldPath": f".{self.only}"} if self.only else {}
        return {"rule": self.rule, "message": self.message} | key


_WORKERS: Final = "!has(self.roles) || !('worker' in self.roles) || "

JOB: Final = (
    Rule(
        "",
        f"self.metadata.name.size() <= {MAX_JOB_NAME}"
        " && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        f"metadata.name: write at most {MAX_JOB_NAME} of a-z, 0-9 and '-', a letter or digit first and last: "
        "pods are named after it",
    ),
    Rule(
        "spec",
        "!oldSelf.?stop.orValue(false) || self.?stop.orValue(false)",
        "stop: a job that was stopped stays so: make a new one",
        "stop",
    ),
    *(
        Rule(
            "spec",
            f"{_WORKERS}!has(self.{key})",
            f"{key}: roles.worker replaces it: write {instead}, or leave it out",
            key,
        )
        for key, instead in (
            ("nodes", "roles.worker.count"),
            ("nproc_per_node", "roles.worker.count"),
            ("resources", "roles.worker.resources"),
        )
    ),
    Rule(
        "spec",
        "self.?stop_when.orValue('all') != 'chief' || !has(self.roles) || size(self.roles) == 0 "
        "|| 'chief' in self.roles",
        "stop_when: there is no role chief: write roles.chief, or all",
        "stop_when",
    ),
    Rule(
        "spec",
        "!has(self.start_order) || self.start_order.all(name, name == 'worker' || "
        "(has(self.roles) && name in self.roles))",
        "start_order: it names a role that there is not: write it in roles, or leave it out",
        "start_order",
    ),
    Rule(
        "spec.checkpoint",
        "!has(self.keep_every) || has(self.keep)",
        "keep_every: without keep all checkpoints stay: add keep: 3, or leave it out",
        "keep_every",
    ),
    Rule(
        "spec.retry.rules.*",
        "has(self.log) || has(self.cause)",
        "it fits every failure: write log, cause or both",
    ),
    Rule(
        "spec.placement",
        "self.?mode.orValue('preferred') != 'required' || has(self.topology)",
        "mode: required says nothing without a level: write topology: rack",
        "mode",
    ),
    Rule(
        "spec",
        "!has(self.placement) || self.placement.?sharing.orValue('shared') != 'whole' || !has(self.roles) "
        "|| size(self.roles) == 0",
        "placement.sharing: whole is for nodes that are all alike, and there are roles: write exclusive",
        "placement.sharing",
    ),
    Rule(
        "spec.placement.slices.*",
        "has(self.nodes) != has(self.ranks)",
        "write nodes or ranks, one of them",
    ),
)  # fmt: skip


QUEUE: Final = (
    Rule(
        "",
        "self.metadata.name.matches('^[a-z0-9][a-z0-9-]{0,62}$')",
        "metadata.name: write up to 63 of a-z, 0-9 and '-', a letter or digit first",
    ),
    Rule(
        "",
        "self.metadata.name != 'root' || !has(self.spec.parent)",
        "spec.parent: root is above all other queues: leave it out",
    ),
    Rule(
        "",
        "!has(self.spec.parent) || self.spec.parent != self.metadata.name",
        "spec.parent: a queue is not above itself: name another one",
    ),
)

NETWORK: Final = (
    Rule(
        "spec",
        "self.attach == 'cluster' || (has(self.rails) && size(self.rails) > 0)",
        "attach: it needs rails: write rails, or attach: cluster",
        "attach",
    ),
    Rule(
        "spec",
        "self.attach != 'cluster' || !has(self.rails) || size(self.rails) == 0",
        "rails: attach: cluster has none: leave them out, or write attach: macvlan",
        "rails",
    ),
    Rule(
        "spec",
        "self.fabric != 'ib' || !(self.attach in ['macvlan', 'cluster'])",
        "attach: it is for Ethernet: write sriov or hostdev",
        "attach",
    ),
)

POLICY: Final = (
    Rule(
        "",
        "self.metadata.name == 'default'",
        "metadata.name: a cluster has one policy, and it is called default",
    ),
)
