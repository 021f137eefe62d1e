"""The effect of a job's retry rules on a failure."""

from tests.pictures.play import scenarios

ONE = "n1:...."

test_rules = scenarios(
    {
        "retry: also after an end that is not retried by default": (
            ONE,
            "",
            """C:1x4,rules=oom:retry -> CCCC
               fails C exit oom      -> CCCC | C requeueing
               gone C                -> .... | C backoff
               +1s                   -> CCCC
               fails C               -> CCCC | C failing""",
        ),
        "retry: at most three times": (
            ONE,
            "",
            """C:1x4,rules=oom:retry              -> CCCC
               fails C exit oom; gone C; +1s      -> CCCC
               fails C exit oom; gone C; +2s      -> CCCC
               fails C exit oom; gone C; +4s      -> CCCC
               fails C exit oom                   -> CCCC | C failing""",
        ),
        "retry: at most max times": (
            ONE,
            "",
            """C:1x4,max=0,rules=oom:retry -> CCCC
               fails C exit oom            -> CCCC | C failing""",
        ),
        "fail: not retried, whatever retries are left": (
            ONE,
            "",
            """C:1x4,max=9,rules=nan:fail -> CCCC
               fails C signal             -> CCCC | C requeueing
               gone C; +1s                -> CCCC
               fails C signal nan         -> CCCC | C failing
               gone C                     -> .... | C failed""",
        ),
        "fail: whatever checkpoint there is": (
            ONE,
            "",
            """C:1x4,rules=nan:fail        -> CCCC
               saves C; fails C signal nan -> CCCC | C failing""",
        ),
        "fail: also for a failure of the infrastructure": (
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
        "exclude_node: the node whose log matches, not the one that failed first": (
            "n1:.. n2:.. n3:.. n4:..",
            "",
            """C:2x2,rules=ecc:exclude_node     -> CC CC .. ..
               fails C signal ecc n2; gone C; +1s -> CC .. CC ..""",
        ),
        "exclude_node: by cause, the node that failed": (
            "n1:.... n2:....",
            "",
            """C:1x4,rules=launcher_lost:exclude_node -> CCCC ....
               fails C launcher; gone C               -> .... CCCC""",
        ),
        "exclude_node: pending if it is the only node, which others may use": (
            "n1:.... n2:..",
            "",
            """C:1x4,rules=ecc:exclude_node           -> CCCC ..
               fails C signal ecc; gone C; +1s; D:1x4 -> DDDD .. | C excluded""",
        ),
        "exclude_node: waits for another node": (
            "n1:.... n2:BBBB",
            "",
            """C:1x4,rules=ecc:exclude_node    -> CCCC BBBB
               fails C signal ecc; gone C; +1s -> .... BBBB | C no_capacity
               done B                          -> .... CCCC | B succeeded""",
        ),
        "exclude_node: until a node is added": (
            "n1:....",
            "",
            """C:1x4,rules=ecc:exclude_node    -> CCCC
               fails C signal ecc; gone C; +1s -> .... | C excluded
               list n1:.... n2:....            -> .... CCCC""",
        ),
        "exclude_node: one node after the other, and equal jobs may use them": (
            "n1:.. n2:.. n3:..",
            "",
            """C:1x2,max=9,rules=ecc:exclude_node     -> CC .. ..
               fails C signal ecc; gone C; +1s        -> .. CC ..
               fails C signal ecc; gone C; +2s; D:1x2 -> DD .. CC""",
        ),
        "exclude_node: no pause after a checkpoint": (
            "n1:.. n2:..",
            "",
            """C:1x2,max=0,rules=ecc:exclude_node  -> CC ..
               saves C; fails C signal ecc; gone C -> .. CC""",
        ),
        "the first matching rule decides": (
            ONE,
            "",
            """C:1x4,rules=nan:fail+rank_failed:retry -> CCCC
               fails C; gone C; +1s                   -> CCCC
               fails C exit nan                       -> CCCC | C failing""",
        ),
        "a rule by cause may come first": (
            ONE,
            "",
            """C:1x4,rules=rank_failed:retry+nan:fail -> CCCC
               fails C exit nan; gone C; +1s          -> CCCC""",
        ),
    }
)
