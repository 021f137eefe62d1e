"""Elastic gangs with a range of a role: it alone grows and shrinks, the other roles stay as they are.

`(A)` is the share of a GPU that the other role has.
"""

from tests.pictures.play import scenarios

SERVER = "roles=500"

test_roles = scenarios(
    {
        "workers on nodes of their own grow, and the server stays one": (
            "n1:... n2:.. n3:.. n4:CC C,time=9h",
            "",
            f"""A:1x2,to=3,{SERVER},time=9h -> AA(A) AA AA CC
               up A; done C                -> AA(A) AA AA .. | C succeeded""",
        ),
        "processes of a role grow on a node that the gang is on": (
            "n1:...",
            "",
            f"A:1x1,to=3,worker,{SERVER},time=9h -> A(A)A",
        ),
        "a running role grows beside itself and elsewhere, up to its maximum": (
            "n1:.... n2:BB. B,time=9h",
            "",
            f"""D:1x1,time=9h                     -> .... BBD
               A:1x1,to=5,worker,{SERVER},time=9h -> A(A)AA BBD
               up A; done B; +3m                  -> A(A)AA AAD | A resizing, B succeeded
               gone A                             -> A(A)AA AAD
               up A                               -> A(A)AA AAD""",
        ),
        "a job takes processes of the role, one for a GPU, and the server stays": (
            "n1:....",
            "",
            f"""A:1x1,to=3,worker,{SERVER},time=9h -> A(A)AA
               up A; C:1x1,time=1h                -> A(A)AA | A resizing, C stopping_others
               gone A                             -> C(A)AA""",
        ),
        "no more than the minimum of the role is left": (
            "n1:....",
            "",
            f"""A:2x1,to=3,worker,{SERVER},time=9h -> AA(A)A
               up A; C:1x2,time=1h                -> AA(A)A | C no_capacity
               D:1x1,time=1h                      -> AA(A)A | A resizing, C no_capacity, D stopping_others""",
        ),
        "units of two processes are given together": (
            "n1:....",
            "",
            """A:1x1,to=3,unit=2,worker,time=9h -> AAA.
               up A; C:1x2,time=1h              -> AAA. | A resizing, C stopping_others
               gone A                           -> CCA.""",
        ),
        "workers on nodes give up nodes, not the one of the server alone": (
            "n1:... n2:.. n3:..",
            "",
            f"""A:1x2,to=3,{SERVER},time=9h -> AA(A) AA AA
               up A; C:2x2,time=1h         -> AA(A) AA AA | A resizing, C stopping_others
               gone A                      -> CC(A) CC AA""",
        ),
        "it is scaled down and up again by a user": (
            "n1:....",
            "",
            f"""A:1x1,to=3,worker,{SERVER},time=9h -> A(A)AA
               up A; scale A 1                    -> A(A)AA | A resizing
               gone A                             -> A(A)..
               up A; scale A 2                    -> A(A)A. | A resizing
               gone A                             -> A(A)A.""",
        ),
        "quota that it borrows": (
            "n1:.... n2:..",
            "a=3 b=3",
            f"""A:1x1,q=a,to=4,worker,{SERVER},time=9h -> AAA. A(A)
               up A; C:1x2,q=b,time=1h               -> AAA. A(A) | A resizing, C stopping_others""",
        ),
        "a node of its workers alone is lost: it goes on with the others": (
            "n1:... n2:.. n3:..",
            "",
            f"""A:1x2,to=3,{SERVER},time=9h -> AA(A) AA AA
               up A; lose n3               -> AA(A) AA ..x | A resizing
               gone A                      -> AA(A) AA ..x""",
        ),
        "the node of its server is lost: it queues again": (
            "n1:... n2:.. n3:..",
            "",
            f"""A:1x2,to=3,{SERVER},time=9h -> AA(A) AA AA
               up A; lose n1               -> ...x AA AA | A requeueing""",
        ),
        "a node that is lost while it is resized": (
            "n1:.. n2:BB B,time=9h",
            "",
            f"""A:1x1,to=3,worker,{SERVER},time=9h -> A(A) BB
               up A; done B; +3m                  -> A(A) AA | A resizing, B succeeded
               lose n2                            -> A(A) ..x | A resizing
               gone A                             -> A(A) ..x""",
        ),
    },
    policy="dynamic",
)
