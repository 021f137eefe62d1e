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
        "of equals the first": (
            FULL,
            "",
            """D:1x4 C:1x4,user=bob -> AAAA | D no_capacity, C no_capacity
               done A               -> DDDD | C no_capacity, A succeeded""",
        ),
        "in a moment's tie too": ("n1:....", "", "D:1x4,prio=1 C:1x4,prio=1 -> DDDD | C no_capacity"),
        "small ones overtake": ("n1:AAA.", "", "C:1x4 D:1x1 -> AAAD | C no_capacity"),
        "of one class, too, where one is larger": (
            "n1:AAA.",
            "",
            "C:1x2 D:1x1 E:1x1 -> AAAD | C no_capacity, E no_capacity",
        ),
    }
)

test_a_restarted_gang = scenarios(
    {
        "keeps its place": (
            "n1:....",
            "",
            """C:1x4 D:1x4      -> CCCC | D no_capacity
               saves C; fails C -> CCCC | C requeueing, D no_capacity
               gone C           -> CCCC | D no_capacity""",
        ),
        "lets others in while it pauses": (
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
        "before the threshold small ones pass": (
            "n1:AA.. n2:....",
            "",
            """S:2x4       -> AA.. .... | S no_capacity
               +29m; D:1x1 -> AAD. .... | S no_capacity""",
        ),
        "after it nodes are held, and others use the rest": (
            "n1:AA.. n2:.... n3:..",
            "",
            """S:2x4             -> AA.. .... .. | S no_capacity
               +31m; D:1x2 E:1x1 -> AA.. .... DD | S no_capacity, E reserved
               done A            -> SSSS SSSS DD | E no_capacity, A succeeded""",
        ),
        "what is held is let go with it": (
            "n1:AA.. n2:....",
            "",
            """S:2x4       -> AA.. .... | S no_capacity
               +31m; E:1x1 -> AA.. .... | S no_capacity, E reserved
               stop S      -> AAE. .... | S stopped""",
        ),
        "it is held where it will be free first": (
            "n1:AAAA n2:BBBB n3:.. A,time=9h B,time=1h",
            "",
            """S:1x4             -> AAAA BBBB .. | S no_capacity
               +31m; done A; D:1x3 -> SSSS BBBB .. | D no_capacity, A succeeded""",
        ),
        "and not where it would be later": (
            "n1:AAA. n2:BBB. A,time=9h B,time=1h",
            "",
            """S:1x4       -> AAA. BBB. | S no_capacity
               +31m; D:1x1 -> AAAD BBB. | S no_capacity
               E:1x1       -> AAAD BBB. | S no_capacity, E reserved""",
        ),
        "a quota is held as well": (
            "n1:AA...... A,q=q",
            "q=4,borrow=0",
            """S:1x4,q=q             -> AA...... | S over_quota
               D:1x1,q=q             -> AAD..... | S over_quota
               +31m; E:1x1,q=q F:1x1 -> AADF.... | S over_quota, E reserved
               done A; done D        -> SSSFS... | E over_quota, A succeeded, D succeeded""",
        ),
        "and a user's allowance": (
            "n1:AA......",
            "root=,user_gpus=4",
            """S:1x4                        -> AA...... | S user_gpus
               +31m; E:1x1 F:1x1,user=bob   -> AAF..... | S user_gpus, E reserved
               done A                       -> SSFSS... | E user_gpus, A succeeded""",
        ),
        "not what a queue does not lend": (
            "n1:AA...... A,q=q",
            "q=2,borrow=4 p=2,lend=0",
            """S:1x6,q=q                 -> AA...... | S over_quota
               +31m; D:1x2,q=p E:1x1,q=q -> AADD.... | S over_quota, E reserved""",
        ),
        "one that can never start holds nothing": (
            "n1:....",
            "",
            """S:1x8     -> .... | S no_node
               +2h; D:1x4 -> DDDD | S no_node""",
        ),
        "nor one that its quota can never hold": (
            "n1:........",
            "q=2,borrow=0",
            """S:1x4,q=q      -> ........ | S over_quota
               +2h; D:1x2,q=q -> DD...... | S over_quota""",
        ),
        "two that starve hold beside each other": (
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
        "priority means nothing": (
            FULL,
            "",
            """C:1x4 D:1x4,prio=high -> AAAA | C no_capacity, D no_capacity
               done A                -> CCCC | D no_capacity, A succeeded""",
        ),
        "small ones overtake here as well": ("n1:AAA.", "", "C:1x4 D:1x1 -> AAAD | C no_capacity"),
    },
    policy="fifo",
)

test_fair_share = scenarios(
    {
        "the queue that uses less": (
            "n1:AAAA.... A,q=q",
            "q=4 p=4",
            "C:1x4,q=q D:1x4,q=p -> AAAADDDD | C no_capacity",
        ),
        "less of its share, not less": (
            "n1:AAB..... A,q=q B,q=p",
            "q=6,weight=3 p=2",
            "C:1x5,q=p D:1x5,q=q -> AABDDDDD | C no_capacity",
        ),
        "inside a queue the user who holds less": (
            "n1:AA..",
            "",
            "C:1x2 D:1x2,user=bob -> AADD | C no_capacity",
        ),
        "turn by turn": (
            "n1:...",
            "",
            "C:1x1 D:1x1 E:1x1,user=bob F:1x1,user=bob -> CED | F no_capacity",
        ),
        "priority among equals": ("n1:..", "", "C:1x2 D:1x2,prio=high -> DD | C no_capacity"),
    },
    policy="fair_share",
)

test_least_attained_service = scenarios(
    {
        "young before old, running ones too": (
            FULL,
            "",
            """+14m; C:1x4 -> AAAA | C no_capacity
               +1m         -> AAAA | A requeueing, C stopping_others
               gone A      -> CCCC | A no_capacity""",
        ),
        "nobody is stopped twice": (
            "n1:AAAA n2:BBBB",
            "",
            """+15m; C:1x4 -> AAAA BBBB | B requeueing, C stopping_others
               +1m         -> AAAA BBBB | B requeueing, C stopping_others
               gone B      -> AAAA CCCC | B no_capacity""",
        ),
        "two young stop two old": (
            "n1:AAAA n2:BBBB",
            "",
            """+15m; C:1x4       -> AAAA BBBB | B requeueing, C stopping_others
               D:1x4,user=bob    -> AAAA BBBB | A requeueing, B requeueing, C stopping_others, D stopping_others
               gone A            -> CCCC BBBB | A no_capacity, B requeueing, D stopping_others
               gone B            -> CCCC DDDD | A no_capacity, B no_capacity""",
        ),
        "who need not go stays": (
            "n1:AAAA n2:BB",
            "",
            "+31m; C:1x4 -> AAAA BB | A requeueing, C stopping_others",
        ),
        "each has one turn, then the first goes on": (
            FULL,
            "",
            """+15m; C:1x4 -> AAAA | A requeueing, C stopping_others
               gone A      -> CCCC | A no_capacity
               +15m        -> CCCC | A stopping_others, C requeueing
               gone C      -> AAAA | C no_capacity
               +9h         -> AAAA | C no_capacity""",
        ),
        "one that cannot run stops nobody": (
            FULL,
            "",
            "+15m; C:1x8 D:2x4 -> AAAA | C no_node, D no_node",
        ),
        "nor one that those after it do not make room for": (
            "n1:AAAA n2:....",
            "",
            """+15m; B:1x4 -> AAAA BBBB
               C:2x4       -> AAAA BBBB | C no_capacity""",
        ),
        "what it waits for is kept for it": (
            "n1:AAA.",
            "",
            """+21m; C:1x4 D:1x1 -> AAA. | A requeueing, C stopping_others, D reserved
               gone A            -> CCCC | A no_capacity, D no_capacity""",
        ),
        "its quota as well": (
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
        "an old one does not keep back the young of its class": (
            FULL,
            "",
            """+15m; C:1x4 -> AAAA | A requeueing, C stopping_others
               gone A      -> CCCC | A no_capacity
               D:1x4       -> CCCC | A no_capacity, D no_capacity
               done C      -> DDDD | A no_capacity, C succeeded""",
        ),
        "who is leaving anyway is waited for": (
            "n1:AAAA n2:BBBB",
            "",
            "+15m; stop A; C:1x4 -> AAAA BBBB | A stopping, C stopping_others",
        ),
        "a free node is taken before anybody is stopped": ("n1:AAAA n2:....", "", "+15m; C:1x4 -> AAAA CCCC"),
    },
    policy="las",
)
