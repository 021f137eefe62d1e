"""GPUs of a node that are connected in islands."""

from tests.pictures.play import scenarios

test_links_between_gpus = scenarios(
    {
        "without links: the first free ones": ("n1:.@....", "", "C:1x2 -> C@C..."),
        "within one island": ("n1:.@......,links=4", "", "C:1x4 -> .@..CCCC"),
        "the smallest island that is large enough": (
            "n1:.@..@@..,links=4",
            "",
            "C:1x2 -> .@..@@CC",
        ),
        "an island stays whole": (
            "n1:........,links=4",
            "",
            """
            C:1x1 -> C.......
            D:1x1 -> CD......
            E:1x4 -> CD..EEEE
            F:1x2 -> CDFFEEEE
            """,
        ),
        "it is broken if nothing else fits": ("n1:.@......,links=4", "", "C:1x6 -> C@C.CCCC"),
        "several on one node, each within an island": (
            "n1:........,links=4",
            "",
            "C:1x3 D:1x3 E:1x2 -> CCCEDDDE",
        ),
        "a share opens a GPU of a broken island": (
            "n1:....@...,links=4",
            "",
            "C:1x0,milli=500 D:1x0,milli=600 -> ....@(C)(D).",
        ),
        "named devices are taken as named": ("n1:.@......,links=4", "", "C:1x2,dev=0+4 -> C@..C..."),
    }
)
