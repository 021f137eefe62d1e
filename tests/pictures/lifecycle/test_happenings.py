"""Events of running gangs: nodes that are lost and return, failures, limits."""

from tests.pictures.play import scenarios

test_nodes = scenarios(
    {
        "nothing starts on a cordoned node": ("n1:.... n2:....", "", "cordon n2; C:2x4 -> .... ....# | C no_node"),
        "running jobs continue": ("n1:AA.. n2:....", "", "cordon n1; C:1x2 -> AA..# CC.."),
        "an uncordoned node is used": (
            "n1:....",
            "",
            """cordon n1; C:1x4 -> ....# | C no_node
               uncordon n1      -> CCCC""",
        ),
        "a lost node requeues its gang, which starts elsewhere": ("n1:AAAA n2:....", "", "lose n1 -> ....x AAAA"),
        "and no other gang": ("n1:AA.. n2:BB..", "", "lose n1 -> ....x BBAA"),
        "or stays pending": (
            "n1:AAAA",
            "",
            """lose n1   -> ....x | A no_node
               return n1 -> AAAA""",
        ),
        "the rest of the gang is stopped first": (
            "n1:AA n2:AA n3:..",
            "",
            """lose n1 -> ..x AA .. | A resizing
               gone A  -> ..x AA AA""",
        ),
        "while it starts": (
            "n1:.. n2:.. n3:..",
            "",
            """C:2x2   -> CC CC ..
               lose n1 -> ..x CC .. | C resizing
               gone C  -> ..x CC CC""",
        ),
        "lost and cordoned": (
            "n1:....",
            "",
            """cordon n1   -> ....#
               lose n1     -> ....x#
               C:1x4       -> ....x# | C no_node
               return n1   -> ....# | C no_node
               uncordon n1 -> CCCC""",
        ),
        "uncordoned while lost": (
            "n1:....",
            "",
            """lose n1; cordon n1     -> ....x#
               uncordon n1; C:1x4     -> ....x | C no_node
               return n1              -> CCCC""",
        ),
        "a second loss of the same gang": (
            "n1:AA n2:AA n3:AA n4:...",
            "",
            """lose n1          -> ..x AA AA ... | A resizing
               lose n2          -> ..x ..x AA ... | A resizing
               gone A; C:1x2    -> ..x ..x AA CC. | A resizing""",
        ),
        "removed from the listing": (
            "n1:AA n2:AA n3:..",
            "",
            """list n2:.. n3:.. -> AA .. | A resizing
               gone A           -> AA AA""",
        ),
        "listed with less capacity": ("n1:AAAA", "", "list n1:.. -> .. | A no_node"),
        "listed with more capacity": ("n1:AA", "", "list n1:....; C:1x2 -> AACC"),
        "new nodes are used": (
            "n1:AA",
            "",
            """C:2x2           -> AA | C no_node
               list n1:.. n2:.. n3:.. -> AA CC CC""",
        ),
        "a listed node is back": (
            "n1:AA",
            "",
            """lose n1    -> ..x | A no_node
               list n1:.. -> AA""",
        ),
        "a cordon outlives a listing": (
            "n1:..",
            "",
            """cordon n1         -> ..#
               list n1:.. n2:..; C:1x2 D:1x2 -> ..# CC | D no_capacity""",
        ),
        "a restarted server waits for the listing": (
            "n1:AA..",
            "",
            """restart; C:1x2 -> AA.. | C not_listed
               list n1:....   -> AACC""",
        ),
        "a gang that had finished is not requeued": (
            "n1:AA n2:AA",
            "",
            """exits A n1; lose n1 -> ..x AA
               done A n2           -> ..x .. | A succeeded""",
        ),
        "a node is free as soon as it is cleared": (
            "n1:AA n2:AA",
            "",
            """fails A signal; gone A n1; C:1x2 -> CC AA | A requeueing
               gone A                           -> CC .. | A backoff""",
        ),
    }
)

ONE = "n1:...."

test_failures = scenarios(
    {
        "retried after a pause, then failed": (
            ONE,
            "",
            """C:1x4,max=1    -> CCCC
               fails C signal -> CCCC | C requeueing
               gone C         -> .... | C backoff
               +1s            -> CCCC
               fails C signal -> CCCC | C failing
               gone C         -> .... | C failed""",
        ),
        "three retries by default": (
            ONE,
            "",
            """C:1x4                                -> CCCC
               fails C signal; gone C; +1s          -> CCCC
               fails C signal; gone C; +2s          -> CCCC
               fails C signal; gone C; +4s          -> CCCC
               fails C signal                       -> CCCC | C failing""",
        ),
        "the pause doubles": (
            ONE,
            "",
            """C:1x4,pause=10s             -> CCCC
               fails C signal; gone C      -> .... | C backoff
               +10s                        -> CCCC
               fails C signal; gone C; +10s -> .... | C backoff
               +10s                        -> CCCC""",
        ),
        "a rank that exits before a step is not retried": (
            ONE,
            "",
            """C:1x4   -> CCCC
               fails C -> CCCC | C failing
               gone C  -> .... | C failed""",
        ),
        "after a step it is retried": (
            ONE,
            "",
            """C:1x4               -> CCCC
               up C; step C; fails C -> CCCC | C requeueing""",
        ),
        "or with an explicit retry": (
            ONE,
            "",
            """C:1x4,max=1 -> CCCC
               fails C     -> CCCC | C requeueing""",
        ),
        "progress uses no retry and no pause": (
            ONE,
            "",
            """C:1x4,max=0             -> CCCC
               saves C; fails C        -> CCCC | C requeueing
               gone C                  -> CCCC
               saves C; fails C signal; gone C -> CCCC
               fails C                 -> CCCC | C failing""",
        ),
        "nor does a failure of the infrastructure": (
            ONE,
            "",
            """C:1x4,max=0              -> CCCC
               fails C launcher         -> CCCC | C requeueing
               gone C                   -> CCCC
               fails C port; gone C     -> .... | C backoff
               +1s                      -> .... | C backoff
               +1s                      -> CCCC""",
        ),
        "and the failure is not counted": (
            ONE,
            "",
            """C:1x4,max=1      -> CCCC
               fails C launcher; gone C -> CCCC
               fails C signal   -> CCCC | C requeueing
               gone C; +2s      -> CCCC
               fails C signal   -> CCCC | C failing""",
        ),
        "progress resets the count of failures": (
            ONE,
            "",
            """C:1x4                        -> CCCC
               fails C signal; gone C; +1s  -> CCCC
               saves C; fails C signal; gone C -> CCCC
               fails C signal; gone C       -> .... | C backoff
               +1s                          -> CCCC""",
        ),
        "a launcher that vanishes": (
            ONE,
            "",
            """C:1x4,max=0 -> CCCC
               gone C      -> CCCC
               up C        -> CCCC""",
        ),
        "a failed setup uses a retry": (
            ONE,
            "",
            """C:1x4,max=0   -> CCCC
               fails C start -> CCCC | C failing""",
        ),
        "a failure of one node stops all": (
            "n1:AA n2:AA",
            "",
            """fails A signal -> AA AA | A requeueing
               gone A n2      -> AA .. | A requeueing
               gone A n1      -> .. .. | A backoff""",
        ),
        "it ends when every node has ended": (
            "n1:AA n2:AA",
            "",
            """done A n1 -> .. AA
               done A n2 -> .. .. | A succeeded""",
        ),
        "ended before it was reported as running": (
            ONE,
            "",
            """C:1x4  -> CCCC
               done C -> .... | C succeeded""",
        ),
    }
)

test_limits = scenarios(
    {
        "time in the queue": (
            "n1:AAAA",
            "",
            """C:1x4,wait=10m -> AAAA | C no_capacity
               +9m            -> AAAA | C no_capacity
               +1m            -> AAAA | C stopped""",
        ),
        "each time it is pending": (
            ONE,
            "",
            """C:1x4,wait=10m               -> CCCC
               +20m; saves C; fails C       -> CCCC | C requeueing
               D:1x4,prio=1000; cordon n1; gone C -> ....# | C no_node, D no_node
               +9m                          -> ....# | C no_node, D no_node
               +1m                          -> ....# | D no_node, C stopped""",
        ),
        "time on nodes": (
            "n1:AAAA A,time=1h",
            "",
            """+59m -> AAAA
               +1m  -> AAAA | A stopping""",
        ),
        "from its start, not from its submission": (
            "n1:AAAA",
            "",
            """C:1x4,time=1h -> AAAA | C no_capacity
               +5h; done A   -> CCCC | A succeeded
               +59m          -> CCCC
               +1m           -> CCCC | C stopping""",
        ),
        "over all attempts": (
            "n1:AAAA A,time=1h",
            "",
            """+40m; saves A; fails A -> AAAA | A requeueing
               gone A                 -> AAAA
               +19m                   -> AAAA
               +1m                    -> AAAA | A stopping""",
        ),
        "used up, it does not start again": (
            "n1:AAAA A,time=1h",
            "",
            """+59m; saves A; fails A -> AAAA | A requeueing
               +2m; gone A            -> .... | A stopped""",
        ),
        "waiting does not use it up": (
            "n1:AAAA A,time=1h",
            "",
            """+40m; lose n1 -> ....x | A no_node
               +2h           -> ....x | A no_node
               return n1     -> AAAA
               +19m          -> AAAA
               +1m           -> AAAA | A stopping""",
        ),
    }
)
