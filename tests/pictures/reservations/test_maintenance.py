"""Maintenance: what may start before it, what waits or goes elsewhere, what is stopped, what is reserved after it."""

from tests.pictures.play import scenarios

RACKS = "r1/n1:.. r1/n2:.. r2/n3:.. r2/n4:.."

test_maintenance = scenarios(
    {
        "a job that ends before it starts, a longer one waits until it is over": (
            "n1:..",
            "",
            """maintain n1 1h 2h; C:1x1,time=59m D:1x1,time=61m E:1x1 -> C. | D maintenance, E maintenance
               +59m; done C -> .. | D maintenance, E maintenance, C succeeded
               +1h -> .. | D maintenance, E maintenance
               +61m -> DE""",
        ),
        "to the millisecond": (
            "n1:..",
            "",
            "maintain n1 1h 2h; C:1x1,time=1h -> C.",
        ),
        "shrunk to end before it": (
            "n1:..",
            "",
            """maintain n1 1h 2h; C:1x1,time=3h,least=30m D:1x1,time=3h,least=61m -> C. | D maintenance
               +1h -> C. | C stopping, D maintenance
               gone C -> .. | D maintenance, C stopped
               +2h -> D.""",
        ),
        "its full time where no maintenance is planned": (
            "n1:.. n2:..",
            "",
            """maintain n1 1h 2h; C:1x2,time=3h,least=30m -> .. CC
               +2h -> .. CC""",
        ),
        "before the first of two windows that conflict": (
            "n1:.. n2:..",
            "",
            """maintain n1 1h 1h; maintain n2 3h 1h; C:2x1,time=9h,least=30m D:1x1,time=9h,least=90m -> C. CD
               +1h -> C. CD | C stopping
               gone C; +2h -> .. .D | D stopping, C stopped""",
        ),
        "a long job goes elsewhere": (
            "n1:.. n2:..",
            "",
            "maintain n1 1h 2h; C:1x2,time=2h D:1x2,time=30m -> DD CC",
        ),
        "jobs that still run there restart elsewhere, or afterwards": (
            "n1:.. n2:..",
            "",
            """C:1x2 D:1x2 -> CC DD
               maintain n1 1h 2h -> CC DD
               +1h -> CC DD | C requeueing
               gone C -> .. DD | C maintenance
               +2h -> CC DD""",
        ),
        "cancelled": (
            "n1:..",
            "",
            """maintain n1 1h 2h; C:1x2,time=2h -> .. | C maintenance
               maintained -> CC""",
        ),
        "a rack that is required": (
            RACKS,
            "",
            """D:2x1,time=9h,in=rack,must -> D. D. .. ..
               maintain n3+n4 1h 1h; C:2x2,in=rack,must,time=2h -> D. D. .. .. | C maintenance
               +2h -> D. D. CC CC""",
        ),
        "one node of a rack is enough": (
            RACKS,
            "",
            "maintain n3 1h 1h; maintain n2 1h 1h; C:2x2,in=rack,must,time=2h -> .. .. .. .. | C maintenance",
        ),
        "lack of capacity is reported before it": (
            "n1:AA n2:..",
            "",
            "maintain n2 1h 1h; C:2x2,time=2h D:1x2,time=2h -> AA .. | C no_capacity, D maintenance",
        ),
    },
)

test_reserved_starts = scenarios(
    {
        "a start is reserved after it": (
            "n1:.. n2:AA A,time=1h",
            "",
            """maintain n1 1h 1h; S:2x2,time=2h -> .. AA | S no_capacity
               D:1x1,time=1h E:1x1,time=61m -> D. AA | S no_capacity, E maintenance
               +1h; done A; done D -> .. .. | S maintenance, E reserved, A succeeded, D succeeded
               +1h -> SS SS | E no_capacity""",
        ),
        "shrunk to end before the reserved start, which is later": (
            "n1:.. n2:AA n3:.. A,time=1h",
            "",
            """maintain n3 40m 9h; S:2x2,time=2h D:1x2,time=9h,least=30m -> DD AA .. | S no_capacity
               E:1x1,time=9h,least=20m F:1x1,time=9h,least=41m -> DD AA E. | S no_capacity, F maintenance
               +40m -> DD AA E. | S no_capacity, E stopping, F maintenance
               gone E -> DD AA .. | S no_capacity, F maintenance, E stopped
               +20m; done A -> DD .. .. | S maintenance, D stopping, F reserved, A succeeded
               gone D -> SS SS .. | F maintenance, D stopped""",
        ),
    },
    policy="dynamic",
)
