"""Quotas of queues and users: guarantees, borrowing, lending, trees of queues, user limits."""

from tests.pictures.play import scenarios

EIGHT = "n1:........"

test_quota = scenarios(
    {
        "quota before capacity": (EIGHT, "q=4,borrow=0", "C:1x4,q=q D:1x4,q=q -> CCCC.... | D over_quota"),
        "no quota, no limit": (EIGHT, "q= p=", "C:1x8,q=q -> CCCCCCCC"),
        "the root limits all": (EIGHT, "root=4", "C:1x4 D:1x1 -> CCCC.... | D over_quota"),
        "a full cluster is not a lack of quota": (
            EIGHT,
            "q=4 p=4",
            "C:1x8,q=q D:1x1,q=q E:1x1 -> CCCCCCCC | D no_capacity, E no_capacity",
        ),
        "unless a quota is set": (EIGHT, "root=8 q=4", "C:1x8,q=q D:1x1,q=q -> CCCCCCCC | D over_quota"),
        "or nodes are free": (EIGHT, "q=2,lend=0", "C:1x6 D:1x1 -> CCCCCC.. | D over_quota"),
        "a quota of 0": (EIGHT, "q=0,borrow=0", "C:1x1,q=q -> ........ | C over_quota"),
        "with CPUs": (EIGHT, "q=0,borrow=0", "C:1x0,q=q -> ........c"),
        "CPUs have their own quota": (EIGHT, "root=,cpu=2", "C:1x0,cpu=2 D:1x0 -> ........c | D over_quota"),
        "a smaller job passes one that is over quota": (
            EIGHT,
            "q=4,borrow=0",
            "C:1x2,q=q D:1x4,q=q E:1x2,q=q -> CCEE.... | D over_quota",
        ),
        "quota is released": (
            EIGHT,
            "q=4,borrow=0",
            """C:1x4,q=q D:1x4,q=q -> CCCC.... | D over_quota
               done C              -> DDDD.... | C succeeded""",
        ),
        "a raised quota starts the next job": (
            EIGHT,
            "q=4,borrow=0",
            """C:1x4,q=q D:1x4,q=q  -> CCCC.... | D over_quota
               queue q=8,borrow=0   -> CCCCDDDD""",
        ),
        "lowered, it stops no job": (
            EIGHT,
            "q=8,borrow=0",
            """C:1x8,q=q                     -> CCCCCCCC
               queue q=4,borrow=0; D:1x1,q=q -> CCCCCCCC | D over_quota""",
        ),
        "whole gangs count": ("n1:.. n2:..", "q=3,borrow=0", "C:2x2,q=q -> .. .. | C over_quota"),
    }
)

test_borrowing_and_lending = scenarios(
    {
        "a queue borrows unused quota": (EIGHT, "q=4 p=4", "C:1x8,q=q -> CCCCCCCC"),
        "not used quota": (EIGHT, "q=4 p=4", "C:1x4,q=p D:1x8,q=q -> CCCC.... | D no_capacity"),
        "the owner waits for lent quota": ("n1:AAAAAAAA A,q=q", "q=4 p=4", "C:1x4,q=p -> AAAAAAAA | C no_capacity"),
        "up to its borrowing limit": (
            EIGHT,
            "q=4,borrow=2 p=4",
            "C:1x6,q=q D:1x1,q=q -> CCCCCC.. | D over_quota",
        ),
        "up to their lending limit": (EIGHT, "q=4,lend=1 p=4", "C:1x6,q=p D:1x5,q=p -> DDDDD... | C over_quota"),
        "quota that is not lent is free for its owner": (
            EIGHT,
            "q=4,lend=0 p=4",
            "C:1x4,q=p D:1x1,q=p E:1x4,q=q -> CCCCEEEE | D over_quota",
        ),
        "a guarantee limits the rest": (
            EIGHT,
            "q=4,lend=0",
            "C:1x4 D:1x1 -> CCCC.... | D over_quota",
        ),
        "which may be nothing": (EIGHT, "q=9,lend=0", "C:1x1 -> ........ | C over_quota"),
        "own quota first, then borrowed": (
            EIGHT,
            "q=4,lend=0 p=4",
            "C:1x8,q=q D:1x1,q=p -> CCCCCCCC | D over_quota",
        ),
    }
)

test_trees = scenarios(
    {
        "a child uses its parent's quota": (
            EIGHT,
            "p=4,borrow=0 q=,in=p",
            "C:1x4,q=q D:1x1,q=q -> CCCC.... | D over_quota",
        ),
        "a parent's borrowing limit binds its children": (
            EIGHT,
            "p=6,borrow=0 q=2,in=p r=,in=p",
            "C:1x4,q=q D:1x2,q=r E:1x1,q=r -> CCCCDD.. | E over_quota",
        ),
        "lending, two levels up": (
            EIGHT,
            "p=4,lend=1 q=2,in=p,lend=1",
            "C:1x5 D:1x1 E:1x3,q=q -> CCCCCEEE | D over_quota",
        ),
        "siblings share their parent's quota": (
            EIGHT,
            "p=4,borrow=0 q=,in=p r=,in=p",
            "C:1x3,q=q D:1x2,q=r E:1x1,q=r -> CCCE.... | D over_quota",
        ),
        "a moved queue keeps its usage": (
            EIGHT,
            "p=4,borrow=0 q=,in=p s=4,borrow=0",
            """C:1x4,q=q        -> CCCC....
               queue q=,in=s    -> CCCC....
               D:1x1,q=s E:1x4,q=p -> CCCCEEEE | D over_quota""",
        ),
    }
)

MIXED = "n1:....,h100 n2:....,a100"

test_types = scenarios(
    {
        "a GPU type has its own quota": (
            MIXED,
            "q=,h100=2,h100.borrow=0",
            "C:1x2h100,q=q D:1x1h100,q=q E:1x1a100,q=q -> CC.. E... | D over_quota",
        ),
        "a job without a type goes to a type with quota": (
            MIXED,
            "q=,h100=0,h100.borrow=0",
            "C:1x4,q=q D:1x1,q=q -> .... CCCC | D over_quota",
        ),
        "whole nodes, too": (
            "n1:..,h100 n2:..,h100 n3:..,a100",
            "q=,h100=2,h100.borrow=0",
            "C:2x2,q=q D:1x2,q=q -> DD .. .. | C over_quota",
        ),
        "quota of a type is lent and borrowed": (
            MIXED,
            "q=,h100=2 p=,h100=2",
            "C:1x4h100,q=q D:1x1h100,q=p -> CCCC .... | D no_capacity",
        ),
        "up to the lent quota": (
            MIXED,
            "q=,h100=2,h100.lend=1 p=,h100=2",
            "C:1x4h100,q=p D:1x3h100,q=p E:1x1h100,q=q -> DDDE .... | C over_quota",
        ),
        "a type without quota is the root's": (
            MIXED,
            "q=,h100=3,h100.lend=0",
            "C:1x1h100 D:1x1h100 -> C... .... | D over_quota",
        ),
        "quota of one type does not count for another": (MIXED, "q=,h100=4", "C:1x4a100 D:1x4h100 -> DDDD CCCC"),
        "quota of a type is released": (
            MIXED,
            "q=,h100=2,h100.borrow=0",
            """C:1x2h100,q=q D:1x2h100,q=q -> CC.. .... | D over_quota
               done C                      -> DD.. .... | C succeeded""",
        ),
        "usage on a removed node has no type": (
            MIXED,
            "q=,h100=2,h100.borrow=0",
            """C:1x2,q=q D:1x2h100,q=q -> CC.. .... | D over_quota
               lose n1                 -> ....x CC.. | D no_node
               list n2:....,a100 n3:..,h100 -> CC.. DD""",
        ),
        "children use the parent's": (
            MIXED,
            "p=,h100=3,h100.borrow=0 q=,in=p r=,in=p,h100=1,h100.lend=0",
            "C:1x3h100,q=q D:1x2h100,q=q E:1x1h100,q=r -> DDE. .... | C over_quota",
        ),
        "a gang without a type may use any type with quota": (
            "n1:....,h100",
            "q=,a100=0,a100.borrow=0",
            "C:1x4,q=q -> CCCC",
        ),
    }
)

ADAPTERS = "n1:....,hca=4 n2:....,hca=4"

test_extended_resources = scenarios(
    {
        "another resource of nodes has its own quota": (
            ADAPTERS,
            "q=,hca=2,hca.borrow=0",
            "C:1x1,q=q,hca=2 D:1x1,q=q,hca=1 E:1x1,q=q -> CE.. .... | D over_quota",
        ),
        "it is lent and borrowed, up to what is lent": (
            ADAPTERS,
            "q=,hca=2 p=,hca=2,hca.lend=1",
            "C:1x1,q=q,hca=4 D:1x1,q=q,hca=4 E:1x1,q=p,hca=1 -> C... E... | D over_quota",
        ),
        "it is released": (
            ADAPTERS,
            "q=,hca=2,hca.borrow=0",
            """C:1x1,q=q,hca=2 D:1x1,q=q,hca=2 -> C... .... | D over_quota
               done C                        -> D... .... | C succeeded""",
        ),
        "of a quota without GPUs nothing is taken by others": (
            ADAPTERS,
            "q=,hca=0,hca.borrow=0",
            "C:1x4,q=q -> CCCC ....",
        ),
    }
)

test_users = scenarios(
    {
        "GPUs at a time": (
            EIGHT,
            "root=,user_gpus=4",
            "C:1x4 D:1x1 E:1x4,user=bob -> CCCCEEEE | D user_gpus",
        ),
        "in one queue only": (EIGHT, "q=,user_gpus=2", "C:1x2,q=q D:1x1,q=q E:1x4 -> CCEEEE.. | D user_gpus"),
        "in a queue and all below it": (
            EIGHT,
            "p=,user_gpus=4 q=,in=p r=,in=p",
            "C:1x4,q=q D:1x1,q=r E:1x1 -> CCCCE... | D user_gpus",
        ),
        "jobs without GPUs do not count": (EIGHT, "root=,user_gpus=0", "C:1x0 D:1x1 -> ........c | D user_gpus"),
        "nor does a lowered limit block them": (
            EIGHT,
            "root=,user_gpus=8",
            """C:1x8                          -> CCCCCCCC
               queue root=,user_gpus=4; D:1x0 -> CCCCCCCCd""",
        ),
        "running jobs at a time": (
            EIGHT,
            "root=,user_jobs=2",
            """C:1x1 D:1x0 E:1x1 F:1x1,user=bob -> CF......d | E user_jobs
               done D                           -> CFE..... | D succeeded""",
        ),
        "elements of an array are jobs": (
            EIGHT,
            "q=,user_jobs=2",
            "C:1x1,q=q,array=3 D:1x1 -> CCD..... | C user_jobs",
        ),
        "no job at all": (EIGHT, "q=,user_jobs=0", "C:1x1,q=q D:1x1 -> D....... | C user_jobs"),
        "jobs in a queue and all below it": (
            EIGHT,
            "p=,user_jobs=1 q=,in=p r=,in=p",
            "C:1x1,q=q D:1x1,q=r E:1x1 -> CE...... | D user_jobs",
        ),
        "capacity of a user is reserved for a starving job": (
            "n1:A...... n2:B......",
            "root=,user_jobs=2",
            """S:1x7        -> A...... B...... | S user_jobs
               +31m; E:1x1  -> A...... B...... | S user_jobs, E user_jobs
               cordon n2; done B -> A...... .......# | S no_capacity, E reserved, B succeeded
               done A       -> SSSSSSS .......# | E no_capacity, A succeeded""",
        ),
        "the time limit of a job": (
            EIGHT,
            "q=,user_time=1h",
            "C:1x1,q=q,time=2h D:1x1,q=q,time=1h E:1x1,time=2h -> DE...... | C user_time",
        ),
        "node-hours": (
            "n1:.. n2:..",
            "root=,user_nodes=4",
            "C:2x1,time=1h D:2x1,time=1h E:1x0,time=1h F:1x0,time=1h,user=bob -> CDf CD | E user_node_time",
        ),
        "node-hours in a parent": (
            "n1:.. n2:..",
            "p=,user_nodes=2 q=,in=p r=,in=p",
            "C:2x1,q=q,time=1h D:1x1,q=r,time=1h E:1x1,time=9h -> CE C. | D user_node_time",
        ),
        "node-hours are released": (
            "n1:.. n2:..",
            "root=,user_nodes=2",
            """C:2x1,time=1h D:1x1,time=2h -> C. C. | D user_node_time
               done C                      -> D. .. | C succeeded""",
        ),
        "a user's limit before a queue's": (
            EIGHT,
            "q=2,borrow=0,user_gpus=1",
            "C:1x1,q=q D:1x2,q=q -> C....... | D user_gpus",
        ),
    }
)

test_node_time_used = scenarios(
    {
        "remaining time of running jobs, and usage of ended ones": (
            "n1:.. n2:..",
            "root=,user_used=4/12h",
            """C:2x1,time=2h D:1x1,time=1h           -> C. C. | D user_node_time_used
               +1h; done C                           -> D. .. | C succeeded
               E:1x1,time=2h F:1x1,time=2h,user=bob  -> DF .. | E user_node_time_used
               +1h; done D                           -> .F .. | E user_node_time_used, D succeeded""",
        ),
        "until enough of the period has passed": (
            "n1:..",
            "root=,user_used=4/12h",
            """C:1x1,time=4h             -> C.
               +3h; E:1x1,time=2h        -> C. | E user_node_time_used
               done C                    -> .. | E user_node_time_used, C succeeded
               +10h13m19s                -> .. | E user_node_time_used
               +1s                       -> E.""",
        ),
        "by day for a long period": (
            "n1:..",
            "root=,user_used=4/30d",
            """C:1x1,time=4h                -> C.
               +3h; done C; E:1x1,time=2h   -> .. | E user_node_time_used, C succeeded
               +30d; +7h13m19s              -> .. | E user_node_time_used
               +1s                          -> E.""",
        ),
        "usage before the limit": (
            "n1:.",
            "",
            """C:1x1 D:1x1,time=3h E:1x1,time=1h          -> C | D no_capacity, E no_capacity
               +3h; queue root=,user_used=4/12h; done C   -> E | D user_node_time_used, C succeeded""",
        ),
        "lowered, it stops no job": (
            "n1:..",
            "root=,user_used=4/12h",
            """C:1x1,time=4h                 -> C.
               queue root=,user_used=1/12h   -> C.
               D:1x1,time=1h                 -> C. | D user_node_time_used""",
        ),
        "an attempt counts, and the next needs the rest": (
            "n1:.",
            "root=,user_used=4/12h",
            """C:1x1,time=4h                         -> C
               +3h; fails C signal; gone C; +1m      -> C
               D:1x0,time=30s E:1x0,time=2m          -> C | D user_node_time_used, E user_node_time_used""",
        ),
        "a restarted job needs less than equal jobs": (
            "n1:. n2:.",
            "root=,user_used=8/12h",
            """C:1x1,time=4h D:1x1,time=4h E:1x1,time=4h   -> C D | E user_node_time_used
               +3h; fails C signal; gone C; +1m; done D    -> C . | E user_node_time_used, D succeeded""",
        ),
        "without a time limit a job may use the whole period": (
            "n1:..",
            "root=,user_used=12/12h",
            """C:1x1 D:1x1,time=1h   -> C. | D user_node_time_used
               +1h; done C           -> D. | C succeeded""",
        ),
        "a long job uses at most the period": (
            "n1:..",
            "root=,user_used=13/12h",
            "C:1x1,time=7d D:1x1,time=1h E:1x1,time=1m -> CD | E user_node_time_used",
        ),
        "in a parent": (
            "n1:..",
            "p=,user_used=2/12h q=,in=p r=,in=p",
            """C:1x1,q=q,time=1h                                   -> C.
               +1h; done C                                         -> .. | C succeeded
               D:1x1,q=r,time=2h E:1x1,time=9h F:1x1,q=r,time=1h   -> EF | D user_node_time_used""",
        ),
        "usage of a removed queue counts in its parent": (
            "n1:..",
            "root=,user_used=2/12h q=",
            """C:1x1,q=q,time=2h                             -> C.
               +2h; done C; unqueue q; D:1x1,time=1h         -> .. | D user_node_time_used, C succeeded""",
        ),
        "node time of a reserved start is kept": (
            "n1:AA n2:.. A,time=1h,user=bob",
            "root=,user_used=5/12h",
            """R:2x2,time=2h       -> AA .. | R no_capacity
               E:1x1,time=30m      -> AA E. | R no_capacity
               F:1x1,time=50m      -> AA E. | R no_capacity, F reserved
               +50m; done E        -> AA .. | R no_capacity, F reserved, E succeeded
               +10m; done A        -> RR RR | F user_node_time_used, A succeeded""",
        ),
        "no start is reserved for it": (
            "n1:.",
            "root=,user_used=1/12h",
            """C:1x1,time=1h                         -> C
               +1h; done C; D:1x1,time=1h; +1h       -> . | D user_node_time_used, C succeeded
               E:1x1,user=bob,time=1h                -> E | D user_node_time_used""",
        ),
    }
)
