"""Spare nodes: a job that loses a node goes on at once with a spare, whoever else waits."""

from ganger.core.cycle.cycle import plan
from ganger.engine.eventlog import event_row
from ganger.engine.query.event_text import sentence, stop_text
from ganger.model import event as e
from ganger.model.decision import Cause, PreemptionRule, Start, Stop
from tests.laws.policies import POLICIES
from tests.pictures.film import Film
from tests.pictures.play import scenarios

RACKS = "r1/n1:.... r1/n2:.... r1/n3:.... r2/n4:...."
JOB = "A:2x4,spares=1,in=rack,must,time=9h"

test_spares = scenarios(
    {
        "the spare is in the rack of the job, and nothing else gets it": (
            RACKS,
            "",
            f"""{JOB}            -> AAAA AAAA AAAA ....
                Y:2x4,time=1h    -> AAAA AAAA AAAA .... | Y no_capacity""",
        ),
        "a lost node is replaced at once, before a job that waits with a higher priority": (
            RACKS,
            "",
            f"""{JOB}                     -> AAAA AAAA AAAA ....
                up A; Y:2x4,prio=high     -> AAAA AAAA AAAA .... | Y no_capacity
                lose n1                   -> ....x AAAA AAAA .... | A resizing, Y no_capacity
                gone A                    -> ....x AAAA AAAA .... | Y no_capacity""",
        ),
        "one spare replaces one node: with two lost at once, and after the second, the job queues again": (
            "r1/n1:.... r1/n2:.... r1/n3:.... r1/n4:....",
            "",
            """A:3x4,spares=1 -> AAAA AAAA AAAA AAAA
               up A; lose n1  -> ....x AAAA AAAA AAAA | A resizing
               gone A         -> ....x AAAA AAAA AAAA
               up A; lose n2  -> ....x ....x AAAA AAAA | A requeueing
               gone A         -> ....x ....x .... .... | A backoff""",
        ),
        "a job of one node is on its spare with the next cycle": (
            "n1:.... n2:....",
            "",
            """A:1x4,spares=1          -> AAAA AAAA
               up A; lose n1           -> ....x AAAA
               return n1; up A; lose n2 -> .... ....x | A backoff""",
        ),
        "a spare that is lost or drained is given up, and the job runs on": (
            RACKS,
            "",
            f"""{JOB}     -> AAAA AAAA AAAA ....
                up A; lose n3 -> AAAA AAAA ....x ....
                return n3; lose n1 -> ....x AAAA .... .... | A requeueing""",
        ),
        "a drained node is replaced as a lost one is": (
            RACKS,
            "",
            f"""{JOB}     -> AAAA AAAA AAAA ....
                up A; drain n2 -> AAAA AAAA# AAAA .... | A resizing
                gone A    -> AAAA ....# AAAA ....""",
        ),
        "of two drained nodes a spare replaces none": (
            RACKS,
            "",
            f"""{JOB}               -> AAAA AAAA AAAA ....
                drain n1; drain n2  -> AAAA# AAAA# AAAA .... | A requeueing""",
        ),
        "a drained spare is given up": (
            RACKS,
            "",
            f"""{JOB}     -> AAAA AAAA AAAA ....
                up A; drain n3 -> AAAA AAAA ....# ....""",
        ),
        "maintenance of a spare does not stop the job": (
            RACKS,
            "",
            f"""{JOB}                     -> AAAA AAAA AAAA ....
                up A; maintain n3 0s 1h   -> AAAA AAAA AAAA ....
                lose n1                   -> ....x AAAA AAAA .... | A requeueing""",
        ),
        "a job that is stopped gives its spare back": (
            RACKS,
            "",
            f"""{JOB}       -> AAAA AAAA AAAA ....
                up A; stop A -> AAAA AAAA AAAA .... | A stopping
                gone A      -> .... .... .... .... | A stopped""",
        ),
        "a job that is stopped while a spare takes over gives everything back": (
            RACKS,
            "",
            f"""{JOB}         -> AAAA AAAA AAAA ....
                up A; lose n1 -> ....x AAAA AAAA .... | A resizing
                stop A        -> ....x AAAA AAAA .... | A stopping
                gone A        -> ....x .... .... .... | A stopped""",
        ),
    },
    policy="priority",
)


def test_the_ranks_of_a_lost_node_are_those_of_the_spare() -> None:
    film = Film(POLICIES["dynamic"], RACKS, "")
    film.play(f"{JOB} -> AAAA AAAA AAAA ....")
    start = film.state.gangs["A"].attempt.start
    assert start
    assert ([share.ranks for share in start.spares], start.nodes) == ([()], ("n1", "n2"))
    film.do("up A")
    film.do("lose n1")
    film.run_cycles()
    film.do("gone A")
    (after,) = [d for d in plan(film.state, film.now_ms, film.policy).decisions if isinstance(d, Start)]
    assert [(share.node, share.ranks) for share in after.shares] == [("n3", (0, 1, 2, 3)), ("n2", (4, 5, 6, 7))]
    assert (after.generation, after.spares) == (2, ())
    film.run_cycles()
    gang = film.state.gangs["A"]
    assert (gang.retries.used, gang.shape.nodes) == (0, 2)


FULL = "r1/n1:.... r1/n2:.... r1/n3:.... r2/n4:BBBB B,time=9h"
LENT = f"""{JOB},save                -> AAAA AAAA AAAA BBBB
           up A; Y:1x4,time=1h       -> AAAA AAAA YYYY BBBB"""

test_lending = scenarios(
    {
        "a pending job is on the spare until the job that holds it loses a node": (
            FULL,
            "",
            f"""{LENT}
                up Y; lose n1  -> ....x AAAA YYYY BBBB | A resizing, Y requeueing
                gone A         -> ....x AAAA YYYY BBBB | A resizing, Y requeueing
                gone Y         -> ....x AAAA AAAA BBBB | Y no_capacity""",
        ),
        "its own nodes are left first": (
            FULL,
            "",
            f"""{LENT}
                up Y; lose n1  -> ....x AAAA YYYY BBBB | A resizing, Y requeueing
                gone Y         -> ....x AAAA AAAA BBBB | A resizing, Y no_capacity
                gone A         -> ....x AAAA AAAA BBBB | Y no_capacity""",
        ),
        "a drained node is replaced too": (
            FULL,
            "",
            f"""{LENT}
                up Y; drain n2  -> AAAA AAAA# YYYY BBBB | A resizing, Y requeueing
                gone A; gone Y  -> AAAA ....# AAAA BBBB | Y no_capacity""",
        ),
        "nothing is free for others on a spare that comes back": (
            FULL,
            "",
            f"""{LENT}
                up Y; done Y             -> AAAA AAAA AAAA BBBB | Y succeeded
                Z:1x4,time=1h,stays      -> AAAA AAAA AAAA BBBB | Z no_capacity""",
        ),
        "two small jobs are on one spare, and both leave it": (
            FULL,
            "",
            f"""{JOB},save                    -> AAAA AAAA AAAA BBBB
                up A; X:1x2,time=1h Y:1x2,time=1h -> AAAA AAAA XXYY BBBB
                lose n2                       -> AAAA ....x XXYY BBBB | A resizing, X requeueing, Y requeueing""",
        ),
        "a job of two nodes is on the spares of two jobs, and leaves both for either": (
            "n1:.... n2:.... n3:.... n4:....",
            "",
            """A:1x4,spares=1 B:1x4,spares=1 -> AAAA AAAA BBBB BBBB
               up A; up B; Y:2x4             -> AAAA YYYY BBBB YYYY
               up Y; lose n1                 -> ....x YYYY BBBB YYYY | A resizing, Y requeueing
               gone Y n4                     -> ....x YYYY BBBB BBBB | A resizing, Y requeueing
               gone Y                        -> ....x AAAA BBBB BBBB | Y no_capacity""",
        ),
        "a job that must not be preempted waits": (
            FULL,
            "",
            f"""{JOB},save                -> AAAA AAAA AAAA BBBB
                up A; Y:1x4,stays         -> AAAA AAAA AAAA BBBB | Y no_capacity""",
        ),
        "a job with a longer notice than the holder of the spare waits": (
            FULL,
            "",
            f"""{JOB}               -> AAAA AAAA AAAA BBBB
                up A; Y:1x4,save    -> AAAA AAAA AAAA BBBB | Y no_capacity
                Z:1x4               -> AAAA AAAA ZZZZ BBBB | Y no_capacity""",
        ),
        "of the spares of two jobs it has those whose holder gives as long a notice": (
            "n1:.... n2:.... n3:.... n4:....",
            "",
            """A:1x4,spares=1 B:1x4,spares=1,save -> AAAA AAAA BBBB BBBB
               up A; up B; Y:2x4,save             -> AAAA AAAA BBBB BBBB | Y no_capacity
               Z:1x4,save                         -> AAAA AAAA BBBB ZZZZ | Y no_capacity""",
        ),
        "a job with a spare of its own, and an elastic one, wait": (
            FULL,
            "",
            f"""{JOB}                              -> AAAA AAAA AAAA BBBB
                up A; Y:1x2,spares=1 Z:1x4,to=2    -> AAAA AAAA AAAA BBBB | Y no_capacity, Z no_capacity""",
        ),
        "a job whose node it would not be without the spare waits": (
            "r1/n1:....,h100 r1/n2:....,h100 r1/n3:....,h100 r2/n4:BBBB,a100 B,time=9h",
            "",
            f"""{JOB}                  -> AAAA AAAA AAAA BBBB
                up A; Y:1x4a100        -> AAAA AAAA AAAA BBBB | Y no_capacity""",
        ),
        "it leaves when the holder ends, and starts on the node anew": (
            FULL,
            "",
            f"""{LENT}
                up Y; done A   -> .... .... YYYY BBBB | Y requeueing, A succeeded
                gone Y         -> YYYY .... .... BBBB""",
        ),
        "it leaves when the holder is stopped": (
            FULL,
            "",
            f"""{LENT}
                up Y; stop A    -> AAAA AAAA YYYY BBBB | A stopping, Y requeueing
                gone A          -> .... .... YYYY BBBB | Y requeueing, A stopped
                gone Y          -> YYYY .... .... BBBB""",
        ),
        "a job that has failed and queues again lends nothing": (
            FULL,
            "",
            f"""{LENT}
                up Y; fails A signal -> AAAA AAAA YYYY BBBB | A requeueing, Y requeueing""",
        ),
        "the spare is lost: it goes on elsewhere as after any loss of a node": (
            FULL,
            "",
            f"""{LENT}
                up Y; lose n3   -> AAAA AAAA ....x BBBB | Y no_capacity""",
        ),
        "a user's limit of jobs, and a quota, hold for what is lent too": (
            FULL,
            "q=0,user_jobs=1 s=0,borrow=0",
            f"""{JOB}                                    -> AAAA AAAA AAAA BBBB
                up A; Y:1x2,q=q Z:1x2,q=q V:1x2,q=s -> AAAA AAAA YYAA BBBB | Z no_capacity, V over_quota""",
        ),
    },
    policy="dynamic",
)

test_new_spares = scenarios(
    {
        "a free node of the rack takes the place of a spare that is lost": (
            "r1/n1:.... r1/n2:.... r1/n3:.... r1/n4:CCCC r2/n5:.... C,time=9h",
            "",
            f"""{JOB}     -> AAAA AAAA AAAA CCCC ....
                up A; lose n3 -> AAAA AAAA ....x CCCC ....
                done C        -> AAAA AAAA ....x AAAA .... | C succeeded""",
        ),
        "and of one that has taken over": (
            RACKS,
            "",
            f"""{JOB}         -> AAAA AAAA AAAA ....
                up A; lose n1 -> ....x AAAA AAAA .... | A resizing
                gone A        -> ....x AAAA AAAA ....
                up A; return n1 -> AAAA AAAA AAAA ....
                lose n2       -> AAAA ....x AAAA .... | A resizing""",
        ),
        "a pending job comes first, and a quota holds": (
            RACKS,
            "q=12,borrow=0",
            f"""{JOB},q=q                 -> AAAA AAAA AAAA ....
                up A; lose n3             -> AAAA AAAA ....x ....
                Y:1x4,q=q,in=rack,at=n3   -> AAAA AAAA ....x .... | Y no_node
                return n3                 -> AAAA AAAA YYYY ....
                done Y                    -> AAAA AAAA AAAA .... | Y succeeded""",
        ),
    },
    policy="dynamic",
)


def test_the_story_of_a_job_on_a_spare_names_the_lender_and_why_it_left() -> None:
    film = Film(POLICIES["dynamic"], FULL, "")
    film.play(LENT)
    film.do("up Y")
    assert film.state.tree.usage[0][film.state.tree.index["root"]] == 16_000, "each GPU is charged once"
    assert film.explanation("Y").domains == ("n3: a spare of A, which gets it back when it needs it",)
    assert film.explanation("A").domains[0] == "n3: its spare, lent to Y"
    film.do("lose n1")
    planned = plan(film.state, film.now_ms, film.policy)
    (stop,) = [d for d in planned.decisions if isinstance(d, Stop) and d.gang == "Y"]
    assert (stop.cause, stop.rule, stop.preemptor) == (Cause.PREEMPTED, PreemptionRule.SPARE, "A")
    assert stop_text(stop) == "its nodes were lent by A, which lost n1"
    film.run_cycles()
    film.do("gone Y")
    assert film.state.gangs["Y"].retries.used == 0
    assert film.state.gangs["Y"].attempt.preempted_ms is None, "it does not count as a preemption of its queue"


def test_a_lost_spare_and_a_new_one_are_events_of_the_job() -> None:
    film = Film(POLICIES["dynamic"], RACKS, "")
    film.play(f"{JOB} -> AAAA AAAA AAAA ....")
    texts, lines = list[str](), list[str]()
    for actions in ("up A", "lose n3", "return n3"):
        film.do(actions)
        planned = e.Decided(plan=plan(film.state, film.now_ms, film.policy), policy="dynamic", version="0")
        texts.append(sentence(planned) if planned.plan.decisions else "")
        assert event_row.subjects(planned) == (["A"] if planned.plan.decisions else [])
        film.run_cycles()
        lines += film.explanation("A").domains
    lacks = "it lacks 1 spare node: it takes one as soon as one is free in its domain"
    assert lines == ["n3: its spare", lacks, "n3: its spare"]
    assert texts == ["", "A lost its spare n3, and has no spare now", "A has n3 as spare now"]
