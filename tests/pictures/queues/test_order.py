"""The order of gangs, overtaking, and no starvation."""

from tests.pictures.play import scenarios

FULL = "n1:AAAA"

test_priority = scenarios(
    {
        "priority first": (
            FULL,
            "",
            """C:1x4 D:1x4,prio=high -> AAAA | C no_capacity, D no_capacity
               done A                -> DDDD | C no_capacity, A succeeded""",
        ),
        "low after normal": (
            FULL,
            "",
            """C:1x4,prio=low D:1x4 -> AAAA | C no_capacity, D no_capacity
               done A               -> DDDD | C no_capacity, A succeeded""",
        ),
        "a point is a minute": (
            FULL,
            "",
            """C:1x4                      -> AAAA | C no_capacity
               +99m; D:1x4,prio=high      -> AAAA | C no_capacity, D no_capacity
               done A                     -> DDDD | C no_capacity, A succeeded""",
        ),
        "age passes priority": (
            FULL,
            "",
            """C:1x4                      -> AAAA | C no_capacity
               +101m; D:1x4,prio=high     -> AAAA | C no_capacity, D no_capacity
               done A                     -> CCCC | D no_capacity, A succeeded""",
        ),
        "the first of equal jobs": (
            FULL,
            "",
            """D:1x4 C:1x4,user=bob -> AAAA | D no_capacity, C no_capacity
               done A               -> DDDD | C no_capacity, A succeeded""",
        ),
        "also at equal times": ("n1:....", "", "D:1x4,prio=1 C:1x4,prio=1 -> DDDD | C no_capacity"),
        "smaller jobs overtake": ("n1:AAA.", "", "C:1x4 D:1x1 -> AAAD | C no_capacity"),
        "a larger job of one class, too": (
            "n1:AAA.",
            "",
            "C:1x2 D:1x1 E:1x1 -> AAAD | C no_capacity, E no_capacity",
        ),
    }
)

test_a_restarted_gang = scenarios(
    {
        "a requeued job keeps its position": (
            "n1:....",
            "",
            """C:1x4 D:1x4      -> CCCC | D no_capacity
               saves C; fails C -> CCCC | C requeueing, D no_capacity
               gone C           -> CCCC | D no_capacity""",
        ),
        "others start during its pause": (
            "n1:....",
            "",
            """C:1x4 D:1x4    -> CCCC | D no_capacity
               fails C signal -> CCCC | C requeueing, D no_capacity
               gone C         -> DDDD | C backoff
               +10s           -> DDDD | C no_capacity
               done D         -> CCCC | D succeeded""",
        ),
    }
)

test_starvation = scenarios(
    {
        "before the threshold smaller jobs pass": (
            "n1:AA.. n2:....",
            "",
            """S:2x4       -> AA.. .... | S no_capacity
               +29m; D:1x1 -> AAD. .... | S no_capacity""",
        ),
        "after it nodes are reserved, and others use the rest": (
            "n1:AA.. n2:.... n3:..",
            "",
            """S:2x4             -> AA.. .... .. | S no_capacity
               +31m; D:1x2 E:1x1 -> AA.. .... DD | S no_capacity, E reserved
               done A            -> SSSS SSSS DD | E no_capacity, A succeeded""",
        ),
        "its reservation ends with it": (
            "n1:AA.. n2:....",
            "",
            """S:2x4       -> AA.. .... | S no_capacity
               +31m; E:1x1 -> AA.. .... | S no_capacity, E reserved
               stop S      -> AAE. .... | S stopped""",
        ),
        "the reservation is where capacity is free first": (
            "n1:AAAA n2:BBBB n3:.. A,time=9h B,time=1h",
            "",
            """S:1x4             -> AAAA BBBB .. | S no_capacity
               +31m; done A; D:1x3 -> SSSS BBBB .. | D no_capacity, A succeeded""",
        ),
        "and not where it would be free later": (
            "n1:AAA. n2:BBB. A,time=9h B,time=1h",
            "",
            """S:1x4       -> AAA. BBB. | S no_capacity
               +31m; D:1x1 -> AAAD BBB. | S no_capacity
               E:1x1       -> AAAD BBB. | S no_capacity, E reserved""",
        ),
        "quota is reserved as well": (
            "n1:AA...... A,q=q",
            "q=4,borrow=0",
            """S:1x4,q=q             -> AA...... | S over_quota
               D:1x1,q=q             -> AAD..... | S over_quota
               +31m; E:1x1,q=q F:1x1 -> AADF.... | S over_quota, E reserved
               done A; done D        -> SSSFS... | E over_quota, A succeeded, D succeeded""",
        ),
        "and the limit of a user": (
            "n1:AA......",
            "root=,user_gpus=4",
            """S:1x4                        -> AA...... | S user_gpus
               +31m; E:1x1 F:1x1,user=bob   -> AAF..... | S user_gpus, E reserved
               done A                       -> SSFSS... | E user_gpus, A succeeded""",
        ),
        "but no quota that is not lent": (
            "n1:AA...... A,q=q",
            "q=2,borrow=4 p=2,lend=0",
            """S:1x6,q=q                 -> AA...... | S over_quota
               +31m; D:1x2,q=p E:1x1,q=q -> AADD.... | S over_quota, E reserved""",
        ),
        "a job that can never start gets no reservation": (
            "n1:....",
            "",
            """S:1x8     -> .... | S no_node
               +2h; D:1x4 -> DDDD | S no_node""",
        ),
        "nor a job larger than its quota": (
            "n1:........",
            "q=2,borrow=0",
            """S:1x4,q=q      -> ........ | S over_quota
               +2h; D:1x2,q=q -> DD...... | S over_quota""",
        ),
        "two starving jobs get reservations beside each other": (
            "n1:A... n2:B...",
            "",
            """S:1x4 T:1x4,user=bob -> A... B... | S no_capacity, T no_capacity
               +31m; D:1x1 -> A... B... | S no_capacity, T no_capacity, D reserved
               done B      -> A... SSSS | T no_capacity, D reserved, B succeeded
               done A      -> TTTT SSSS | D no_capacity, A succeeded""",
        ),
    }
)

test_fifo = scenarios(
    {
        "priority has no effect": (
            FULL,
            "",
            """C:1x4 D:1x4,prio=high -> AAAA | C no_capacity, D no_capacity
               done A                -> CCCC | D no_capacity, A succeeded""",
        ),
        "smaller jobs overtake here as well": ("n1:AAA.", "", "C:1x4 D:1x1 -> AAAD | C no_capacity"),
    },
    policy="fifo",
)

test_fair_share = scenarios(
    {
        "the queue with less usage": (
            "n1:AAAA.... A,q=q",
            "q=4 p=4",
            "C:1x4,q=q D:1x4,q=p -> AAAADDDD | C no_capacity",
        ),
        "less of its share, not less in number": (
            "n1:AAB..... A,q=q B,q=p",
            "q=6,weight=3 p=2",
            "C:1x5,q=p D:1x5,q=q -> AABDDDDD | C no_capacity",
        ),
        "within a queue the user with less usage": (
            "n1:AA..",
            "",
            "C:1x2 D:1x2,user=bob -> AADD | C no_capacity",
        ),
        "users alternate": (
            "n1:...",
            "",
            "C:1x1 D:1x1 E:1x1,user=bob F:1x1,user=bob -> CED | F no_capacity",
        ),
        "priority among equal users": ("n1:..", "", "C:1x2 D:1x2,prio=high -> DD | C no_capacity"),
    },
    policy="fair_share",
)

test_least_attained_service = scenarios(
    {
        "young before old, running jobs too": (
            FULL,
            "",
            """+14m; C:1x4 -> AAAA | C no_capacity
               +1m         -> AAAA | A requeueing, C stopping_others
               gone A      -> CCCC | A no_capacity""",
        ),
        "no job is preempted twice": (
            "n1:AAAA n2:BBBB",
            "",
            """+15m; C:1x4 -> AAAA BBBB | B requeueing, C stopping_others
               +1m         -> AAAA BBBB | B requeueing, C stopping_others
               gone B      -> AAAA CCCC | B no_capacity""",
        ),
        "two young jobs preempt two old": (
            "n1:AAAA n2:BBBB",
            "",
            """+15m; C:1x4       -> AAAA BBBB | B requeueing, C stopping_others
               D:1x4,user=bob    -> AAAA BBBB | A requeueing, B requeueing, C stopping_others, D stopping_others
               gone A            -> CCCC BBBB | A no_capacity, B requeueing, D stopping_others
               gone B            -> CCCC DDDD | A no_capacity, B no_capacity""",
        ),
        "a job that is no needed victim stays": (
            "n1:AAAA n2:BB",
            "",
            "+31m; C:1x4 -> AAAA BB | A requeueing, C stopping_others",
        ),
        "each runs once, then the first continues": (
            FULL,
            "",
            """+15m; C:1x4 -> AAAA | A requeueing, C stopping_others
               gone A      -> CCCC | A no_capacity
               +15m        -> CCCC | A stopping_others, C requeueing
               gone C      -> AAAA | C no_capacity
               +9h         -> AAAA | C no_capacity""",
        ),
        "a job that cannot start preempts none": (
            FULL,
            "",
            "+15m; C:1x8 D:2x4 -> AAAA | C no_node, D no_node",
        ),
        "nor a job whose victims would not be enough": (
            "n1:AAAA n2:....",
            "",
            """+15m; B:1x4 -> AAAA BBBB
               C:2x4       -> AAAA BBBB | C no_capacity""",
        ),
        "capacity is reserved for it": (
            "n1:AAA.",
            "",
            """+21m; C:1x4 D:1x1 -> AAA. | A requeueing, C stopping_others, D reserved
               gone A            -> CCCC | A no_capacity, D no_capacity""",
        ),
        "and quota": (
            "n1:AAAA,h100 n2:....,a100",
            "q=4,borrow=0",
            """+15m; C:1x4h100,q=q D:1x2,q=q -> AAAA .... | A requeueing, C stopping_others, D reserved
               gone A                        -> CCCC AAAA | D over_quota""",
        ),
        "a full cluster is no quota": (
            FULL,
            "q=2 p=2",
            """+15m; C:1x4,q=q -> AAAA | A requeueing, C stopping_others
               gone A          -> CCCC | A no_capacity""",
        ),
        "an old job does not block the young of its class": (
            FULL,
            "",
            """+15m; C:1x4 -> AAAA | A requeueing, C stopping_others
               gone A      -> CCCC | A no_capacity
               D:1x4       -> CCCC | A no_capacity, D no_capacity
               done C      -> DDDD | A no_capacity, C succeeded""",
        ),
        "it waits for a job that is ending": (
            "n1:AAAA n2:BBBB",
            "",
            "+15m; stop A; C:1x4 -> AAAA BBBB | A stopping, C stopping_others",
        ),
        "a free node is used before preemption": ("n1:AAAA n2:....", "", "+15m; C:1x4 -> AAAA CCCC"),
    },
    policy="las",
)
