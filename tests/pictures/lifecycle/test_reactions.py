"""Reactions to an end by how and when it came: the table of `core.failure.reactions`, played."""

from tests.pictures.play import scenarios

ONE = "n1:...."
TWO = "n1:.... n2:...."

test_by_ending = scenarios(
    {
        "an error of the program before any step ends it": (
            "n1:AAAA",
            "",
            "fails A error -> AAAA | A failing",
        ),
        "a time-out before any step is retried once": (
            ONE,
            "",
            """C:1x4                  -> CCCC
               fails C timeout        -> CCCC | C requeueing
               gone C; +1s            -> CCCC
               fails C timeout        -> CCCC | C failing""",
        ),
        "unless retry is set": (
            ONE,
            "",
            """C:1x4,max=1           -> CCCC
               fails C error         -> CCCC | C requeueing
               gone C; +1s           -> CCCC
               fails C error; gone C -> .... | C failed""",
        ),
        "after a step it is retried, and the same error at the same step ends it": (
            ONE,
            "",
            """C:1x4                         -> CCCC
               up C; step C; fails C error   -> CCCC | C requeueing
               gone C; +1s                   -> CCCC
               fails C error                 -> CCCC | C failing""",
        ),
        "also after a checkpoint in between": (
            ONE,
            "",
            """C:1x4                       -> CCCC
               up C; step C; fails C error -> CCCC | C requeueing
               gone C; +1s                 -> CCCC
               saves C 0; fails C error    -> CCCC | C failing""",
        ),
        "the same error at a later step does not": (
            ONE,
            "",
            """C:1x4                                    -> CCCC
               up C; step C; fails C error; gone C; +1s -> CCCC
               up C; step C; fails C error              -> CCCC | C requeueing""",
        ),
        "out of memory before any step ends it": ("n1:AAAA", "", "fails A oom -> AAAA | A failing"),
        "out of memory after a step is retried": (
            ONE,
            "",
            """C:1x4                       -> CCCC
               up C; step C; fails C oom   -> CCCC | C requeueing""",
        ),
        "a hang is retried, three times without progress": (
            "n1:AAAA",
            "",
            """step A; fails A hung; gone A; +1s -> AAAA
               fails A hung; gone A; +2s         -> AAAA
               fails A hung; gone A; +4s         -> AAAA
               fails A hung                      -> AAAA | A failing""",
        ),
        "with progress it uses no retry": (
            "n1:AAAA A,max=0",
            "",
            """saves A; fails A hung; gone A -> AAAA
               saves A; fails A hung; gone A -> AAAA
               saves A; fails A hung; gone A -> AAAA
               fails A hung                  -> AAAA | A failing""",
        ),
    }
)

test_where = scenarios(
    {
        "once on the same node, then elsewhere": (
            TWO,
            "",
            """C:1x4                       -> CCCC ....
               fails C signal; gone C; +1s -> CCCC ....
               fails C signal; gone C; +2s -> .... CCCC""",
        ),
        "then on the first node again": (
            TWO,
            "",
            """C:1x4,max=9                 -> CCCC ....
               fails C signal; gone C; +1s -> CCCC ....
               fails C signal; gone C; +2s -> .... CCCC
               fails C signal; gone C; +4s -> CCCC ....""",
        ),
        "without another node, on the same again": (
            "n1:.... n2:BBBB",
            "",
            """C:1x4                       -> CCCC BBBB
               fails C signal; gone C; +1s -> CCCC BBBB
               fails C signal; gone C; +2s -> CCCC BBBB""",
        ),
        "progress clears the exclusion of the node": (
            TWO,
            "",
            """C:1x4                                -> CCCC ....
               fails C signal; gone C; +1s          -> CCCC ....
               saves C; fails C signal; gone C      -> CCCC ....
               fails C signal; gone C; +1s          -> CCCC ....""",
        ),
        "only the failed node is excluded": (
            "n1:.. n2:.. n3:..",
            "",
            """C:2x2                                   -> CC CC ..
               fails C signal - n2; gone C; +1s        -> CC CC ..
               fails C signal - n2; gone C; +2s        -> CC .. CC""",
        ),
        "equal gangs are not excluded": (
            TWO,
            "",
            """C:1x4                                   -> CCCC ....
               fails C signal; gone C; +1s             -> CCCC ....
               fails C signal; gone C; +2s; D:1x4      -> DDDD CCCC""",
        ),
    }
)

test_several_at_once = scenarios(
    {
        "two ranks of one gang: the first decides, and one retry is used": (
            "n1:AA n2:AA A,max=1",
            "",
            """fails A signal; fails A exit -> AA AA | A requeueing
               gone A; +1s                  -> AA AA
               fails A signal               -> AA AA | A failing""",
        ),
        "a rank, then its node: the rank's end decides": (
            "n1:AA n2:AA n3:.. A,max=0",
            "",
            """fails A signal; lose n1 -> ..x AA .. | A failing
               gone A                  -> ..x .. .. | A failed""",
        ),
        "a node, then a rank on another: no retry is used": (
            "n1:AA n2:AA n3:.. A,max=0",
            "",
            """lose n1; fails A signal -> ..x AA .. | A resizing
               gone A                  -> ..x AA AA""",
        ),
        "both nodes": (
            "n1:AA n2:AA n3:.. n4:.. A,max=0",
            "",
            "lose n1; lose n2 -> ..x ..x AA AA",
        ),
        "launcher and node": (
            "n1:AA n2:AA n3:.. A,max=0",
            "",
            """fails A launcher; lose n2 -> AA ..x .. | A requeueing
               gone A                    -> AA ..x AA""",
        ),
        "two gangs of one node": (
            "n1:AABB n2:....",
            "",
            "lose n1 -> ....x AABB",
        ),
    }
)

test_by_phase = scenarios(
    {
        "start-up: a rank dies while another node is not up": (
            "n1:.. n2:..",
            "",
            """C:2x2                   -> CC CC
               up C n1; fails C signal -> CC CC | C requeueing
               gone C; +1s             -> CC CC""",
        ),
        "start-up: a node is lost before it is up": (
            "n1:.. n2:.. n3:..",
            "",
            """C:2x2,max=0      -> CC CC ..
               up C n1; lose n2 -> CC ..x .. | C resizing
               gone C           -> CC ..x CC""",
        ),
        "checkpoint: an end before it is complete loses it": (
            "n1:AAAA A,max=0",
            "",
            "step A; fails A signal -> AAAA | A failing",
        ),
        "checkpoint: an end right after it is complete uses no retry": (
            "n1:AAAA A,max=0",
            "",
            """step A; saves A; fails A signal -> AAAA | A requeueing
               gone A                          -> AAAA""",
        ),
        "recovery: a second node is lost while the rest is cleared": (
            "n1:AA n2:AA n3:.. n4:.. A,max=0",
            "",
            """lose n1 -> ..x AA .. .. | A resizing
               lose n2 -> ..x ..x AA AA""",
        ),
        "recovery: it fails again before its first step": (
            "n1:AAAA",
            "",
            """step A; fails A signal; gone A; +1s -> AAAA
               up A; fails A exit                  -> AAAA | A requeueing""",
        ),
        "recovery: the new node is lost too": (
            "n1:AA n2:.. n3:.. A,max=0",
            "",
            """lose n1 -> ..x AA ..
               lose n2 -> ..x ..x .. | A backoff
               +2s     -> ..x ..x AA""",
        ),
        "recovery: stopped while it is cleared": (
            "n1:AA n2:AA",
            "",
            """fails A signal; stop A -> AA AA | A stopping
               gone A                 -> .. .. | A stopped""",
        ),
        "recovery: stopped in its pause": (
            "n1:AAAA",
            "",
            """fails A signal; gone A -> .... | A backoff
               stop A                 -> .... | A stopped""",
        ),
        "recovery: suspended while it is cleared": (
            "n1:AA n2:AA",
            "",
            """fails A signal; suspend A -> AA AA | A requeueing
               gone A                    -> .. .. | A suspended""",
        ),
        "recovery: drained while it is cleared": (
            "n1:AA n2:..",
            "",
            """fails A signal; drain n1 -> AA# .. | A requeueing
               gone A; +1s              -> ..# AA""",
        ),
        "stopping: a failure meanwhile changes nothing": (
            "n1:AA n2:AA",
            "",
            """stop A         -> AA AA | A stopping
               fails A signal -> AA AA | A stopping
               gone A         -> .. .. | A stopped""",
        ),
        "suspending: a node lost meanwhile uses no retry": (
            "n1:AA n2:AA A,max=0",
            "",
            """suspend A -> AA AA | A suspending
               lose n1   -> ..x AA | A suspending
               gone A    -> ..x .. | A suspended""",
        ),
    }
)
