"""Preemption by the rules of the policy document: for guarantees, and for priorities."""

from tests.pictures.play import scenarios

TWO = "n1:AAAA n2:AAAA A,q=b,time=9h,save=1m"
GUARANTEES = "a=4 b=4"

test_guarantee = scenarios(
    {
        "an owner takes its guarantee back from a borrower, which saves its work and goes on later": (
            TWO,
            GUARANTEES,
            """policy preemption.reclaim=guarantee  -> AAAA AAAA
               C:1x4,q=a,time=1h                    -> AAAA AAAA | A requeueing, C stopping_others
               gone A                               -> CCCC ....  | A no_capacity
               D:1x4,q=b,time=1h                    -> CCCC DDDD  | A no_capacity
               +1h; done C; done D                  -> AAAA AAAA | C succeeded, D succeeded""",
        ),
        "without the rule the owner waits": (
            TWO,
            GUARANTEES,
            "C:1x4,q=a,time=1h -> AAAA AAAA | C no_capacity",
        ),
        "a job beyond its guarantee waits": (
            TWO,
            GUARANTEES,
            """policy preemption.reclaim=guarantee -> AAAA AAAA
               C:2x4,q=a,time=1h                   -> AAAA AAAA | C no_capacity""",
        ),
        "jobs within a guarantee stay, also for a higher priority of another queue": (
            "n1:AAAA n2:BBBB A,q=a,time=9h B,q=b,time=9h",
            GUARANTEES,
            """policy preemption.reclaim=guarantee,preemption.priority=all -> AAAA BBBB
               D:1x4,q=b,time=1h          -> AAAA BBBB | D no_capacity
               C:1x4,q=a,time=1h,prio=100 -> AAAA BBBB | A requeueing, D no_capacity, C stopping_others""",
        ),
        "of the jobs of a borrower the one with the least unsaved work": (
            "n1:AAAA n2:BBBB n3:CCCC A,q=b,time=9h B,q=b,time=9h C,q=b,time=9h",
            "a=4 b=4",
            """step A; step B; step C; +1h; saves C; +1m -> AAAA BBBB CCCC
               policy preemption.reclaim=guarantee        -> AAAA BBBB CCCC
               D:1x4,q=a,time=1h                          -> AAAA BBBB CCCC | C requeueing, D stopping_others""",
        ),
        "a guarantee of one type of GPU protects no job on another": (
            "n1:AAAA,h100 n2:BBBB,a100 A,q=b,time=9h B,q=b,time=9h",
            "a=,h100=4 b=,a100=4",
            """policy preemption.reclaim=guarantee -> AAAA BBBB
               C:1x4h100,q=a,time=1h               -> AAAA BBBB | A requeueing, C stopping_others
               gone A                              -> CCCC BBBB | A no_capacity""",
        ),
        "nor does it allow a job to preempt others on another": (
            "n1:AAAA,h100 n2:....,a100 A,q=b,time=9h",
            "a=,a100=4 b=",
            """policy preemption.reclaim=guarantee -> AAAA ....
               C:1x4h100,q=a,time=1h               -> AAAA .... | C no_capacity""",
        ),
    },
    policy="dynamic",
)

test_priority = scenarios(
    {
        "a job of a higher priority stops one of its queue that is lower by the gap": (
            "n1:AAAA A,prio=0,time=9h",
            "",
            """policy preemption.priority=queue,preemption.priority_gap=10 -> AAAA
               B:1x4,prio=9,time=1h  -> AAAA | B no_capacity
               C:1x4,prio=10,time=1h -> AAAA | A requeueing, B no_capacity, C stopping_others
               gone A                -> CCCC | A no_capacity, B no_capacity""",
        ),
        "a job is not preempted before min_run": (
            "n1:AAAA A,prio=0,time=9h",
            "",
            """policy preemption.priority=all,preemption.min_run=10m -> AAAA
               C:1x4,prio=10,time=1h                                  -> AAAA | C no_capacity
               +10m                                                   -> AAAA | A requeueing, C stopping_others""",
        ),
        "no job is preempted for one that would not fit all the same": (
            "n1:AAAA n2:BBBB A,prio=0,time=9h B,prio=100,time=9h",
            "",
            """policy preemption.priority=all -> AAAA BBBB
               C:2x4,prio=50,time=1h          -> AAAA BBBB | C no_capacity""",
        ),
    },
    policy="dynamic",
)
