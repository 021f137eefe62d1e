"""The effect of each placement score where nodes differ; `fgd` is in test_pools."""

from tests.pictures.play import scenarios

test_best_fit = scenarios(
    {
        "the node left with the least": ("n1:.... n2:AA..", "", "score best-fit; C:1x1 -> .... AAC."),
        "CPUs count as much as GPUs": (
            "n1:....,cpu=64 n2:AAA.,cpu=64 n3:....,cpu=8",
            "",
            "score best-fit; C:1x0,milli=500 -> .... AAA. (C)...",
        ),
        "the node with fewer CPUs": ("n1:....,cpu=64 n2:....,cpu=8", "", "score best-fit; C:1x1 -> .... C..."),
        "the first of equal grades": ("n1:.... n2:A...", "", "score best-fit 1 order; C:1x1 -> C... A..."),
        "not without a cut": ("n1:.... n2:A...", "", "score best-fit 0 order; C:1x1 -> .... AC.."),
        "of several types the node left with the least, not the first type": (
            "n1:....,h100 n2:A...,a100 n3:BB..,v100",
            "",
            "score best-fit; C:1x1h100,else=a100 -> .... AC.. BB..",
        ),
        "several nodes are of the first type with room": (
            "n1:....,h100 n2:A...,a100 n3:....,h100 n4:B...,a100",
            "",
            "score best-fit; C:2x1h100,else=a100 -> C... A... C... B...",
        ),
        "spread leaves out scores": (
            "n1:....,h100 n2:A...,a100",
            "",
            "score best-fit; C:1x1h100,else=a100,how=spread -> C... A...",
        ),
    }
)

test_dot_product = scenarios(
    {
        "the smallest remainder": ("n1:.... n2:AA..", "", "score dotprod; C:1x1 -> .... AAC."),
        "resources that are not requested do not count": (
            "n1:.. n2:....,cpu=1",
            "",
            "score dotprod; C:1x0 -> .. ....c",
        ),
        "the first of equal grades": ("n1:.... n2:AA..", "", "score dotprod 1 order; C:1x1 -> C... AA.."),
    }
)

test_gpu_packing = scenarios(
    {
        "a GPU that is shared before a free one": (
            "n1:A. n2:..",
            "",
            """
            C:1x0,milli=300,at=n2 -> A. (C).
            score gpu-packing; D:1x0,milli=300 -> A. (CD).
            """,
        ),
        "the one with the least left": (
            "n1:.. n2:..",
            "",
            """
            C:1x0,milli=300,at=n1 D:1x0,milli=600,at=n2 -> (C). (D).
            score gpu-packing; E:1x0,milli=300 -> (C). (DE).
            """,
        ),
        "a node in use before an idle one": ("n1:. n2:A...", "", "score gpu-packing 0 order; C:1x1 -> . AC.."),
        "the first of the nodes in use": ("n1:A.. n2:BB.", "", "score gpu-packing 0 order; C:1x1 -> AC. BB."),
        "the idle node with fewer GPUs": ("n1:.... n2:..", "", "score gpu-packing 0 order; C:1x1 -> .... C."),
        "in ten grades of a hundred": (
            "n1:. n2:.",
            "",
            """
            C:1x0,milli=340,at=n1 D:1x0,milli=380,at=n2 -> (C) (D)
            score gpu-packing 100 order; E:1x0,milli=300 -> (CE) (D)
            """,
        ),
    }
)

test_gpu_clustering = scenarios(
    {
        "beside a job of the same kind": ("n1:BB.. n2:A...", "", "score gpu-clustering; C:1x1 -> BB.. AC.."),
        "an idle node before other jobs": ("n1:BB.. n2:....", "", "score gpu-clustering; C:1x1 -> BB.. C..."),
        "beside its kind before mixed": (
            "n1:ABB. n2:A...",
            "",
            "score gpu-clustering; C:1x1 -> ABB. AC..",
        ),
        "mixed before idle": ("n1:.... n2:ABB.", "", "score gpu-clustering; C:1x1 -> .... ABBC"),
        "beside other jobs as a last resort": ("n1:BB..", "", "score gpu-clustering; C:1x1 -> BBC."),
        "shares are one kind": (
            "n1:A. n2:..",
            "",
            """
            C:1x0,milli=300,at=n2 -> A. (C).
            score gpu-clustering; D:1x0,milli=800 -> A. (C)(D)
            """,
        ),
    }
)

test_any = scenarios(
    {
        "not always the tightest": (
            "n1:.... n2:.... n3:A...",
            "",
            """
            score random; C:1x1 -> .... C... A...
            D:1x1 -> D... C... A...
            """,
        ),
        "only nodes with capacity": ("n1:AAA. n2:BBBB", "", "score random; C:1x1 -> AAAC BBBB"),
    }
)
