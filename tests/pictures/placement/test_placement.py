"""Placement of gangs: whole or not at all, in one rack, where the least is left, on the requested nodes."""

from tests.pictures.play import scenarios

test_gangs_are_whole = scenarios(
    {
        "a gang that fits starts": ("n1:.... n2:....", "", "C:2x4 -> CCCC CCCC"),
        "a gang is never split": ("n1:A... n2:BB..", "", "C:2x3 -> A... BB.. | C no_capacity"),
        "whole or not at all": ("n1:.... n2:A...", "", "C:2x4 -> .... A... | C no_capacity"),
        "every part gets its own node": ("n1:....", "", "C:2x2 -> .... | C no_node"),
        "scattered GPUs do not add up": ("n1:AA.. n2:BB..", "", "C:1x4 -> AA.. BB.. | C no_capacity"),
        "more GPUs than any node has": ("n1:....", "", "C:1x8 -> .... | C no_node"),
        "no node": ("n1:-", "", "C:1x1 -> - | C no_node"),
        "two gangs do not take half each": (
            "n1:.. n2:.. n3:..",
            "",
            """C:2x2 D:2x2 -> CC CC .. | D no_capacity
               done C      -> DD DD .. | C succeeded""",
        ),
        "nor do three gangs": (
            "n1:.. n2:.. n3:..",
            "",
            """C:2x2 D:2x2 E:2x2 -> CC CC .. | D no_capacity, E no_capacity
               done C            -> DD DD .. | E no_capacity, C succeeded
               done D            -> EE EE .. | D succeeded""",
        ),
    }
)

test_devices = scenarios(
    {
        "the lowest indices first": ("n1:....", "", "C:1x1 D:1x2 -> CDD."),
        "gaps are filled": ("n1:.A..", "", "C:1x2 -> CAC."),
        "no two gangs share a GPU": ("n1:A.A.", "", "C:1x1 D:1x1 E:1x1 -> ACAD | E no_capacity"),
        "nine nodes": ("n1:.........", "", "C:1x4 D:1x5 -> CCCCDDDDD"),
        "sixteen nodes": ("n1:AAAAAAA.........", "", "C:1x9 -> AAAAAAACCCCCCCCC"),
        "they are released one by one": (
            "n1:AABB",
            "",
            """done A; C:1x1 -> C.BB | A succeeded
               D:1x1         -> CDBB""",
        ),
    }
)

test_racks = scenarios(
    {
        "one rack rather than two": ("r1/n1:.. r1/n2:AA r2/n3:.. r2/n4:..", "", "C:2x2 -> .. AA CC CC"),
        "the tightest rack": ("r1/n1:.. r1/n2:.. r1/n3:.. r2/n4:.. r2/n5:..", "", "C:2x2 -> .. .. .. CC CC"),
        "a tie goes to the first": ("r1/n1:.. r1/n2:.. r2/n3:.. r2/n4:..", "", "C:2x2 -> CC CC .. .."),
        "two racks if no rack is large enough": ("r1/n1:.. r2/n2:.. r3/n3:AA", "", "C:2x2 -> CC CC AA"),
        "as few as possible": ("r1/n1:.. r2/n2:.. r2/n3:.. r3/n4:..", "", "C:3x2 -> CC CC CC .."),
        "the rest goes to the tightest rack": (
            "r1/n1:.. r1/n2:.. r1/n3:.. r2/n4:.. r2/n5:.. r3/n6:..",
            "",
            "C:4x2 -> CC CC CC .. .. CC",
        ),
        "a cordoned rack is not used": (
            "r1/n1:.. r1/n2:.. r2/n3:.. r2/n4:.. r2/n5:..",
            "",
            "cordon n1; C:2x2 -> ..# .. CC CC ..",
        ),
        "n2 comes before n10": ("n10:... n2:..", "", "C:1x2 -> CC ..."),
        "small jobs fill a partly used rack": (
            "r1/n1:.. r1/n2:.. r2/n3:AA r2/n4:..",
            "",
            "C:1x2 -> .. .. AA CC",
        ),
    }
)

test_fragmentation = scenarios(
    {
        "a small job goes to the tightest node": ("n1:.... n2:AAA.", "", "C:1x1 -> .... AAAC"),
        "and leaves a whole node to a gang": ("n1:.... n2:AA..", "", "C:1x2 D:1x4 -> DDDD AACC"),
        "a job without GPUs keeps off them": ("n1:.... n2:-", "", "C:1x0 -> .... c"),
        "unless nothing else is left": ("n1:.... n2:a,cpu=1", "", "C:1x0 -> ....c a"),
        "of equal nodes the one with fewer CPUs left": ("n1:..,cpu=8 n2:..,cpu=4", "", "C:1x1 -> .. C."),
        "then the one with less memory left": ("n1:..,mem=8 n2:..,mem=4", "", "C:1x1 -> .. C."),
    }
)

test_types = scenarios(
    {
        "a type is obeyed": ("n1:..,a100 n2:..,h100", "", "C:1x2h100 -> .. CC"),
        "in any case of letters": ("n1:..,H100", "", "C:1x1h100 -> C."),
        "no type takes any": ("n1:..,a100 n2:A.,h100", "", "C:1x1 -> .. AC"),
        "a gang without a type may mix": ("n1:..,a100 n2:..,h100", "", "C:2x2 -> CC CC"),
        "it waits for a type in use": ("n1:AA,h100 n2:..,a100", "", "C:1x1h100 -> AA .. | C no_capacity"),
        "a type that no node has": ("n1:..,h100", "", "C:1x1tpu -> .. | C no_node"),
    }
)

test_cpus_and_memory = scenarios(
    {
        "jobs without GPUs share a node": ("n1:-,cpu=2", "", "C:1x0 D:1x0 E:1x0 -> cd | E no_capacity"),
        "their gangs are whole, too": ("n1:a,cpu=1 n2:-,cpu=1", "", "C:2x0 -> a - | C no_capacity"),
        "CPUs limit though GPUs are free": ("n1:....,cpu=4", "", "C:1x1,cpu=4 D:1x1 -> C... | D no_capacity"),
        "one CPU for each GPU by default": ("n1:....,cpu=3", "", "C:1x4 -> .... | C no_node"),
        "an explicit number of CPUs": ("n1:....,cpu=3", "", "C:1x4,cpu=1 -> CCCC"),
        "memory limits": ("n1:..,mem=8", "", "C:1x1,mem=6 D:1x1,mem=4 -> C. | D no_capacity"),
        "memory elsewhere": ("n1:..,mem=8 n2:..,mem=8", "", "C:1x1,mem=6 D:1x1,mem=4 -> C. D."),
        "more memory than any node has": ("n1:..,mem=8", "", "C:1x1,mem=9 -> .. | C no_node"),
    }
)
