"""A scenario that goes on: lines of `what happens -> picture | what is said of whom`, one round after each line.

What happens, separated by `;`: jobs are submitted (`C:2x4 D:1x1`), `+30m` passes, or a verb of `Film`. The picture is
who holds what (`tests.pictures.picture`), `#` on a cordoned and `x` on a lost node. After `|` comes everybody who does
not simply run: why it waits, the state it is in, or how it ended since the line before. All of it goes through
`core.fold.fold`.
"""

from dataclasses import replace

from ganger.core.cycle.plan import plan
from ganger.core.explain.explain import explain, reason_view, standing_reason
from ganger.core.fold.fold import fold, refusal
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.engine.policy_doc.policy_text import policy_from_dict, policy_to_dict
from ganger.model import event as e
from ganger.model.decision import Cause, NodeShare, Plan, Start
from ganger.model.evidence import PythonError, RankEnd
from ganger.model.job import GangState
from ganger.model.policy import GpuShares, Pool, document_of
from ganger.model.units import parse_duration_ms
from ganger.model.views.service_views import Explanation, ReasonView
from tests.laws.policies import POLICIES
from tests.pictures import picture

CAUSES = {"start": Cause.START_FAILED, "port": Cause.PORT_BUSY, "launcher": Cause.LAUNCHER_LOST}
CAUSES |= {"hung": Cause.HUNG, "oom": Cause.OUT_OF_MEMORY, "quota": Cause.NAMESPACE_QUOTA}
RUNS = (GangState.STARTING, GangState.RUNNING)


class Film:
    """One cluster; `shows` is its picture after every line."""

    def __init__(self, policy: Policy, cluster: str, queues: str) -> None:
        self.policy, self.state, self.now_ms, self.steps = policy, State(), 1_000_000_000, 0
        self.ended: dict[str, str] = {}
        for token in queues.split():
            self.apply(e.QueueSet(queue=picture.queue(token)))
        said = dict(picture.words(token) for token in cluster.split() if token[0].isupper())
        nodes = [picture.node(token) for token in cluster.split() if not token[0].isupper()]
        self.apply(picture.listing([node for node, _ in nodes]))
        for gang in sorted({mark.upper() for _, row in nodes for mark in row if mark.isalpha()}):
            self._runs(gang, [(node.name, row) for node, row in nodes if gang in row.upper()], said.get(gang, {}))

    def play(self, film: str) -> None:
        """Every line of it; AssertionError with the pictures before and after when one comes out otherwise."""
        for line in filter(None, map(str.strip, film.splitlines())):
            happens, _, wanted = (part.strip() for part in line.partition("->"))
            before, self.ended = picture.drawn(self.state), {}
            for action in filter(None, map(str.strip, happens.split(";"))):
                self.do(action)
            self.round()
            found, wanted = self.shows(), " ".join(wanted.split())
            assert found == wanted, f"\n  {happens}\n  before: {before}\n  after:  {found}\n  wanted: {wanted}"

    def shows(self) -> str:
        """The picture, and what is said of those who do not simply run."""
        told = [f"{gang.id} {self.says(gang.id)}" for gang in self.state.gangs.values() if gang.state not in RUNS]
        told += [f"{gang} {state}" for gang, state in self.ended.items()]
        return picture.drawn(self.state) + (f" | {', '.join(told)}" if told else "")

    def says(self, gang: str) -> str:
        """Its state, or why it waits."""
        waits = self.state.gangs[gang].state is GangState.PENDING
        return self.reason(gang).code if waits else self.state.gangs[gang].state

    def reason(self, gang: str) -> ReasonView:
        """Why it waits, as people see it."""
        at = self.state.gangs[gang]
        return reason_view(standing_reason(self.state, at, self.now_ms, self.policy), gang, at.queue)

    def explained(self, gang: str) -> Explanation:
        """The whole answer."""
        return explain(self.state, gang, self.now_ms, self.policy)

    def round(self) -> None:
        """Plan and record, as the loop does, until no round is due at once."""
        due = True
        while due:
            planned = plan(self.state, self.now_ms, self.policy)
            due = planned.next_wake_ms == self.now_ms
            if planned.decisions:
                self.apply(e.Decided(plan=planned, policy=self.policy.NAME, version="0"))

    def apply(self, event: e.Event) -> None:
        """One event, numbered and stamped."""
        for each in fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event)):
            if each.ended and not (isinstance(each, Gang) and each.is_head):
                self.ended[each.id] = each.state
        self.state.validate()

    # -- what may happen -----------------------------------------------------------------------------------------------

    def do(self, action: str) -> None:
        """One of a line's parts."""
        verb, *arguments = action.split()
        if verb[0].isupper():
            for token in (verb, *arguments):
                self.apply(e.Submitted(job=picture.job(token)))
        elif verb[0] == "+":
            self.now_ms += parse_duration_ms(verb[1:])
        else:
            getattr(self, f"_{verb}")(*arguments)

    def _of(self, gang: str, nodes: tuple[str, ...] = ()) -> dict[str, object]:
        """The fields of a fact about a gang's generation, on these nodes or all that are left."""
        at = self.state.gangs[gang]
        return {"gang": gang, "generation": at.generation, "nodes": nodes or tuple(at.left)}

    def _up(self, gang: str, *nodes: str) -> None:
        self.apply(e.Started(**self._of(gang, nodes)))

    def _step(self, gang: str) -> None:
        self.steps += 1
        self.apply(e.Progressed(gang=gang, generation=self.state.gangs[gang].generation, step=self.steps))

    def _saves(self, gang: str, more: str = "1") -> None:
        self.steps += int(more)
        self.apply(e.Checkpointed(gang=gang, generation=self.state.gangs[gang].generation, step=self.steps))

    def _resumes(self, gang: str, step: str, older: str = "") -> None:
        """Told that its generation begins from the checkpoint of a step, before which there is a whole one, if any."""
        older_step = int(older) if older else None
        generation = self.state.gangs[gang].generation
        self.apply(e.Resumed(gang=gang, generation=generation, step=int(step), older_step=older_step))

    def _fails(self, gang: str, how: str = "exit", log: str = "", node: str = "") -> None:
        """`how`: exit, signal, error (of the program, at the newest step) or a cause; `log`: what a rule looks for and
        finds, - for nothing; on the first node unless named. After the first of a generation it changes nothing."""
        at = self.state.gangs[gang]
        log = log.strip("-")
        found = [
            e.RuleMatch(rule=index, do=rule.do, node=node or at.left[0], rank=0, line=log)
            for index, rule in enumerate(at.job.spec.retry.rules)
            if log and rule.log == log
        ]
        code, signal = 1 if how in ("exit", "error") else None, 9 if how == "signal" else None
        error = PythonError(type="KeyError", message="'lr'", file="train.py", line=31)
        end = RankEnd(rank=0, node=node or at.left[0], at_ms=self.now_ms, exit_code=1, step=self.steps, error=error)
        cause = CAUSES.get(how, Cause.RANK_FAILED)
        fact = e.Failed(
            gang=gang,
            generation=at.generation,
            node=node if node and not log else at.left[0],
            cause=cause,
            rank=0 if how == "error" else None,
            ends=(end,) if how == "error" else (),
            exit_code=code,
            signal=signal,
            match=found[0] if found else None,
        )
        if at.failure is None:
            self.apply(fact)
        else:
            assert refusal(self.state, fact), "a second failure is the wake of the first"

    def _gone(self, gang: str, *nodes: str) -> None:
        self.apply(e.Cleared(**self._of(gang, nodes)))

    def _done(self, gang: str, *nodes: str) -> None:
        self.apply(e.Finished(**self._of(gang, nodes)))
        self._gone(gang, *nodes)

    def _exits(self, gang: str, *nodes: str) -> None:
        self.apply(e.Finished(**self._of(gang, nodes)))

    def _ends(self, gang: str) -> None:
        self.apply(e.Done(gang=gang, generation=self.state.gangs[gang].generation))

    def _suspend(self, gang: str) -> None:
        self.apply(e.SuspendRequested(gang=gang))

    def _resume(self, gang: str) -> None:
        self.apply(e.ResumeRequested(gang=gang))

    def _priority(self, gang: str, priority: str) -> None:
        self.apply(e.PriorityChanged(gang=gang, priority=int(priority)))

    def _took(self, *tokens: str) -> None:
        """Jobs that ran before, one after the other: `1x2,user=ann` 30m 40m, one job for each time."""
        size, *times = tokens
        for at, time in enumerate(times):
            name = f"Z{self.state.seq}_{at}"
            self.apply(e.Submitted(job=picture.job(f"{name}:{size},prio=1000")))
            self.round()
            self.now_ms += parse_duration_ms(time)
            self._done(name)
            del self.ended[name]

    def _stop(self, gang: str) -> None:
        self.apply(e.StopRequested(gang=gang))

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

    def _maintain(self, nodes: str, begin: str, lasts: str) -> None:
        """`n1+n2 1h 30m`: from then on, for so long."""
        from_ms = self.now_ms + parse_duration_ms(begin)
        names = tuple(nodes.split("+"))
        self.apply(
            e.MaintenanceSet(
                id=f"m{self.state.seq}", nodes=names, from_ms=from_ms, until_ms=from_ms + parse_duration_ms(lasts)
            )
        )

    def _maintained(self) -> None:
        self.apply(e.MaintenanceCleared(id=next(iter(self.state.windows))))

    def _list(self, *nodes: str) -> None:
        self.apply(picture.listing([picture.node(token)[0] for token in nodes]))

    def _restart(self) -> None:
        self.apply(e.ServerStarted(version="0"))

    def _pools(self, *tokens: str) -> None:
        """Pools of the policy, in order: `spot=pay:s`, its kind and the labels of its nodes."""
        pairs = [token.split("=") for token in tokens]
        pools = tuple(Pool(name=kind, kind=kind, nodes=dict([pair.split(":")])) for kind, pair in pairs)
        self._rules(pools=pools)

    def _score(self, score: str, cut: str = "0", ties: str = "least") -> None:
        """How devices are chosen."""
        self._rules(gpu_shares=GpuShares(score=score, cut=int(cut), ties=ties))

    def _rules(self, **more: object) -> None:
        rules = replace(self.state.rules, **more)
        document = document_of(rules, self.state.queues)
        self.apply(e.PolicySet(document=document, version=self.state.policy_version + 1))

    def _queue(self, token: str) -> None:
        self.apply(e.QueueSet(queue=picture.queue(token)))

    def _policy(self, token: str) -> None:
        """Another document: `half_life=1h,queues.q.weight=3` in what it says now; `without=q`, a queue that goes;
        `force`."""
        said = dict(word.partition("=")[::2] for word in token.split(","))
        forced, gone = said.pop("force", None) is not None, said.pop("without", "")
        data = policy_to_dict(document_of(self.state.rules, self.state.queues))
        data["queues"].pop(gone, None)
        for path, value in said.items():
            *around, key = path.split(".")
            inside = data
            for name in around:
                inside = inside.setdefault(name, {})
            inside[key] = int(value) if value.isdigit() else value
        document = policy_from_dict(data, "it").document
        self.apply(e.PolicySet(document=document, version=self.state.policy_version + 1, forced=forced))
        self.policy = POLICIES[document.order] if "order" in said else self.policy

    def _unqueue(self, name: str) -> None:
        self.apply(e.QueueDeleted(queue=name))

    # -- what ran before the first line --------------------------------------------------------------------------------

    def _runs(self, gang: str, rows: list[tuple[str, str]], said: picture.Words) -> None:
        held = [tuple(at for at, mark in enumerate(row) if mark == gang) for _, row in rows]
        size = f"{gang}:{len(rows)}x{len(held[0])}"
        job = picture.job(",".join([size, *(f"{key}={value}" for key, value in said.items())]))
        ranks = job.spec.processes_per_node
        shares = tuple(
            NodeShare(name, tuple(range(at * ranks, (at + 1) * ranks)), devices)
            for at, ((name, _), devices) in enumerate(zip(rows, held, strict=True))
        )
        start = Start(gang=gang, generation=1, shares=shares, host="127.0.0.1", port=20_000)
        self.apply(e.Submitted(job=job))
        self.apply(e.Decided(plan=Plan(as_of=self.state.seq, decisions=(start,)), policy=self.policy.NAME, version="0"))
        self._up(gang)
