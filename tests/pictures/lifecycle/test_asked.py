"""Requests about gangs and nodes: stop, drain, suspend, priority, and a gang that ends itself."""

from tests.pictures.play import scenarios

ONE = "n1:...."

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
        "at the time it fails": ("n1:AA", "", "fails A signal; stop A -> AA | A stopping"),
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
        "while it exits": ("n1:AA", "", "stop A; done A -> .. | A succeeded"),
        "and ends within its notice": (
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

test_finishes_within_its_notice = scenarios(
    {
        "suspended, on all nodes": (
            "n1:AA n2:AA",
            "",
            """suspend A           -> AA AA | A suspending
               exits A n1; gone A n1 -> .. AA | A suspending
               done A n2           -> .. .. | A succeeded""",
        ),
        "suspended, and left on one node": (
            "n1:AA n2:AA",
            "",
            """suspend A         -> AA AA | A suspending
               done A n1; gone A -> .. .. | A suspended""",
        ),
        "drained": (
            "n1:AA n2:..",
            "",
            """drain n1 -> AA# .. | A requeueing
               done A   -> ..# .. | A succeeded""",
        ),
        "at its time limit": (
            "n1:AA A,time=1h",
            "",
            """+1h    -> AA | A stopping
               done A -> .. | A succeeded""",
        ),
        "suspended, resumed": (
            "n1:AA",
            "",
            """suspend A; resume A -> AA
               suspend A           -> AA | A suspending
               resume A            -> AA | A requeueing
               done A              -> .. | A succeeded""",
        ),
        "suspended, and then stopped": (
            "n1:AA",
            "",
            """suspend A -> AA | A suspending
               stop A    -> AA | A stopping
               done A    -> .. | A stopped""",
        ),
        "after a failure": (
            "n1:AA n2:AA",
            "",
            """fails A signal -> AA AA | A requeueing
               drain n2; exits A; gone A -> .. ..# | A backoff""",
        ),
    }
)

test_drains = scenarios(
    {
        "its jobs restart elsewhere": (
            "n1:AA.. n2:....",
            "",
            """drain n1 -> AA..# .... | A requeueing
               gone A   -> ....# AA..""",
        ),
        "or wait, and nothing new starts there": (
            "n1:AA..",
            "",
            """drain n1     -> AA..# | A requeueing
               gone A       -> ....# | A no_node
               uncordon n1  -> AA..""",
        ),
        "the whole gang is requeued, and no other": (
            "n1:AABB n2:AACC n3:.. n4:..",
            "",
            """drain n2          -> AABB AACC# .. .. | A requeueing, C requeueing
               gone C; gone A n2 -> AABB ....# CC .. | A requeueing
               gone A            -> AABB ....# CC AA""",
        ),
        "a cordoned node can be drained": (
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
        "no retry is used": (
            "n1:AA n2:.. A,max=0",
            "",
            """drain n1 -> AA# .. | A requeueing
               gone A   -> ..# AA
               drain n2; uncordon n1 -> .. AA# | A requeueing
               gone A   -> AA ..#""",
        ),
        "a suspension or stop in the meantime holds": (
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
        "a running job releases its nodes and is suspended": (
            "n1:AA",
            "",
            """suspend A -> AA | A suspending
               gone A    -> .. | A suspended
               +1h       -> .. | A suspended
               resume A  -> AA""",
        ),
        "other jobs start in the meantime": (
            "n1:AA",
            "",
            """C:1x2     -> AA | C no_capacity
               suspend A -> AA | A suspending, C no_capacity
               gone A    -> CC | A suspended
               resume A  -> CC | A no_capacity
               done C    -> AA | C succeeded""",
        ),
        "a pending job leaves the queue": (
            "n1:AA",
            "",
            """C:1x2; D:1x2 -> AA | C no_capacity, D no_capacity
               suspend C    -> AA | C suspended, D no_capacity
               done A       -> DD | C suspended, A succeeded""",
        ),
        "resumed before it was cleared": (
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
        "a suspended job can be stopped": (
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

test_evicted = scenarios(
    {
        "it goes elsewhere, though the node stays open": (
            "n1:AA n2:..",
            "",
            """evict A n1 30s -> AA .. | A requeueing
               gone A         -> .. AA""",
        ),
        "or comes back where there is nothing else": (
            "n1:AA n2:BB",
            "",
            """evict A n1 30s -> AA BB | A requeueing
               gone A         -> AA BB""",
        ),
        "its next start after that is free again": (
            "n1:AA n2:..",
            "",
            """evict A n1 30s; gone A -> .. AA
               fails A signal; gone A; +1m -> AA ..""",
        ),
    }
)

test_done = scenarios(
    {
        "its other ranks are stopped, and it has succeeded": (
            "n1:AA n2:AA",
            "",
            """ends A -> AA AA | A finishing
               gone A -> .. .. | A succeeded""",
        ),
        "a later failure changes nothing": (
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
        "a pending job overtakes": (
            "n1:AA",
            "",
            """C:1x2; D:1x2           -> AA | C no_capacity, D no_capacity
               priority D 100; done A -> DD | C no_capacity, A succeeded""",
        ),
        "a running job keeps its nodes": ("n1:AA", "", "priority A -100 -> AA"),
    }
)
