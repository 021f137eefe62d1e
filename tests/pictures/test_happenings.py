"""What happens to gangs: nodes that go and come, failures, stops, limits."""

from tests.pictures.play import scenarios

test_nodes = scenarios(
    {
        "nothing starts on a cordoned one": ("n1:.... n2:....", "", "cordon n2; C:2x4 -> .... ....# | C no_node"),
        "what runs there goes on": ("n1:AA.. n2:....", "", "cordon n1; C:1x2 -> AA..# CC.."),
        "uncordoned it is used": (
            "n1:....",
            "",
            """cordon n1; C:1x4 -> ....# | C no_node
               uncordon n1      -> CCCC""",
        ),
        "a lost one takes its gang, which starts elsewhere": ("n1:AAAA n2:....", "", "lose n1 -> ....x AAAA"),
        "and nobody else": ("n1:AA.. n2:BB..", "", "lose n1 -> ....x BBAA"),
        "or waits": (
            "n1:AAAA",
            "",
            """lose n1   -> ....x | A no_node
               return n1 -> AAAA""",
        ),
        "what is left of the gang is stopped first": (
            "n1:AA n2:AA n3:..",
            "",
            """lose n1 -> ..x AA .. | A requeueing
               gone A  -> ..x AA AA""",
        ),
        "while it starts": (
            "n1:.. n2:.. n3:..",
            "",
            """C:2x2   -> CC CC ..
               lose n1 -> ..x CC .. | C requeueing
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
            """lose n1          -> ..x AA AA ... | A requeueing
               lose n2          -> ..x ..x AA ... | A requeueing
               gone A; C:1x2    -> ..x ..x CC ... | A no_node""",
        ),
        "not listed any more": (
            "n1:AA n2:AA n3:..",
            "",
            """list n2:.. n3:.. -> AA .. | A requeueing
               gone A           -> AA AA""",
        ),
        "listed with less than it had": ("n1:AAAA", "", "list n1:.. -> .. | A no_node"),
        "listed with more": ("n1:AA", "", "list n1:....; C:1x2 -> AACC"),
        "new ones are used": (
            "n1:AA",
            "",
            """C:2x2           -> AA | C no_node
               list n1:.. n2:.. n3:.. -> AA CC CC""",
        ),
        "listed is returned": (
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
        "a server that comes back waits for the listing": (
            "n1:AA..",
            "",
            """restart; C:1x2 -> AA.. | C not_listed
               list n1:....   -> AACC""",
        ),
        "one that had finished is no loss": (
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
        "tried again after a pause, then given up": (
            ONE,
            "",
            """C:1x4,max=1    -> CCCC
               fails C signal -> CCCC | C requeueing
               gone C         -> .... | C backoff
               +1s            -> CCCC
               fails C signal -> CCCC | C failing
               gone C         -> .... | C failed""",
        ),
        "three times, if it does not say": (
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
        "who exits by itself before a step is not tried again": (
            ONE,
            "",
            """C:1x4   -> CCCC
               fails C -> CCCC | C failing
               gone C  -> .... | C failed""",
        ),
        "after a step it is": (
            ONE,
            "",
            """C:1x4               -> CCCC
               up C; step C; fails C -> CCCC | C requeueing""",
        ),
        "or if it says so": (
            ONE,
            "",
            """C:1x4,max=1 -> CCCC
               fails C     -> CCCC | C requeueing""",
        ),
        "progress spends nothing and does not pause": (
            ONE,
            "",
            """C:1x4,max=0             -> CCCC
               saves C; fails C        -> CCCC | C requeueing
               gone C                  -> CCCC
               saves C; fails C signal; gone C -> CCCC
               fails C                 -> CCCC | C failing""",
        ),
        "nor does what is not its fault": (
            ONE,
            "",
            """C:1x4,max=0              -> CCCC
               fails C launcher         -> CCCC | C requeueing
               gone C                   -> CCCC
               fails C port; gone C     -> .... | C backoff
               +1s                      -> .... | C backoff
               +1s                      -> CCCC""",
        ),
        "and is not counted": (
            ONE,
            "",
            """C:1x4,max=1      -> CCCC
               fails C launcher; gone C -> CCCC
               fails C signal   -> CCCC | C requeueing
               gone C; +2s      -> CCCC
               fails C signal   -> CCCC | C failing""",
        ),
        "progress ends a row of failures": (
            ONE,
            "",
            """C:1x4                        -> CCCC
               fails C signal; gone C; +1s  -> CCCC
               saves C; fails C signal; gone C -> CCCC
               fails C signal; gone C       -> .... | C backoff
               +1s                          -> CCCC""",
        ),
        "gone without a word": (
            ONE,
            "",
            """C:1x4,max=0 -> CCCC
               gone C      -> CCCC
               up C        -> CCCC""",
        ),
        "a setup that fails spends an attempt": (
            ONE,
            "",
            """C:1x4,max=0   -> CCCC
               fails C start -> CCCC | C failing""",
        ),
        "one node's failure stops all": (
            "n1:AA n2:AA",
            "",
            """fails A signal -> AA AA | A requeueing
               gone A n2      -> AA .. | A requeueing
               gone A n1      -> .. .. | A backoff""",
        ),
        "it ends when every node has": (
            "n1:AA n2:AA",
            "",
            """done A n1 -> .. AA
               done A n2 -> .. .. | A succeeded""",
        ),
        "over before it was known to run": (
            ONE,
            "",
            """C:1x4  -> CCCC
               done C -> .... | C succeeded""",
        ),
    }
)

test_rules = scenarios(
    {
        "retry: again, though such an end is not tried again": (
            ONE,
            "",
            """C:1x4,rules=oom:retry -> CCCC
               fails C exit oom      -> CCCC | C requeueing
               gone C                -> .... | C backoff
               +1s                   -> CCCC
               fails C               -> CCCC | C failing""",
        ),
        "retry: three times, and no more": (
            ONE,
            "",
            """C:1x4,rules=oom:retry              -> CCCC
               fails C exit oom; gone C; +1s      -> CCCC
               fails C exit oom; gone C; +2s      -> CCCC
               fails C exit oom; gone C; +4s      -> CCCC
               fails C exit oom                   -> CCCC | C failing""",
        ),
        "retry: as often as max says": (
            ONE,
            "",
            """C:1x4,max=0,rules=oom:retry -> CCCC
               fails C exit oom            -> CCCC | C failing""",
        ),
        "fail: no more, whatever is left": (
            ONE,
            "",
            """C:1x4,max=9,rules=nan:fail -> CCCC
               fails C signal             -> CCCC | C requeueing
               gone C; +1s                -> CCCC
               fails C signal nan         -> CCCC | C failing
               gone C                     -> .... | C failed""",
        ),
        "fail: whatever was saved": (
            ONE,
            "",
            """C:1x4,rules=nan:fail        -> CCCC
               saves C; fails C signal nan -> CCCC | C failing""",
        ),
        "fail: what is not its fault, too": (
            ONE,
            "",
            """C:1x4,rules=launcher_lost:fail -> CCCC
               fails C launcher               -> CCCC | C failing""",
        ),
        "a lost node is a cause": (
            "n1:.. n2:..",
            "",
            """C:1x2,rules=node_lost:fail -> CC ..
               lose n1                    -> ..x .. | C failed""",
        ),
        "exclude_node: elsewhere": (
            "n1:.... n2:....",
            "",
            """C:1x4,rules=ecc:exclude_node -> CCCC ....
               fails C signal ecc; gone C   -> .... .... | C backoff
               +1s                          -> .... CCCC""",
        ),
        "exclude_node: the one whose log has it, not the one that failed first": (
            "n1:.. n2:.. n3:.. n4:..",
            "",
            """C:2x2,rules=ecc:exclude_node     -> CC CC .. ..
               fails C signal ecc n2; gone C; +1s -> CC .. CC ..""",
        ),
        "exclude_node: by its cause, where it failed": (
            "n1:.... n2:....",
            "",
            """C:1x4,rules=launcher_lost:exclude_node -> CCCC ....
               fails C launcher; gone C               -> .... CCCC""",
        ),
        "exclude_node: waits where it is the only one, and keeps nobody out": (
            "n1:.... n2:..",
            "",
            """C:1x4,rules=ecc:exclude_node           -> CCCC ..
               fails C signal ecc; gone C; +1s; D:1x4 -> DDDD .. | C excluded""",
        ),
        "exclude_node: waits for another": (
            "n1:.... n2:BBBB",
            "",
            """C:1x4,rules=ecc:exclude_node    -> CCCC BBBB
               fails C signal ecc; gone C; +1s -> .... BBBB | C no_capacity
               done B                          -> .... CCCC | B succeeded""",
        ),
        "exclude_node: until somebody adds one": (
            "n1:....",
            "",
            """C:1x4,rules=ecc:exclude_node    -> CCCC
               fails C signal ecc; gone C; +1s -> .... | C excluded
               list n1:.... n2:....            -> .... CCCC""",
        ),
        "exclude_node: one after the other, and equal jobs are not kept out": (
            "n1:.. n2:.. n3:..",
            "",
            """C:1x2,max=9,rules=ecc:exclude_node     -> CC .. ..
               fails C signal ecc; gone C; +1s        -> .. CC ..
               fails C signal ecc; gone C; +2s; D:1x2 -> DD .. CC""",
        ),
        "exclude_node: one that goes on after a checkpoint does not pause": (
            "n1:.. n2:..",
            "",
            """C:1x2,max=0,rules=ecc:exclude_node  -> CC ..
               saves C; fails C signal ecc; gone C -> .. CC""",
        ),
        "the first that fits decides": (
            ONE,
            "",
            """C:1x4,rules=nan:fail+rank_failed:retry -> CCCC
               fails C; gone C; +1s                   -> CCCC
               fails C exit nan                       -> CCCC | C failing""",
        ),
        "a rule by cause may stand before": (
            ONE,
            "",
            """C:1x4,rules=rank_failed:retry+nan:fail -> CCCC
               fails C exit nan; gone C; +1s          -> CCCC""",
        ),
    }
)

test_stops = scenarios(
    {
        "while it waits": (
            "n1:AAAA",
            "",
            """C:1x4  -> AAAA | C no_capacity
               stop C -> AAAA | C stopped""",
        ),
        "before it was ever tried": (ONE, "", "C:1x4; stop C -> .... | C stopped"),
        "while it starts": (
            ONE,
            "",
            """C:1x4  -> CCCC
               stop C -> CCCC | C stopping
               gone C -> .... | C stopped""",
        ),
        "while it runs": (
            "n1:AA n2:AA",
            "",
            """stop A          -> AA AA | A stopping
               stop A; gone A n1 -> .. AA | A stopping
               gone A          -> .. .. | A stopped""",
        ),
        "while it requeues": (
            "n1:AA",
            "",
            """fails A signal -> AA | A requeueing
               stop A         -> AA | A stopping
               gone A         -> .. | A stopped""",
        ),
        "in the moment it fails": ("n1:AA", "", "fails A signal; stop A -> AA | A stopping"),
        "while it fails for good": (
            "n1:AA",
            "",
            """fails A -> AA | A failing
               stop A  -> AA | A failing
               gone A  -> .. | A failed""",
        ),
        "while it pauses": (
            "n1:AA",
            "",
            """fails A signal; gone A -> .. | A backoff
               stop A                 -> .. | A stopped""",
        ),
        "as it ends by itself": ("n1:AA", "", "stop A; done A -> .. | A succeeded"),
        "and ends in the time it is given": (
            "n1:AA",
            "",
            """stop A -> AA | A stopping
               done A -> .. | A stopped""",
        ),
        "its node is lost meanwhile": (
            "n1:AA",
            "",
            """stop A  -> AA | A stopping
               lose n1 -> ..x | A stopped""",
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
        "each time it waits": (
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

test_drains = scenarios(
    {
        "what runs there starts elsewhere": (
            "n1:AA.. n2:....",
            "",
            """drain n1 -> AA..# .... | A requeueing
               gone A   -> ....# AA..""",
        ),
        "or waits, and nothing new starts there": (
            "n1:AA..",
            "",
            """drain n1     -> AA..# | A requeueing
               gone A       -> ....# | A no_node
               uncordon n1  -> AA..""",
        ),
        "the whole gang leaves, and nobody else": (
            "n1:AABB n2:AACC n3:.. n4:..",
            "",
            """drain n2          -> AABB AACC# .. .. | A requeueing, C requeueing
               gone C; gone A n2 -> AABB ....# CC .. | A requeueing
               gone A            -> AABB ....# CC AA""",
        ),
        "a cordoned one can be drained": (
            "n1:AA n2:..",
            "",
            """cordon n1 -> AA# ..
               drain n1  -> AA# .. | A requeueing
               gone A    -> ..# AA""",
        ),
        "while it starts": (
            "n1:.. n2:..",
            "",
            """C:1x2    -> CC ..
               drain n1 -> CC# .. | C requeueing
               gone C   -> ..# CC""",
        ),
        "it spends no attempt": (
            "n1:AA n2:.. A,max=0",
            "",
            """drain n1 -> AA# .. | A requeueing
               gone A   -> ..# AA
               drain n2; uncordon n1 -> .. AA# | A requeueing
               gone A   -> AA ..#""",
        ),
        "what is suspended or asked to end meanwhile is": (
            "n1:AABB n2:....",
            "",
            """drain n1; suspend A; stop B -> AABB# .... | A suspending, B stopping
               gone A; gone B              -> ....# .... | A suspended, B stopped
               resume A                    -> ....# AA..""",
        ),
        "twice, while it is being stopped": (
            "n1:AA n2:AA n3:AA",
            "",
            """drain n1; drain n2 -> AA# AA# AA | A requeueing
               drain n1; drain n3 -> AA# AA# AA# | A requeueing
               uncordon n1; uncordon n2; uncordon n3; gone A -> AA AA AA""",
        ),
    }
)

test_suspension = scenarios(
    {
        "a running one gives its nodes back and waits": (
            "n1:AA",
            "",
            """suspend A -> AA | A suspending
               gone A    -> .. | A suspended
               +1h       -> .. | A suspended
               resume A  -> AA""",
        ),
        "others start meanwhile": (
            "n1:AA",
            "",
            """C:1x2     -> AA | C no_capacity
               suspend A -> AA | A suspending, C no_capacity
               gone A    -> CC | A suspended
               resume A  -> CC | A no_capacity
               done C    -> AA | C succeeded""",
        ),
        "a waiting one leaves the queue": (
            "n1:AA",
            "",
            """C:1x2; D:1x2 -> AA | C no_capacity, D no_capacity
               suspend C    -> AA | C suspended, D no_capacity
               done A       -> DD | C suspended, A succeeded""",
        ),
        "resumed before it was gone": (
            "n1:AA",
            "",
            """suspend A -> AA | A suspending
               resume A  -> AA | A requeueing
               gone A    -> AA""",
        ),
        "suspended while it is being stopped for a failure": (
            "n1:AA n2:AA",
            "",
            """fails A signal -> AA AA | A requeueing
               suspend A      -> AA AA | A requeueing
               gone A         -> .. .. | A suspended""",
        ),
        "a suspended one can be stopped": (
            "n1:AA",
            "",
            """suspend A -> AA | A suspending
               gone A    -> .. | A suspended
               stop A    -> .. | A stopped""",
        ),
        "its node is lost meanwhile": (
            "n1:AA",
            "",
            """suspend A -> AA | A suspending
               lose n1   -> ..x | A suspended""",
        ),
    }
)

test_done = scenarios(
    {
        "the rest of it is stopped, and it has succeeded": (
            "n1:AA n2:AA",
            "",
            """ends A -> AA AA | A finishing
               gone A -> .. .. | A succeeded""",
        ),
        "what fails afterwards changes nothing": (
            "n1:AA n2:AA",
            "",
            """ends A; fails A -> AA AA | A finishing
               gone A          -> .. .. | A succeeded""",
        ),
        "nor does a lost node": ("n1:AA n2:AA", "", "ends A; lose n2; gone A -> .. ..x | A succeeded"),
        "nor a stop": ("n1:AA", "", "ends A; stop A; gone A -> .. | A succeeded"),
    }
)

test_priority = scenarios(
    {
        "a waiting one overtakes": (
            "n1:AA",
            "",
            """C:1x2; D:1x2           -> AA | C no_capacity, D no_capacity
               priority D 100; done A -> DD | C no_capacity, A succeeded""",
        ),
        "a running one keeps what it has": ("n1:AA", "", "priority A -100 -> AA"),
    }
)
