"""The effect of a job's retry rules on a failure."""

from tests.pictures.play import scenarios

ONE = "n1:...."

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
