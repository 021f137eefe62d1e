"""Replica groups: they start together, and each comes back alone."""

from tests.pictures.play import scenarios

test_equal_groups = scenarios(
    {
        "a group takes no nodes from another one of its job, however long that has run": (
            "n1:.... n2:....",
            "",
            """C:1x4,groups=2..3 -> CCCC CCCC | C no_capacity
               up C[0]; up C[1]; +10h -> CCCC CCCC | C no_capacity""",
        ),
    },
    policy="las",
)

test_replica_groups = scenarios(
    {
        "all of them start, or none": (
            "n1:A... n2:....",
            "",
            """C:1x4,groups=2 -> A... .... | C no_capacity
               done A         -> CCCC CCCC | A succeeded""",
        ),
        "what is free for one of them goes to smaller jobs": (
            "n1:AAAA n2:....",
            "",
            "C:1x4,groups=2; B:1x4 -> AAAA BBBB | C no_capacity",
        ),
        "the least number starts, the others as they fit": (
            "n1:A... n2:.... n3:....",
            "",
            """C:1x4,groups=2..4 -> A... CCCC CCCC | C no_capacity
               done A            -> CCCC CCCC CCCC | C no_capacity, A succeeded""",
        ),
        "all of a range that fit start at once": (
            "n1:.... n2:..AA",
            "",
            "C:1x2,groups=2..4 -> CCCC CCAA | C no_capacity",
        ),
        "groups of several nodes": (
            "n1:.... n2:.... n3:.... n4:....",
            "",
            "C:2x4,groups=2 -> CCCC CCCC CCCC CCCC",
        ),
        "each within a domain": (
            "r1/n1:.... r1/n2:.... r1/n3:AAAA r2/n4:.... r2/n5:.... r2/n6:BBBB",
            "",
            "C:2x4,groups=2,in=rack,must -> CCCC CCCC AAAA CCCC CCCC BBBB",
        ),
        "not where their domains have room for the nodes alone": (
            "r1/n1:.... r1/n2:AAAA r2/n3:.... r2/n4:.... r3/n5:.... r3/n6:BBBB",
            "",
            "C:2x4,groups=2,in=rack,must -> .... AAAA .... .... .... BBBB | C no_capacity",
        ),
        "one that is lost comes back, and the other one runs on": (
            "n1:.... n2:....",
            "",
            """C:1x4,groups=2 -> CCCC CCCC
               up C[0]; up C[1]; lose n2 -> CCCC ....x | C[1] no_capacity
               return n2      -> CCCC CCCC""",
        ),
        "one that fails, too": (
            "n1:.... n2:....",
            "",
            """C:1x4,groups=2,max=1 -> CCCC CCCC
               up C[0]; up C[1]; fails C[1]; gone C[1] -> CCCC .... | C[1] backoff
               +1s                  -> CCCC CCCC""",
        ),
        "the training is over when one has finished: no other begins again": (
            "n1:.... n2:....",
            "",
            """C:1x4,groups=2..3 -> CCCC CCCC | C no_capacity
               up C[0]; up C[1]; lose n2 -> CCCC ....x | C no_capacity, C[1] no_capacity
               done C[0]      -> .... ....x | C[0] succeeded, C[1] stopped, C succeeded""",
        ),
        "one of the first start that is slower than the one that has finished runs on": (
            "n1:.... n2:.... n3:AAAA",
            "",
            """C:1x4,groups=2..3 -> CCCC CCCC AAAA | C no_capacity
               up C[0]; +1s; done A -> CCCC CCCC CCCC | A succeeded
               done C[0]      -> .... CCCC CCCC | C[2] stopping, C[0] succeeded""",
        ),
        "one that failed for good does not fail the job": (
            "n1:.... n2:....",
            "",
            """C:1x4,groups=2,max=0 -> CCCC CCCC
               up C[0]; up C[1]; fails C[1]; gone C[1] -> CCCC .... | C[1] failed
               done C[0]            -> .... .... | C[0] succeeded, C succeeded""",
        ),
        "a job of an owner gets the place of one, the other runs on": (
            "n1:.... n2:....",
            "a=4 b=",
            """policy preemption.reclaim=guarantee -> .... ....
               C:1x4,q=b,time=9h,groups=2 -> CCCC CCCC
               D:1x4,q=a,time=1h          -> CCCC CCCC | C[0] requeueing, D stopping_others
               gone C[0]                  -> DDDD CCCC | C[0] no_capacity
               done D                     -> CCCC CCCC | D succeeded""",
        ),
        "none starts when one of them would have to give way at once": (
            "n1:.... n2:....",
            "a=4 b=",
            """policy preemption.reclaim=guarantee -> .... ....
               C:1x4,q=b,time=9h,groups=2 D:1x4,q=a,time=1h -> DDDD .... | C no_capacity""",
        ),
        "one that is stopped before they start is not waited for": (
            "n1:A... n2:....",
            "",
            """C:1x4,groups=2 -> A... .... | C no_capacity
               stop C[1]      -> A... CCCC | C[1] stopped""",
        ),
    }
)
