"""Surplus of elastic gangs: taken for pending jobs, no more than they need, and before any whole gang is stopped."""

from tests.pictures.play import scenarios

RULES = "policy preemption.priority=all"

test_surplus = scenarios(
    {
        "a job takes what an elastic one has beyond its minimum, and that goes on at once": (
            "n1:AA n2:AA n3:AA A,from=1,to=3,time=9h,save",
            "",
            """C:1x2,time=1h -> AA AA AA | A resizing, C stopping_others
               gone A n1     -> CC AA AA | A resizing
               gone A        -> CC AA AA
               up A; +30m    -> CC AA AA""",
        ),
        "a job takes it at once from one that starts in the same cycle": (
            "r1/n1:..,label=zone:a r1/n2:..,label=zone:a r2/n3:..",
            "",
            """A:1x2,to=3,time=9h,like=zone=a C:2x2,in=rack,must,time=1h -> AA AA AA | A resizing, C stopping_others""",
        ),
        "no more than the minimum is left to it": (
            "n1:AA n2:AA n3:AA A,from=2,to=3,time=9h",
            "",
            """C:2x2,time=1h -> AA AA AA | C no_capacity
               D:1x2,time=1h -> AA AA AA | A resizing, C no_capacity, D stopping_others""",
        ),
        "nothing of one that has left a node, since it ends": (
            "n1:AA n2:AA A,from=1,to=2,time=9h",
            "",
            """done A n1      -> .. AA
               C:2x2,time=1h  -> .. AA | C no_capacity
               done A n2      -> CC CC | A succeeded""",
        ),
        "it grows again when the other has ended": (
            "n1:AA n2:AA A,from=1,to=2,time=9h",
            "",
            """C:1x2,time=1h -> AA AA | A resizing, C stopping_others
               gone A        -> CC AA
               up A; +10m    -> CC AA
               done C        -> AA AA | A resizing, C succeeded""",
        ),
        "of two elastic gangs the smaller loss": (
            "n1:AA n2:AA n3:BB n4:BB A,from=1,to=2,time=9h B,from=1,to=2,time=9h",
            "",
            """step A; step B; +10m; saves B -> AA AA BB BB
               C:1x2,time=1h                 -> AA AA BB BB | B resizing, C stopping_others""",
        ),
        "of both what is needed": (
            "n1:AA n2:AA n3:BB n4:BB A,from=1,to=2,time=9h B,from=1,to=2,time=9h",
            "",
            """C:2x2,time=1h          -> AA AA BB BB | A resizing, B resizing, C stopping_others
               gone A                 -> .. AA BB BB | B resizing, C stopping_others
               gone B                 -> CC AA CC BB""",
        ),
        "the nodes in the rack that the job must be in": (
            "r1/n1:AA r1/n2:BB r2/n3:AA r2/n4:AA A,from=1,to=3,time=9h B,time=9h",
            "",
            "C:2x2,time=1h,in=rack,must -> AA BB AA AA | A resizing, C stopping_others",
        ),
        "whole units": (
            "n1:AA n2:AA n3:AA n4:AA A,from=2,to=4,unit=2,time=9h",
            "",
            """C:1x2,time=1h -> AA AA AA AA | A resizing, C stopping_others
               gone A        -> CC .. AA AA""",
        ),
        "surplus before a whole gang of a lower priority": (
            "n1:AA n2:AA n3:BB A,from=1,to=2,time=9h,prio=50 B,time=9h,prio=-50",
            "",
            f"""{RULES}               -> AA AA BB
               C:1x2,time=1h,prio=100 -> AA AA BB | A resizing, C stopping_others""",
        ),
        "surplus and a whole gang where neither is enough": (
            "n1:AA n2:AA n3:BB A,from=1,to=2,time=9h,prio=50 B,time=9h,prio=-50",
            "",
            f"""{RULES}               -> AA AA BB
               C:2x2,time=1h,prio=100 -> AA AA BB | A resizing, B requeueing, C stopping_others""",
        ),
        "quota that it borrows": (
            "n1:AA n2:AA A,q=b,from=1,to=2,time=9h",
            "a=2 b=2",
            "C:1x2,q=a,time=1h -> AA AA | A resizing, C stopping_others",
        ),
        "without a checkpoint it is gone at once, and nothing is taken for a job that cannot start": (
            "n1:AA n2:AA A,from=1,to=2,time=9h",
            "",
            "C:3x2,time=1h -> AA AA | C no_node",
        ),
    },
    policy="dynamic",
)
