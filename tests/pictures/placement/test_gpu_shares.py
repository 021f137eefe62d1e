"""Shares of GPUs, and jobs that name GPUs and nodes."""

from tests.pictures.play import scenarios

test_shares_of_gpus = scenarios(
    {
        "two halves are one GPU": ("n1:..", "", "C:1x0,milli=500 D:1x0,milli=500 -> (CD)."),
        "too little left: another GPU": ("n1:..", "", "C:1x0,milli=600 D:1x0,milli=500 -> (C)(D)"),
        "to the GPU with the least left that holds it": (
            "n1:...",
            "",
            "C:1x0,milli=300 D:1x0,milli=800 E:1x0,milli=200 -> (C)(DE).",
        ),
        "to the node with a partly used GPU": (
            "n1:.. n2:..",
            "",
            """
            C:1x0,milli=500 -> (C). ..
            D:1x1 -> (C)D ..
            E:1x0,milli=500 -> (CE)D ..
            """,
        ),
        "rests of two GPUs do not add up": (
            "n1:..",
            "",
            "C:1x0,milli=600 D:1x0,milli=600 E:1x0,milli=500 -> (C)(D) | E no_capacity",
        ),
        "memory is counted separately": (
            "n1:..,gmem=80",
            "",
            "C:1x0,milli=100,gmem=60 D:1x0,milli=100,gmem=30 E:1x0,milli=100,gmem=20 -> (CE)(D)",
        ),
        "so is compute": (
            "n1:.,gmem=80",
            "",
            "C:1x0,milli=900,gmem=10 D:1x0,milli=200,gmem=10 -> (C) | D no_capacity",
        ),
        "a share of memory alone": (
            "n1:.,gmem=80",
            "",
            "C:1x0,gmem=40 D:1x0,gmem=40 E:1x0,gmem=1 -> (CD) | E no_capacity",
        ),
        "no memory is known: no share of it": ("n1:.", "", "C:1x0,gmem=1 -> . | C no_node"),
        "a whole GPU never goes where a share is": ("n1:.", "", "C:1x0,milli=1 D:1x1 -> (C) | D no_capacity"),
        "nor a share on a GPU that is held whole": ("n1:A", "", "C:1x0,milli=1 -> A | C no_capacity"),
        "the last share gives the GPU back": (
            "n1:.",
            "",
            """
            C:1x0,milli=500 D:1x0,milli=500 E:1x1 -> (CD) | E no_capacity
            done C -> (D) | E no_capacity, C succeeded
            done D -> E | D succeeded
            """,
        ),
        "a gang of shares is on different nodes": ("n1:.. n2:..", "", "C:2x0,milli=500 -> (C). (C)."),
        "and is pending as a whole": ("n1:.. n2:AA", "", "C:2x0,milli=500 -> .. AA | C no_capacity"),
        "of a type": ("n1:.,a100 n2:.,h100", "", "C:1x0h100,milli=500 -> . (C)"),
        "of the second type if the first is full": (
            "n1:.,a100 n2:A,h100",
            "",
            "C:1x0h100,milli=500,else=a100 -> (C) A",
        ),
        "all of the compute, and still shared memory": (
            "n1:.,gmem=80",
            "",
            "C:1x0,milli=1000 D:1x0,gmem=40 -> (CD)",
        ),
        "spread: to the GPU with the most left": (
            "n1:. n2:.",
            "",
            "C:1x0,milli=200 D:1x0,milli=200,how=spread -> (C) (D)",
        ),
        "an exclusive node": ("n1:.. n2:..", "", "C:1x0,milli=500,exclusive D:1x0,milli=500 -> (C). (D)."),
    }
)

test_quota_of_shares = scenarios(
    {
        "halves count as halves": (
            "n1:...",
            "a=1,borrow=0",
            "C:1x0,milli=500,q=a D:1x0,milli=500,q=a E:1x0,milli=1,q=a -> (CD).. | E over_quota",
        ),
        "and so for a user": (
            "n1:...",
            "a=,user_gpus=1",
            "C:1x0,milli=600,q=a D:1x0,milli=500,q=a -> (C).. | D user_gpus",
        ),
        "of a type": (
            "n1:..,h100 n2:.,a100",
            "a=2,h100=1,h100.borrow=0",
            "C:1x0h100,milli=600,q=a D:1x0,milli=500,q=a -> (C). (D)",
        ),
    }
)

test_named_nodes_and_gpus = scenarios(
    {
        "a node by name": ("n1:.. n2:.. n3:..", "", "C:1x1,at=n2 -> .. C. .."),
        "one of several": ("n1:AA n2:.. n3:..", "", "C:1x1,at=n1+n3 -> AA .. C."),
        "and no other": ("n1:AA n2:..", "", "C:1x1,at=n1 -> AA .. | C no_capacity"),
        "a GPU by index": ("n1:....", "", "C:1x1,at=n1,dev=2 -> ..C."),
        "two of three": ("n1:.A..", "", "C:1x2,at=n1,dev=1+2+3 -> .ACC"),
        "a GPU in use": ("n1:.A..", "", "C:1x1,at=n1,dev=1 -> .A.. | C no_capacity"),
        "a share of a GPU by index": ("n1:..", "", "C:1x0,milli=500,at=n1,dev=1 -> .(C)"),
        "on that GPU though another is tighter": (
            "n1:..",
            "",
            "C:1x0,milli=500 D:1x0,milli=500,at=n1,dev=1 -> (C)(D)",
        ),
        "no node has it": ("n1:..", "", "C:1x1,at=n1,dev=3 -> .. | C no_node"),
    }
)
