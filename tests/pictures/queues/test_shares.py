"""The order where past usage counts: queues by weight and guarantee, users in them, points."""

from tests.pictures.play import scenarios

FOUR = "n1:AAAA"

test_fair_share_remembers = scenarios(
    {
        "the user with less usage goes first": (
            "n1:AABB A,user=ann B,user=bob",
            "",
            """+1h; done A          -> ..BB | A succeeded
               +1h; done B; C:1x4,user=bob D:1x4,user=ann -> DDDD | C no_capacity, B succeeded""",
        ),
        "not the first submission": (
            FOUR,
            "",
            """+10h; C:1x4 D:1x4,user=bob -> AAAA | C no_capacity, D no_capacity
               done A                     -> DDDD | C no_capacity, A succeeded""",
        ),
        "not the priority": (
            FOUR,
            "",
            """+10h; C:1x4,prio=high D:1x4,user=bob,prio=low -> AAAA | C no_capacity, D no_capacity
               done A                                        -> DDDD | C no_capacity, A succeeded""",
        ),
        "old usage counts little": (
            "n1:AAAA A,user=ann",
            "",
            """+10h; done A              -> .... | A succeeded
               +70d; B:1x4,user=bob      -> BBBB
               +1h; C:1x4 D:1x4,user=bob -> BBBB | C no_capacity, D no_capacity
               done B                    -> CCCC | D no_capacity, B succeeded""",
        ),
        "a week halves it": (
            "n1:AAAA A,user=ann",
            "",
            """+8h; done A               -> .... | A succeeded
               +7d; B:1x4,user=bob       -> BBBB
               +5h; C:1x4 D:1x4,user=bob -> BBBB | C no_capacity, D no_capacity
               done B                    -> CCCC | D no_capacity, B succeeded""",
        ),
        "and not more": (
            "n1:AAAA A,user=ann",
            "",
            """+8h; done A               -> .... | A succeeded
               +7d; B:1x4,user=bob       -> BBBB
               +3h; C:1x4 D:1x4,user=bob -> BBBB | C no_capacity, D no_capacity
               done B                    -> DDDD | C no_capacity, B succeeded""",
        ),
        "an hour of one GPU is four of a quarter": (
            "n1:AAAAB... A,user=ann B,user=bob",
            "",
            """+1h; done A              -> ....B... | A succeeded
               +2h; done B; C:1x8 D:1x8,user=bob -> DDDDDDDD | C no_capacity, B succeeded""",
        ),
        "a failed attempt counts as usage": (
            "n1:AAAA A,user=ann,max=0",
            "",
            """+1h; fails A; gone A     -> .... | A failed
               C:1x4 D:1x4,user=bob     -> DDDD | C no_capacity""",
        ),
        "running jobs count": (
            "n1:AA.. n2:BB.. A,user=ann B,user=bob",
            "",
            """+1h; done A; +1h         -> .... BB.. | A succeeded
               C:2x1,user=bob D:2x2,user=ann E:2x1,user=bob -> DD.. BBDD | C no_capacity, E no_capacity""",
        ),
        "CPUs count as a share": (
            "n1:a...,cpu=8 A,cpu=4,user=ann",
            "",
            "B:1x1,user=bob,cpu=1 C:1x2,user=ann,cpu=1 D:1x2,user=bob,cpu=1 -> BDDa | C no_capacity",
        ),
        "the dominant share counts": (
            "n1:AB......,cpu=16 A,cpu=8,user=ann B,user=bob,cpu=1",
            "",
            "C:1x4,user=ann,cpu=1 D:1x4,user=bob,cpu=1 -> ABDDDD.. | C no_capacity",
        ),
    },
    policy="fair_share",
)

test_reservations_of_queues = scenarios(
    {
        "a queue above its share has one only from when its own job ends": (
            "n1:ABCD A,q=q,time=1h B,q=q,time=2h C,q=q,time=3h D,q=p,time=4h",
            "q=,weight=4 p=",
            """E:1x1,q=p,time=2h F:1x1,q=q,time=2h -> ABCD | E no_capacity, F no_capacity
               +1h; done A                         -> FBCD | E no_capacity, A succeeded
               +1h; done B; G:1x1,q=q,time=2h      -> FGCD | E no_capacity, B succeeded""",
        ),
        "unless no other queue waits": (
            "n1:ABCD A,q=q,time=1h B,q=q,time=2h C,q=q,time=3h D,q=p,time=4h",
            "q=,weight=4 p=",
            """E:1x1,q=p,time=2h              -> ABCD | E no_capacity
               F:1x1,q=q,time=2h              -> ABCD | E no_capacity, F no_capacity
               +1h; done A                    -> EBCD | F no_capacity, A succeeded""",
        ),
    },
    policy="dynamic",
)

test_fair_share_of_queues = scenarios(
    {
        "three times the weight, three times the usage": (
            "n1:AAAB.... A,q=q B,q=p,user=bob",
            "q=,weight=4 p=",
            "C:1x4,q=p,user=bob D:1x4,q=q -> AAABDDDD | C no_capacity",
        ),
        "and not more than that": (
            "n1:AAAB.... A,q=q B,q=p,user=bob",
            "q=,weight=2 p=",
            "C:1x4,q=p,user=bob D:1x4,q=q -> AAABCCCC | D no_capacity",
        ),
        "below its guarantee it is first, whatever its usage": (
            "n1:AAAA.... A,q=q",
            "q=6 p=,weight=100",
            "C:1x4,q=p,user=bob D:1x4,q=q -> AAAADDDD | C no_capacity",
        ),
        "at its guarantee it is not": (
            "n1:AAAA.... A,q=q",
            "q=4 p=",
            "C:1x4,q=p,user=bob D:1x4,q=q -> AAAACCCC | D no_capacity",
        ),
        "all users of a queue go before all of another": (
            "n1:AAAAAA.. A,q=q,user=ann",
            "q= p=",
            "C:1x1,q=q,user=bob D:1x2,q=p,user=ann -> AAAAAADD | C no_capacity",
        ),
        "usage of a parent counts for its children": (
            "n1:AAAA.... A,q=q",
            "p= q=,in=p r=,in=p s=",
            "C:1x4,q=r,user=bob D:1x4,q=s,user=cat -> AAAADDDD | C no_capacity",
        ),
        "between children their own usage counts": (
            "n1:AA...... A,q=q",
            "p= q=,in=p r=,in=p",
            "C:1x6,q=q,user=bob D:1x6,q=r,user=cat -> AADDDDDD | C no_capacity",
        ),
        "a queue's own jobs compete with its children": (
            "n1:AAB..... A,q=p B,q=q,user=bob",
            "p= q=,in=p",
            "C:1x5,q=p,user=cat D:1x5,q=q,user=cat -> AABDDDDD | C no_capacity",
        ),
        "usage of a deleted queue moves to its parent": (
            "n1:AAAA A,q=q,user=ann",
            "p= q=,in=p s=",
            """+9h; done A                                -> .... | A succeeded
               unqueue q; C:1x4,q=p,user=ann D:1x4,q=s,user=bob -> DDDD | C no_capacity""",
        ),
        "a moved queue keeps its past usage": (
            "n1:AAAA A,q=q,user=ann",
            "p= q=,in=p s=",
            """+9h; done A                                     -> .... | A succeeded
               queue q=,in=s; C:1x4,q=s,user=bob D:1x4,q=p,user=ann -> DDDD | C no_capacity""",
        ),
    },
    policy="fair_share",
)

test_points = scenarios(
    {
        "the first of equal users": (
            FOUR,
            "",
            """C:1x4,user=bob D:1x4,user=cat -> AAAA | C no_capacity, D no_capacity
               done A                        -> CCCC | D no_capacity, A succeeded""",
        ),
        "priority": (
            FOUR,
            "",
            """C:1x4,user=bob D:1x4,user=cat,prio=1 -> AAAA | C no_capacity, D no_capacity
               done A                               -> DDDD | C no_capacity, A succeeded""",
        ),
        "less than a day of waiting does not count": (
            FOUR,
            "",
            """C:1x4,user=bob                -> AAAA | C no_capacity
               +23h; D:1x4,user=cat,prio=1   -> AAAA | C no_capacity, D no_capacity
               done A                        -> DDDD | C no_capacity, A succeeded""",
        ),
        "a job passed over for long comes before any priority": (
            FOUR,
            "",
            """C:1x4,user=bob                  -> AAAA | C no_capacity
               +27h; D:1x4,user=cat,prio=800   -> AAAA | C no_capacity, D no_capacity
               done A                          -> CCCC | D no_capacity, A succeeded""",
        ),
        "jobs of a long queue are not passed over: a new job starts after one of them": (
            "n1:AAAA A,user=ann",
            "",
            """C:1x4,user=ann E:1x4,user=ann -> AAAA | C no_capacity, E no_capacity
               +40h; done A                  -> CCCC | E no_capacity, A succeeded
               D:1x4,user=bob                -> CCCC | E no_capacity, D no_capacity
               +1h; done C                   -> DDDD | E no_capacity, C succeeded""",
        ),
        "a user with much usage waits": (
            "n1:AAAA A,user=ann",
            "",
            """+24h; C:1x4,user=ann D:1x4,user=bob -> AAAA | C no_capacity, D no_capacity
               done A                              -> DDDD | C no_capacity, A succeeded""",
        ),
        "but not for ever": (
            "n1:AAAA A,user=ann",
            "",
            """+24h; C:1x4,user=ann                -> AAAA | C no_capacity
               +25h; D:1x4,user=bob                -> AAAA | C no_capacity, D no_capacity
               done A                              -> CCCC | D no_capacity, A succeeded""",
        ),
        "a queue with much usage waits": (
            "n1:AAAA A,q=q",
            "q= p=",
            """+24h; C:1x4,q=q,user=bob D:1x4,q=p,user=cat -> AAAA | C no_capacity, D no_capacity
               done A                                      -> DDDD | C no_capacity, A succeeded""",
        ),
        "less so with a higher weight": (
            "n1:AABB A,q=q,user=ann B,q=p,user=bob",
            "q=,weight=9 p=",
            """+24h; C:1x4,q=p,user=cat D:1x4,q=q,user=dan -> AABB | C no_capacity, D no_capacity
               done A; done B                              -> DDDD | C no_capacity, A succeeded, B succeeded""",
        ),
        "below its guarantee usage does not count": (
            "n1:AA.. n2:BBBB A,q=q,user=ann B,q=p,user=bob",
            "q=6 p=,weight=9",
            """C:1x2,q=p,user=cat D:1x2,q=q,user=dan -> AADD BBBB | C no_capacity""",
        ),
        "a start counts within its cycle": (
            "n1:....",
            "",
            "C:1x2 D:1x2 E:1x2,user=bob -> CCEE | D no_capacity",
        ),
        "a requeued job keeps its position": (
            "n1:....",
            "",
            """C:1x4 D:1x4,user=bob -> CCCC | D no_capacity
               saves C; fails C; gone C -> CCCC | D no_capacity""",
        ),
    },
    policy="dynamic",
)

test_max_min = scenarios(
    {
        "a user without allocations goes first, whatever the usage": (
            "n1:AABB A,user=ann B,user=bob",
            "",
            """+9h; C:1x2,user=bob D:1x2,user=ann -> AABB | C no_capacity, D no_capacity
               done A                             -> DDBB | C no_capacity, A succeeded""",
        ),
        "others are preempted up to equal shares": (
            "n1:AABBCCDD A,user=ann B,user=ann C,user=ann D,user=ann",
            "",
            """E:1x2,user=bob F:1x2,user=bob -> AABBCCDD | D requeueing, E stopping_others, F stopping_others
               gone D                        -> AABBCCEE | C requeueing, D no_capacity, F stopping_others
               gone C                        -> AABBFFEE | C no_capacity, D no_capacity
               G:1x2,user=bob                -> AABBFFEE | C no_capacity, D no_capacity, G no_capacity
               +9h                           -> AABBFFEE | C no_capacity, D no_capacity, G no_capacity""",
        ),
        "pending preemptions count": (
            "n1:AB n2:CD A,user=ann B,user=ann C,user=ann D,user=ann",
            "",
            """E:1x1,user=bob F:1x1,user=bob,prio=1 -> AB CD | D requeueing, E no_capacity, F stopping_others
               gone D                              -> AB CF | C requeueing, D no_capacity, E stopping_others
               gone C                              -> AB EF | C no_capacity, D no_capacity""",
        ),
        "no preemption that leaves a user without allocation": (
            FOUR,
            "",
            """+9h; C:1x4,user=bob -> AAAA | C no_capacity
               D:1x1,user=cat      -> AAAA | C no_capacity, D no_capacity""",
        ),
        "nor of a job of the same user": (
            "n1:AABB A,user=ann B,user=ann",
            "",
            "C:1x2,user=ann,prio=high -> AABB | C no_capacity",
        ),
        "three times the weight, three times the allocation": (
            "n1:AABBCCDD A,user=ann,q=a B,user=ann,q=a C,user=ann,q=a D,user=ann,q=a",
            "a=,weight=3 b=",
            """E:1x2,user=bob,q=b F:1x2,user=bob,q=b -> AABBCCDD | D requeueing, E stopping_others, F stopping_others
               gone D                                -> AABBCCEE | D no_capacity, F no_capacity""",
        ),
        "a job that is no needed victim stays": (
            "n1:AABB n2:C... A,user=ann B,user=ann C,user=ann",
            "",
            """D:1x4,user=bob -> AABB C... | C requeueing, D stopping_others
               gone C         -> AABB DDDD | C no_capacity""",
        ),
    },
    policy="max_min",
)
