"""A new policy document comes into force between two cycles: order, permission to start, queues of jobs."""

from tests.pictures.play import scenarios

FOUR = "n1:AAAA"

test_the_order_changes = scenarios(
    {
        "shares decide by default": (
            FOUR,
            "",
            """+10h; C:1x4 D:1x4,user=bob -> AAAA | C no_capacity, D no_capacity
               done A                     -> DDDD | C no_capacity, A succeeded""",
        ),
        "in order of submission, from the next cycle on": (
            FOUR,
            "",
            """+10h; C:1x4 D:1x4,user=bob -> AAAA | C no_capacity, D no_capacity
               policy order=fifo; done A  -> CCCC | D no_capacity, A succeeded""",
        ),
        "and back again": (
            FOUR,
            "",
            """+10h; C:1x4 D:1x4,user=bob                  -> AAAA | C no_capacity, D no_capacity
               policy order=fifo                           -> AAAA | C no_capacity, D no_capacity
               policy order=dynamic; done A                -> DDDD | C no_capacity, A succeeded""",
        ),
        "shares with weight 0 have no effect": (
            FOUR,
            "",
            """+10h; C:1x4 D:1x4,user=bob                             -> AAAA | C no_capacity, D no_capacity
               policy weights.queue=0,weights.user=0; done A          -> CCCC | D no_capacity, A succeeded""",
        ),
        "priority with a higher weight exceeds shares": (
            FOUR,
            "",
            """+10h; C:1x4,prio=1 D:1x4,user=bob     -> AAAA | C no_capacity, D no_capacity
               policy weights.priority=1000; done A  -> CCCC | D no_capacity, A succeeded""",
        ),
        "a job passed over for longer goes first": (
            FOUR,
            "",
            """D:1x4,prio=low                       -> AAAA | D no_capacity
               +2h; C:1x4,prio=high                 -> AAAA | D no_capacity, C no_capacity
               policy weights.passed_over_after=1h  -> AAAA | D no_capacity, C no_capacity
               done A                               -> DDDD | C no_capacity, A succeeded""",
        ),
    },
    policy="dynamic",
)

test_the_half_life_changes = scenarios(
    {
        "after a week it still counts": (
            FOUR,
            "",
            """+8h; done A               -> .... | A succeeded
               +1d; B:1x4,user=bob       -> BBBB
               +1h; C:1x4 D:1x4,user=bob -> BBBB | C no_capacity, D no_capacity
               done B                    -> DDDD | C no_capacity, B succeeded""",
        ),
        "with a shorter one it is nearly forgotten": (
            FOUR,
            "",
            """+8h; done A                                       -> .... | A succeeded
               +1d; B:1x4,user=bob                               -> BBBB
               +1h; C:1x4 D:1x4,user=bob                         -> BBBB | C no_capacity, D no_capacity
               policy half_life=1h; done B                       -> CCCC | D no_capacity, B succeeded""",
        ),
    },
    policy="fair_share",
)

test_queues_change = scenarios(
    {
        "a raised quota starts pending jobs": (
            "n1:AA.. A,q=q",
            "q=2,borrow=0",
            """C:1x2,q=q                           -> AA.. | C over_quota
               policy queues.q.nominal.gpus=4      -> AACC""",
        ),
        "a lowered quota stops no job": (
            "n1:AAAA A,q=q",
            "q=4,borrow=0",
            """policy queues.q.nominal.gpus=1           -> AAAA
               C:1x1,q=q                                -> AAAA | C over_quota
               done A                                   -> C... | A succeeded""",
        ),
        "jobs of a deleted queue move to its parent": (
            "n1:AA.. A,q=q",
            "p= q=,in=p",
            """C:1x4,q=q                                          -> AA.. | C no_capacity
               policy without=q,force                             -> AA.. | C no_capacity
               policy queues.p.nominal.gpus=1,queues.p.borrowing.gpus=0 -> AA.. | C over_quota
               done A                                             -> .... | C over_quota, A succeeded""",
        ),
        "moved jobs count in their new queue": (
            "n1:AA.. A,q=q",
            "p=2,borrow=0 q=,in=p s=",
            """policy without=q,force  -> AA..
               C:1x1,q=p D:1x1,q=s     -> AAD. | C over_quota
               done A                  -> C.D. | A succeeded""",
        ),
    }
)
