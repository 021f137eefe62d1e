"""Arrays and gangs with dependencies."""

from tests.pictures.play import scenarios

test_after = scenarios(
    {
        "it starts when the other has succeeded": (
            "n1:AA..",
            "",
            """C:1x1,after=A -> AA.. | C dependency
               done A        -> C... | A succeeded""",
        ),
        "after several jobs, when the last has succeeded": (
            "n1:AAB.",
            "",
            """C:1x1,after=A+B:ended -> AAB. | C dependency
               done A                -> ..B. | C dependency, A succeeded
               stop B; gone B        -> C... | B stopped""",
        ),
        "a dependency that cannot be met ends it and its dependents": (
            "n1:AA..",
            "",
            """C:1x1,after=A; D:1x1,after=C; E:1x1,after=C:failed -> AA.. | C dependency, D dependency, E dependency
               stop A; gone A -> E... | A stopped, C stopped, D stopped""",
        ),
        "a job with an open dependency blocks no other job": (
            "n1:AAA.",
            "",
            """C:1x4,after=A,prio=high -> AAA. | C dependency
               D:1x1                   -> AAAD | C dependency""",
        ),
        "its queue time begins when it may start": (
            "n1:AAAA",
            "",
            """C:1x4,after=A,wait=10m; B:1x4 -> AAAA | C dependency, B no_capacity
               +20m; done A      -> CCCC | B no_capacity, A succeeded""",
        ),
        "it can be stopped, and suspended meanwhile": (
            "n1:AA..",
            "",
            """C:1x1,after=A; D:1x1,after=A -> AA.. | C dependency, D dependency
               stop C; suspend D            -> AA.. | D suspended, C stopped
               done A                       -> .... | D suspended, A succeeded
               resume D                     -> D...""",
        ),
    }
)

test_arrays = scenarios(
    {
        "elements start as capacity allows": (
            "n1:....",
            "",
            """C:1x2,array=3 -> CCCC | C no_capacity
               done C[0]     -> CCCC | C[0] succeeded
               done C[2]; done C[1] -> .... | C[2] succeeded, C[1] succeeded, C succeeded""",
        ),
        "at most the limit at a time": (
            "n1:....",
            "",
            """C:1x1,array=3%2 -> CC.. | C array_limit
               done C[0]       -> CC.. | C[0] succeeded""",
        ),
        "the limit does not apply to other jobs of the same shape": (
            "n1:....",
            "",
            "C:1x1,array=9%1; D:1x1; E:1x1,array=2 -> CDEE | C array_limit",
        ),
        "a failed element goes before new elements": (
            "n1:..",
            "",
            """C:1x2,array=3,max=1      -> CC | C no_capacity
               up C[0]; fails C[0]; gone C[0]; +1s -> CC | C no_capacity
               done C[0]                -> CC | C no_capacity, C[0] succeeded""",
        ),
        "a stop of the whole array": (
            "n1:..",
            "",
            """C:1x1,array=4 -> CC | C no_capacity
               stop C        -> CC | C[0] stopping, C[1] stopping
               gone C[0]; gone C[1] -> .. | C[0] stopped, C[1] stopped, C stopped""",
        ),
        "a stop of an element without events": (
            "n1:.",
            "",
            """C:1x1,array=3 -> C | C no_capacity
               stop C[2]     -> C | C no_capacity, C[2] stopped
               done C[0]     -> C | C[0] succeeded
               done C[1]     -> . | C[1] succeeded, C stopped""",
        ),
        "a lost node requeues only the elements on it": (
            "n1:. n2:.",
            "",
            """C:1x1,array=2 -> C C
               lose n1       -> .x C | C[0] no_capacity""",
        ),
        "after an array, and after one element": (
            "n1:..",
            "",
            """C:1x1,array=2 -> CC
               D:1x1,after=C; E:1x1,after=C[1] -> CC | D dependency, E dependency
               done C[1]     -> CE | D dependency, C[1] succeeded
               done C[0]     -> DE | C[0] succeeded, C succeeded""",
        ),
        "an array that comes after another": (
            "n1:A..",
            "",
            """C:1x1,array=2,after=A -> A.. | C dependency
               done A                -> CC. | A succeeded""",
        ),
        "suspended as a whole, one resumed": (
            "n1:..",
            "",
            """C:1x1,array=3 -> CC | C no_capacity
               suspend C     -> CC | C suspended, C[0] suspending, C[1] suspending
               gone C[0]; gone C[1]; resume C[2] -> C. | C[0] suspended, C[1] suspended""",
        ),
    }
)
