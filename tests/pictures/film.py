"""A scenario in lines of `actions -> picture | status of gangs`, with a scheduling cycle after each line.

Actions, separated by `;`: jobs are submitted (`C:2x4 D:1x1`), time passes (`+30m`), or a verb of `Film`. The picture
shows who holds what (`tests.pictures.picture`), with `#` on a cordoned and `x` on a lost node. After `|` comes every
gang that does not simply run: its pending reason, its state, or how it ended since the previous line. Everything goes
through `core.fold.fold`.
"""

from dataclasses import replace

from ganger import registry
from ganger.core.cycle.cycle import plan
from ganger.core.explain.defrag_plan import defrag_plan
from ganger.core.explain.explain import current_reason, explain, reason_view
from ganger.core.fold.fold import fold, refusal
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.engine.policy_doc.policy_validation import policy_from_dict, policy_to_dict
from ganger.engine.query.event_text import story
from ganger.model import event as e
from ganger.model.decision import Cause, Move, NodeShare, Plan, Start
from ganger.model.evidence import PythonError, RankEnd, RuleMatch
from ganger.model.job import GangState
from ganger.model.policy import GpuShares, Pool
from ganger.model.units import parse_duration_ms
from ganger.model.views.service_views import Explanation, ReasonView
from tests.laws.policies import POLICIES
from tests.pictures import picture

CAUSES = {"start": Cause.START_FAILED, "port": Cause.PORT_BUSY, "launcher": Cause.LAUNCHER_LOST}
CAUSES |= {"hung": Cause.HUNG, "oom": Cause.OUT_OF_MEMORY, "quota": Cause.NAMESPACE_QUOTA}
ACTIVE = (GangState.STARTING, GangState.RUNNING)
_validated = set[tuple[str, str]]()
"""Clusters and queues whose first state has been counted anew: no policy takes part in it, and most have 15."""


class Film:
    """A scenario on one cluster."""

    def __init__(self, policy: Policy, cluster: str, queues: str) -> None:
        self.policy, self.state, self.now_ms, self.steps = policy, State(find_score=registry.score), 1_000_000_000, 0
        self.ended: dict[str, str] = {}
        self.rows: list[e.Stamped] = []
        for token in queues.split():
            self.apply(e.QueueSet(queue=picture.queue(token)))
        gang_options = dict(picture.words(token) for token in cluster.split() if token[0].isupper())
        nodes = [picture.node(token) for token in cluster.split() if not token[0].isupper()]
        self.apply(picture.listing([node for node, _ in nodes]))
        for gang in sorted({mark.upper() for _, row in nodes for mark in row if mark.isalpha()}):
            self._runs(
                gang, [(node.name, row) for node, row in nodes if gang in row.upper()], gang_options.get(gang, {})
            )
        if (cluster, queues) not in _validated:
            self.state.validate()
            _validated.add((cluster, queues))

    def play(self, film: str) -> None:
        """Play every line; raise AssertionError with the pictures before and after for one with another result."""
        for line in filter(None, map(str.strip, film.splitlines())):
            actions, _, expected = (part.strip() for part in line.partition("->"))
            before, self.ended = picture.draw(self.state), {}
            for action in filter(None, map(str.strip, actions.split(";"))):
                self.do(action)
            self.run_cycles()
            actual, expected = self.summary(), " ".join(expected.split())
            assert actual == expected, "\n".join(
                [
                    f"\n  {actions}\n  before: {before}\n  after:  {actual}\n  wanted: {expected}",
                    *(story(self.rows, gang) for gang in self.state.gangs),
                ]
            )

    def summary(self) -> str:
        """Return the picture, and the status of gangs that do not simply run."""
        statuses = [
            f"{gang.id} {self.status(gang.id)}" for gang in self.state.gangs.values() if gang.state not in ACTIVE
        ]
        statuses += [f"{gang} {state}" for gang, state in self.ended.items()]
        return picture.draw(self.state) + (f" | {', '.join(statuses)}" if statuses else "")

    def status(self, gang: str) -> str:
        """Return the gang's state, or its pending reason."""
        is_pending = self.state.gangs[gang].state is GangState.PENDING
        return self.reason(gang).code if is_pending else self.state.gangs[gang].state

    def reason(self, gang: str) -> ReasonView:
        """Return the pending reason as clients display it."""
        pending = self.state.gangs[gang]
        return reason_view(current_reason(self.state, pending, self.now_ms, self.policy), gang, pending.queue)

    def explanation(self, gang: str) -> Explanation:
        """Return the whole explanation."""
        return explain(self.state, gang, self.now_ms, self.policy)

    def run_cycles(self) -> None:
        """Plan and record as the loop does, until no cycle is due at once; then count anew what the state derives.

        The laws do so after each event (`tests.laws.safety`).
        """
        while self.run_cycle().next_wake_ms == self.now_ms:
            pass
        self.state.validate()

    def run_cycle(self) -> Plan:
        """Plan and record once."""
        planned = plan(self.state, self.now_ms, self.policy)
        if planned.decisions:
            self.apply(e.Decided(plan=planned, policy=self.policy.NAME, version="0"))
        return planned

    def apply(self, event: e.Event) -> None:
        """Fold an event with the next number and the current time."""
        self.rows.append(e.Stamped(self.state.seq + 1, self.now_ms, event))
        for changed in fold(self.state, self.rows[-1]):
            if changed.ended and not (isinstance(changed, Gang) and changed.is_head):
                self.ended[changed.id] = changed.state

    # -- actions -------------------------------------------------------------------------------------------------------

    def do(self, action: str) -> None:
        """Carry out one action of a line."""
        verb, *arguments = action.split()
        if verb[0].isupper():
            for token in (verb, *arguments):
                self.apply(e.Submitted(job=picture.job(token)))
        elif verb[0] == "+":
            self.now_ms += parse_duration_ms(verb[1:])
        else:
            getattr(self, f"_{verb}")(*arguments)

    def _of(self, gang: str, nodes: tuple[str, ...] = ()) -> dict[str, object]:
        """Return the fields of an event about a gang's generation, on these nodes or all that are left."""
        subject = self.state.gangs[gang]
        return {"gang": gang, "generation": subject.attempt.generation, "nodes": nodes or tuple(subject.attempt.left)}

    def _up(self, gang: str, *nodes: str) -> None:
        self.apply(e.Started(**self._of(gang, nodes)))

    def _step(self, gang: str) -> None:
        self.steps += 1
        self.apply(e.Progressed(gang=gang, generation=self.state.gangs[gang].attempt.generation, step=self.steps))

    def _saves(self, gang: str, more: str = "1") -> None:
        self.steps += int(more)
        self.apply(e.Checkpointed(gang=gang, generation=self.state.gangs[gang].attempt.generation, step=self.steps))

    def _resumes(self, gang: str, step: str, older: str = "") -> None:
        """Report that the generation resumed from the checkpoint of a step, with an older complete one, if any."""
        older_step = int(older) if older else None
        generation = self.state.gangs[gang].attempt.generation
        self.apply(e.Resumed(gang=gang, generation=generation, step=int(step), older_step=older_step))

    def _fails(self, gang: str, manner: str = "exit", log: str = "", node: str = "") -> None:
        """Fail the gang's generation, on the first node unless one is named. A second failure must be refused.

        manner: exit, signal, an exception at the newest step (error, timeout) or a cause.
        log: the text that a retry rule finds, - for none.
        """
        failing = self.state.gangs[gang]
        log = log.strip("-")
        matches = [
            RuleMatch(rule=index, do=rule.do, node=node or failing.attempt.left[0], rank=0, line=log)
            for index, rule in enumerate(failing.job.spec.retry.rules)
            if log and rule.log == log
        ]
        is_exception = manner in ("error", "timeout")
        code, signal = 1 if manner == "exit" or is_exception else None, 9 if manner == "signal" else None
        error = PythonError(type="KeyError", message="'lr'", file="train.py", line=31)
        if manner == "timeout":
            error = PythonError(type="TimeoutError", message="timed out", file="train.py", line=12)
        end = RankEnd(
            rank=0, node=node or failing.attempt.left[0], at_ms=self.now_ms, exit_code=1, step=self.steps, error=error
        )
        cause = CAUSES.get(manner, Cause.RANK_FAILED)
        event = e.Failed(
            gang=gang,
            generation=failing.attempt.generation,
            node=node if node and not log else failing.attempt.left[0],
            cause=cause,
            rank=0 if is_exception else None,
            ends=(end,) if is_exception else (),
            exit_code=code,
            signal=signal,
            match=matches[0] if matches else None,
        )
        if failing.attempt.failure is None:
            self.apply(event)
        else:
            assert refusal(self.state, event), "a second failure is a consequence of the first"

    def _gone(self, gang: str, *nodes: str) -> None:
        self.apply(e.Cleared(**self._of(gang, nodes)))

    def _done(self, gang: str, *nodes: str) -> None:
        self.apply(e.Finished(**self._of(gang, nodes)))
        self._gone(gang, *nodes)

    def _exits(self, gang: str, *nodes: str) -> None:
        self.apply(e.Finished(**self._of(gang, nodes)))

    def _ends(self, gang: str) -> None:
        self.apply(e.Done(gang=gang, generation=self.state.gangs[gang].attempt.generation))

    def _suspend(self, gang: str) -> None:
        self.apply(e.SuspendRequested(gang=gang))

    def _resume(self, gang: str) -> None:
        self.apply(e.ResumeRequested(gang=gang))

    def _priority(self, gang: str, priority: str) -> None:
        self.apply(e.PriorityChanged(gang=gang, priority=int(priority)))

    def _took(self, *tokens: str) -> None:
        """Run earlier jobs one after the other: `1x2,user=ann 30m 40m`, one job for each time."""
        size, *times = tokens
        for index, time in enumerate(times):
            name = f"Z{self.state.seq}_{index}"
            self.apply(e.Submitted(job=picture.job(f"{name}:{size},prio=1000")))
            self.run_cycles()
            self.now_ms += parse_duration_ms(time)
            self._done(name)
            del self.ended[name]

    def _scale(self, gang: str, nodes: str) -> None:
        self.apply(e.ScaleRequested(gang=gang, nodes=int(nodes)))

    def _stop(self, gang: str, now: str = "") -> None:
        self.apply(e.StopRequested(gang=gang, now=now == "now"))

    def _lose(self, node: str) -> None:
        self.apply(e.NodeLost(node=node))

    def _return(self, node: str) -> None:
        self.apply(e.NodeReturned(node=node))

    def _cordon(self, node: str) -> None:
        self.apply(e.NodeCordoned(node=node))

    def _uncordon(self, node: str) -> None:
        self.apply(e.NodeUncordoned(node=node))

    def _drain(self, node: str) -> None:
        self.apply(e.NodeDrained(node=node))

    def _spot(self, node: str, notice: str) -> None:
        self.apply(e.NodePreempted(node=node, notice_ms=parse_duration_ms(notice)))

    def _evict(self, gang: str, node: str, notice: str) -> None:
        generation = self.state.gangs[gang].attempt.generation
        self.apply(e.Evicted(gang=gang, generation=generation, node=node, notice_ms=parse_duration_ms(notice)))

    def _maintain(self, nodes: str, begin: str, lasts: str) -> None:
        """Set a maintenance window: `n1+n2 1h 30m`, its start from now and its length."""
        from_ms = self.now_ms + parse_duration_ms(begin)
        names = tuple(nodes.split("+"))
        self.apply(
            e.MaintenanceSet(
                id=f"m{self.state.seq}", nodes=names, from_ms=from_ms, until_ms=from_ms + parse_duration_ms(lasts)
            )
        )

    def _maintained(self) -> None:
        self.apply(e.MaintenanceCleared(id=next(iter(self.state.maintenance))))

    def _list(self, *nodes: str) -> None:
        self.apply(picture.listing([picture.node(token)[0] for token in nodes]))

    def _restart(self) -> None:
        self.apply(e.ServerStarted(version="0"))

    def _pools(self, *tokens: str) -> None:
        """Set the policy's pools in order: `spot=pay:s`, the kind and the labels of its nodes."""
        pairs = [token.split("=") for token in tokens]
        pools = tuple(Pool(name=kind, kind=kind, nodes=dict([pair.split(":")])) for kind, pair in pairs)
        self._rules(pools=pools)

    def _score(self, score: str, cut: str = "0", ties: str = "least") -> None:
        """Set how devices are chosen."""
        self._rules(gpu_shares=GpuShares(score=score, cut=int(cut), ties=ties))

    def _rules(self, **more: object) -> None:
        document = replace(self.state.document, **more)
        self.apply(e.PolicySet(document=document, version=self.state.policy_version + 1))

    def _queue(self, token: str) -> None:
        self.apply(e.QueueSet(queue=picture.queue(token)))

    def _policy(self, token: str) -> None:
        """Apply a changed policy: `half_life=1h,queues.q.weight=3`; `without=q` removes a queue; `force` forces it."""
        changes = dict(word.partition("=")[::2] for word in token.split(","))
        forced, removed = changes.pop("force", None) is not None, changes.pop("without", "")
        data = policy_to_dict(self.state.document)
        data["queues"].pop(removed, None)
        for path, value in changes.items():
            *parents, key = path.split(".")
            section = data
            for name in parents:
                section = section.setdefault(name, {})
            section[key] = int(value) if value.isdigit() else value
        document = policy_from_dict(data, "it").document
        self.apply(e.PolicySet(document=document, version=self.state.policy_version + 1, forced=forced))
        self.policy = POLICIES[document.order] if "order" in changes else self.policy

    def defrag_request(self) -> e.DefragRequested:
        """Return the request for the moves that make most room in one domain of the lowest level."""
        level = self.state.nodes.topology.levels[-1]
        _, found = defrag_plan(self.state, level, None, self.now_ms, self.policy)
        assert found, "no job could be moved"
        moves = ((gang.id, gang.attempt.generation, shares) for gang, shares in found.moves)
        return e.DefragRequested(
            moves=tuple(Move(gang=gang, generation=number, shares=shares) for gang, number, shares in moves),
            gang=found.goal.id,
        )

    def _defrag(self) -> None:
        self.apply(self.defrag_request())

    def _unqueue(self, name: str) -> None:
        self.apply(e.QueueDeleted(queue=name))

    # -- gangs that run before the first line --------------------------------------------------------------------------

    def _runs(self, gang: str, rows: list[tuple[str, str]], options: picture.Words) -> None:
        held = [tuple(index for index, mark in enumerate(row) if mark == gang) for _, row in rows]
        size = f"{gang}:{len(rows)}x{len(held[0])}"
        job = picture.job(",".join([size, *(f"{key}={value}" for key, value in options.items())]))
        ranks = job.spec.processes_per_node
        shares = tuple(
            NodeShare(name, tuple(range(index * ranks, (index + 1) * ranks)), devices)
            for index, ((name, _), devices) in enumerate(zip(rows, held, strict=True))
        )
        start = Start(gang=gang, generation=1, shares=shares, host="127.0.0.1", port=20_000)
        self.apply(e.Submitted(job=job))
        self.apply(e.Decided(plan=Plan(as_of=self.state.seq, decisions=(start,)), policy=self.policy.NAME, version="0"))
        self._up(gang)
