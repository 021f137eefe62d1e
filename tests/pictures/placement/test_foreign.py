"""GPUs that are used from outside ganger: `@`."""

from tests.pictures.play import scenarios

test_devices_of_others = scenarios(
    {
        "are not given": ("n1:@.@.", "", "C:1x2 -> @C@C"),
        "leave too little": ("n1:@...", "", "C:1x4 -> @... | C no_capacity"),
        "another node is taken": ("n1:@... n2:....", "", "C:1x4 -> @... CCCC"),
        "get partly used nodes first": ("n1:.... n2:@@..", "", "C:1x2 -> .... @@CC"),
        "are not shared": ("n1:@", "", "C:1x0,milli=500 -> @ | C no_capacity"),
        "nor named": ("n1:@..", "", "C:1x1,dev=0 D:1x1,dev=1 -> @D. | C no_capacity"),
        "a share goes beside them": ("n1:@.", "", "C:1x0,milli=500 D:1x0,milli=500 -> @(CD)"),
        "their node is not exclusive": (
            "n1:@... n2:....",
            "",
            "C:1x2,exclusive D:1x2,exclusive -> @... CC.. | D no_capacity",
        ),
        "nor whole": ("n1:@... n2:A...", "", "C:1x4,whole -> @... A... | C no_capacity"),
        "jobs without GPUs go there": ("n1:@@", "", "C:1x0 -> @@c"),
        "they are counted in a domain": (
            "s1/r1/a1:@. s1/r1/a2:.. s1/r2/b1:.. s1/r2/b2:..",
            "",
            "C:2x2,in=rack,must -> @. .. CC CC",
        ),
        "capacity beside them is reserved": (
            "n1:@AA. A,time=1h",
            "",
            """C:1x3,prio=high; D:1x1,time=2h -> @AA. | C no_capacity, D reserved
               done A                         -> @CCC | D no_capacity, A succeeded""",
        ),
    }
)

test_others_come_and_go = scenarios(
    {
        "they end": ("n1:@@..", "", "C:1x4 -> @@.. | C no_capacity \n list n1:.... -> CCCC"),
        "they start": ("n1:....", "", "list n1:..@@; C:1x3 -> ..@@ | C no_capacity"),
        "beside a gang": ("n1:AA..", "", "list n1:..@@; C:1x1 -> AA@@ | C no_capacity"),
        "beside an exclusive job": (
            "n1:AA.. A,exclusive",
            "",
            """list n1:..@@; C:1x1 -> AA@@ | C no_capacity
               done A              -> C.@@ | A succeeded""",
        ),
        "allocations of gangs are not theirs": (
            "n1:AA..",
            "",
            """list n1:@@@. -> AA@.
               C:1x1        -> AA@C
               done A       -> ..@C | A succeeded""",
        ),
        "of a gang that no longer fits beside their CPUs": (
            "n1:AA..,cpu=4",
            "",
            "list n1:....,cpu=1 -> .... | A no_node",
        ),
        "a gang that still fits continues": ("n1:AA..,cpu=4", "", "list n1:....,cpu=2 -> AA.."),
        "more than the node has": ("n1:..", "", "list n1:@@; C:1x1 -> @@ | C no_capacity"),
    }
)

test_who_gives_way = scenarios(
    {
        "no victim where foreign pods stay": ("n1:@AAA", "", "+31m; C:1x4 -> @AAA | C no_capacity"),
        "a victim whose end is enough": (
            "n1:@AAA",
            "",
            """+31m; C:1x3 -> @AAA | A requeueing, C stopping_others
               gone A      -> @CCC | A no_capacity""",
        ),
    },
    policy="las",
)
