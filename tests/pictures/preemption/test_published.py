"""Cases of endless or useless preemption that were published for other schedulers, each under its issue's name."""

import pytest

from tests.laws.policies import POLICIES
from tests.pictures.film import Film
from tests.pictures.play import scenarios

RULES = "policy preemption.reclaim=guarantee,preemption.priority=all,preemption.priority_gap=1"

test_published = scenarios(
    {
        "Kueue 3779: a job beyond its guarantee stopped a small one, which came back at once, for ever": (
            "n1:AAAAAB A,q=a,time=9h B,q=c,time=9h",
            "a=3 b=3 c=",
            f"""{RULES}       -> AAAAAB
               C:1x1,q=a,time=1h -> AAAAAB | C no_capacity
               +1h               -> AAAAAB | C no_capacity""",
        ),
        "Kueue 6947: others were stopped for a job that can never start, and one that could did not": (
            "n1:B.. B,q=b,time=9h",
            "a=3 b=0",
            f"""{RULES}       -> B..
               C:1x4,q=a,time=1h -> B.. | C no_node
               D:1x3,q=a,time=1h -> B.. | B requeueing, C no_node, D stopping_others
               gone B            -> DDD | B no_capacity, C no_node""",
        ),
        "Kueue 7101: a job that halves the shares was refused, and a smaller one stopped others for ever": (
            "n1:AABBCCDD A,q=p,time=9h B,q=p,time=9h C,q=p,time=9h D,q=p,time=9h",
            "p=4 q=4",
            f"""{RULES}       -> AABBCCDD
               E:1x6,q=q,time=1h -> AABBCCDD | E no_capacity
               G:1x4,q=q,time=1h -> AABBCCDD | C requeueing, D requeueing, E no_capacity, G stopping_others
               gone C; gone D    -> AABBGGGG | C no_capacity, D no_capacity, E no_capacity
               H:1x3,q=q,time=1h -> AABBGGGG | C no_capacity, D no_capacity, E no_capacity, H no_capacity
               +50m              -> AABBGGGG | C no_capacity, D no_capacity, E no_capacity, H no_capacity""",
        ),
        "Kueue 13797: what one of two victims left was taken by another job before the second had left": (
            "n1:AAAABBBB A,q=b,time=9h,save=1m B,q=b,time=9h,save=1m",
            "a=8 b=",
            f"""{RULES}        -> AAAABBBB
               G:1x8,q=a,time=1h  -> AAAABBBB | A requeueing, B requeueing, G stopping_others
               X:1x4,q=b,time=10m -> AAAABBBB | A requeueing, B requeueing, G stopping_others, X no_capacity
               gone A             -> ....BBBB | A reserved, B requeueing, G stopping_others, X reserved
               gone B             -> GGGGGGGG | A no_capacity, B no_capacity, X no_capacity""",
        ),
        "Kueue 14543: of two jobs each stopped the other": (
            "n1:AABBBBBB A,q=a,time=9h B,q=b,time=9h",
            "a=4 b=4",
            f"""{RULES}               -> AABBBBBB
               P:1x4,q=a,time=1h,prio=10 -> AABBBBBB | B requeueing, P stopping_others
               gone B                    -> AAPPPP.. | B no_capacity
               +30m                      -> AAPPPP.. | B no_capacity""",
        ),
        "Volcano 377: of jobs that are all equal, those that waited stopped those that ran, for ever": (
            "n1:ABCD A,q=a,time=9h B,q=a,time=9h C,q=b,time=9h D,q=b,time=9h",
            "a= b=",
            f"""{RULES} -> ABCD
               E:1x1,q=a,time=1h F:1x1,q=a,time=1h G:1x1,q=b,time=1h H:1x1,q=b,time=1h
                   -> ABCD | E no_capacity, F no_capacity, G no_capacity, H no_capacity
               +1h -> ABCD | E no_capacity, F no_capacity, G no_capacity, H no_capacity""".replace(
                "\n                   ->", " ->"
            ),
        ),
        "Volcano 3869: two jobs that never fit together stopped each other": (
            "n1:AAAAAAAA A,q=a,time=9h",
            "a=4 b=4",
            f"""{RULES}       -> AAAAAAAA
               B:1x8,q=b,time=9h -> AAAAAAAA | B no_capacity
               +1h               -> AAAAAAAA | B no_capacity""",
        ),
        "Volcano 5026: jobs were stopped for one that had no place afterwards either": (
            "r1/n1:AAAA r1/n2:BBBB r2/n3:CCCC r2/n4:DDDD A,q=b,time=9h C,q=b,time=9h B,q=c,time=9h D,q=c,time=9h",
            "a=8 b= c=8",
            f"""{RULES}                    -> AAAA BBBB CCCC DDDD
               E:2x4,q=a,time=1h,in=rack,must -> AAAA BBBB CCCC DDDD | E no_capacity""",
        ),
        "Volcano 5131: one job too few was stopped, round after round": (
            "n1:AABB n2:CCDD A,q=b,time=9h B,q=b,time=9h C,q=b,time=9h D,q=b,time=9h",
            "a=8 b=",
            f"""{RULES} -> AABB CCDD
               E:2x4,q=a -> AABB CCDD | A requeueing, B requeueing, C requeueing, D requeueing, E stopping_others
               gone A; gone B; gone C -> .... ..DD | A reserved, B reserved, C reserved, D requeueing, E stopping_others
               gone D -> EEEE EEEE | A no_capacity, B no_capacity, C no_capacity, D no_capacity""",
        ),
    },
    policy="dynamic",
)


@pytest.mark.parametrize("fields", ["q=a", "q=a,prio=100"])
def test_kai_146_no_job_is_stopped_where_no_rule_was_asked_for(fields: str) -> None:
    """Stop no job where the policy says so, and by default none to close gaps, which surprised users of KAI."""
    film = Film(POLICIES["dynamic"], "n1:AAAA A,q=b,time=9h", "a=4 b=")
    film.play(
        f"""policy preemption.reclaim=none,preemption.priority=none -> AAAA
            C:1x4,time=1h,{fields}                                  -> AAAA | C no_capacity"""
    )
    film = Film(POLICIES["dynamic"], "n1:AA.. n2:BB.. A,q=a,time=9h B,q=b,time=9h", "a=8 b=8")
    film.play("C:1x4,time=1h,q=a -> AA.. BB.. | C no_capacity")
