"""Topology: levels, slices, strategies, and restrictions to certain nodes."""

from tests.pictures.play import scenarios

test_levels = scenarios(
    {
        "the lowest level that holds it": (
            "s1/r1/n1:.. s1/r1/n2:AA s1/r2/n3:.. s2/r3/n4:.. s2/r3/n5:..",
            "",
            "C:2x2 -> .. AA .. CC CC",
        ),
        "a spine if no rack is large enough": (
            "s1/r1/n1:.. s1/r2/n2:AA s2/r3/n3:.. s2/r4/n4:..",
            "",
            "C:2x2 -> .. AA CC CC",
        ),
        "the tightest spine": (
            "s1/r1/n1:.. s1/r2/n2:.. s1/r3/n3:.. s2/r4/n4:.. s2/r5/n5:..",
            "",
            "C:2x2 -> .. .. .. CC CC",
        ),
        "of equal racks the one in the tighter spine": (
            "s1/r1/n1:.. s1/r1/n2:.. s1/r2/n3:.. s2/r3/n4:.. s2/r3/n5:..",
            "",
            "C:2x2 -> .. .. .. CC CC",
        ),
        "racks of one name in two spines are different": (
            "s1/r1/n1:.. s2/r1/n2:..",
            "",
            "C:2x2,in=rack,must -> .. .. | C no_node",
        ),
        "the fewest racks of a spine": (
            "s1/r1/n1:.. s1/r2/n2:.. s1/r3/n3:.. s1/r3/n4:..",
            "",
            "C:3x2 -> CC .. CC CC",
        ),
        "the last rack as tight as possible": (
            "s1/r1/n1:.. s1/r1/n2:.. s1/r2/n3:.. s1/r3/n4:.. s1/r3/n5:.. s1/r3/n6:..",
            "",
            "C:4x2 -> .. .. CC CC CC CC",
        ),
        "three levels": (
            "s1/r1/v1/n1:.. s1/r1/v2/n2:.. s1/r2/v3/n3:.. s1/r2/v3/n4:..",
            "",
            "C:2x2 -> .. .. CC CC",
        ),
        "inside a rack the fewest nvlink domains": (
            "s1/r1/v1/n1:.. s1/r1/v2/n2:.. s1/r1/v3/n3:.. s1/r1/v3/n4:..",
            "",
            "C:3x2 -> CC .. CC CC",
        ),
        "r2 comes before r10": ("r10/n1:.. r10/n2:.. r2/n3:.. r2/n4:..", "", "C:2x2 -> CC CC .. .."),
        "a single node goes to a partly used rack": (
            "s1/r1/n1:A... s1/r1/n2:.... s2/r2/n3:....",
            "",
            "C:1x2 -> ACC. .... ....",
        ),
        "of equal nodes the one in the tighter rack": (
            "s1/r1/n1:.... s1/r1/n2:.... s2/r2/n3:....",
            "",
            "C:1x2 -> .... .... CC..",
        ),
        "ranks follow the network, not the order of need": (
            "s1/r1/n1:.A s1/r1/n2:.. s1/r2/n3:.A",
            "",
            "C:3x1 -> CA C. CA",
        ),
    }
)

test_preferred_and_required = scenarios(
    {
        "preferred: one rack if one holds it": (
            "r1/n1:.. r1/n2:.. r2/n3:.. r2/n4:AA",
            "",
            "C:2x2,in=rack -> CC CC .. AA",
        ),
        "preferred: beyond it if none does": ("r1/n1:.. r1/n2:AA r2/n3:..", "", "C:2x2,in=rack -> CC AA CC"),
        "required: never beyond it": (
            "r1/n1:.. r1/n2:AA r2/n3:..",
            "",
            """C:2x2,in=rack,must -> .. AA .. | C no_capacity
               done A             -> CC CC .. | A succeeded""",
        ),
        "required: a lower level will do": (
            "s1/r1/n1:.. s1/r1/n2:.. s2/r2/n3:.. s2/r3/n4:..",
            "",
            "C:2x2,in=spine,must -> CC CC .. ..",
        ),
        "required: of a spine, in two racks": (
            "s1/r1/n1:.. s1/r2/n2:AA s2/r3/n3:.. s2/r4/n4:..",
            "",
            "C:2x2,in=spine,must -> .. AA CC CC",
        ),
        "required: no spine is large enough": (
            "s1/r1/n1:.. s1/r2/n2:.. s2/r3/n3:..",
            "",
            "C:3x2,in=spine,must -> .. .. .. | C no_node",
        ),
        "required: a smaller job passes a pending one": (
            "r1/n1:.. r1/n2:AA r2/n3:..",
            "",
            "C:2x2,in=rack,must D:1x2 -> DD AA .. | C no_capacity",
        ),
        "required: a node in no rack is no rack": (
            "/n1:.. /n2:.. r1/n3:AA r1/n4:..",
            "",
            "C:2x2,in=rack,must -> .. .. AA .. | C no_capacity",
        ),
        "preferred: nodes in no rack are together": ("/n1:.. /n2:.. r1/n3:AA r1/n4:..", "", "C:2x2 -> CC CC AA .."),
        "required: one node is in one rack": ("r1/n1:AA r2/n2:..", "", "C:1x2,in=rack,must -> AA CC"),
        "required: a cordoned node is missing from its rack": (
            "r1/n1:.. r1/n2:.. r2/n3:..",
            "",
            """cordon n1; C:2x2,in=rack,must -> ..# .. .. | C no_node
               uncordon n1                   -> CC CC ..""",
        ),
        "required: a lost node, too": (
            "r1/n1:.. r1/n2:.. r2/n3:..",
            "",
            """lose n1; C:2x2,in=rack,must -> ..x .. .. | C no_node
               return n1                   -> CC CC ..""",
        ),
        "an unknown level, preferred": ("r1/n1:.. r2/n2:..", "", "C:2x2,in=spine -> CC CC"),
        "an unknown level, required": ("r1/n1:.. r2/n2:..", "", "C:1x2,in=spine,must -> .. .. | C no_node"),
        "different levels are different classes": (
            "r1/n1:.. r2/n2:..",
            "",
            "C:2x2,in=rack,must D:2x2 -> DD DD | C no_node",
        ),
        "the levels change": (
            "r1/n1:.. r2/n2:..",
            "",
            """C:2x2,in=spine,must -> .. .. | C no_node
               list s1/r1/n1:.. s1/r2/n2:.. -> CC CC""",
        ),
    }
)

test_slices = scenarios(
    {
        "a slice is in one domain": (
            "r1/n1:.. r1/n2:.. r1/n3:.. r2/n4:.. r2/n5:..",
            "",
            "C:4x2,slice=rack:2 -> CC CC .. CC CC",
        ),
        "remaining nodes form no slice": (
            "r1/n1:.. r1/n2:.. r1/n3:.. r2/n4:.. r2/n5:AA",
            "",
            "C:4x2,slice=rack:2 -> .. .. .. .. AA | C no_capacity",
        ),
        "nor do nodes of two racks": ("r1/n1:.. r2/n2:.. r3/n3:..", "", "C:2x2,slice=rack:2 -> .. .. .. | C no_node"),
        "slices in nvlink domains, all in one rack": (
            "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r1/v2/n3:.. s1/r2/v3/n4:.. s1/r2/v3/n5:.. s1/r2/v4/n6:.. s1/r2/v4/n7:..",
            "",
            "C:4x2,in=rack,must,slice=nvlink:2 -> .. .. .. CC CC CC CC",
        ),
        "enough nodes in a rack, but not enough slices": (
            "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r1/v2/n3:.. s1/r1/v3/n4:..",
            "",
            "C:4x2,in=rack,must,slice=nvlink:2 -> .. .. .. .. | C no_node",
        ),
        "preferred: slices in several racks": (
            "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r2/v2/n3:.. s1/r2/v2/n4:..",
            "",
            "C:4x2,in=rack,slice=nvlink:2 -> CC CC CC CC",
        ),
        "the rest is in the tightest domain": (
            "r1/n1:.. r1/n2:.. r1/n3:.. r1/n4:.. r2/n5:.. r2/n6:.. r2/n7:.. r3/n8:.. r3/n9:..",
            "",
            "C:2x2,slice=rack:2 -> .. .. .. .. .. .. .. CC CC",
        ),
        "all slices in one domain if possible": (
            "r1/n1:.. r1/n2:.. r2/n3:.. r2/n4:.. r2/n5:.. r2/n6:..",
            "",
            "C:4x2,slice=rack:2 -> .. .. CC CC CC CC",
        ),
        "below the slice the nodes are packed": (
            "s1/r1/v1/n1:.. s1/r1/v2/n2:.. s1/r1/v2/n3:.. s1/r1/v3/n4:..",
            "",
            "C:2x2,slice=rack:2 -> .. CC CC ..",
        ),
        "the ranks of a slice are side by side": (
            "r1/n1:.. r2/n2:.. r1/n3:.. r2/n4:..",
            "",
            "C:4x2,slice=rack:2 -> CC CC CC CC",
        ),
        "a slice of one node is any": ("r1/n1:.. r2/n2:..", "", "C:2x2,slice=rack:1 -> CC CC"),
        "also a node in no rack": ("/n1:.. r2/n2:..", "", "C:2x2,slice=rack:1 -> CC CC"),
        "but a slice of two is not": ("/n1:.. /n2:..", "", "C:2x2,slice=rack:2 -> .. .. | C no_node"),
        "slices of an unknown level": ("r1/n1:.. r1/n2:..", "", "C:2x2,slice=nvlink:2 -> .. .. | C no_node"),
        "slices made of slices": (
            (
                "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r1/v2/n3:.. s1/r1/v3/n4:.. s1/r2/v4/n5:.. s1/r2/v4/n6:.."
                " s1/r2/v5/n7:.. s1/r2/v5/n8:.."
            ),
            "",
            "C:4x2,slice=rack:4+nvlink:2 -> .. .. .. .. CC CC CC CC",
        ),
        "never a slice of single nodes": (
            "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r1/v2/n3:.. s1/r1/v3/n4:..",
            "",
            "C:4x2,slice=rack:4+nvlink:2 -> .. .. .. .. | C no_node",
        ),
        "nor of two racks": (
            "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r2/v2/n3:.. s1/r2/v2/n4:..",
            "",
            "C:4x2,slice=rack:4+nvlink:2 -> .. .. .. .. | C no_node",
        ),
        "a larger slice may be in several racks of a spine": (
            "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r2/v2/n3:.. s1/r2/v2/n4:..",
            "",
            "C:4x2,slice=spine:4+nvlink:2 -> CC CC CC CC",
        ),
        "several of them in several racks": (
            (
                "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r1/v2/n3:.. s1/r1/v2/n4:.. s2/r2/v3/n5:.. s2/r2/v3/n6:.."
                " s2/r2/v4/n7:.. s2/r2/v4/n8:.."
            ),
            "",
            "C:8x2,slice=rack:4+nvlink:2 -> CC CC CC CC CC CC CC CC",
        ),
        "three layers": (
            (
                "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r2/v2/n3:.. s1/r2/v2/n4:.. s2/r3/v3/n5:.. s2/r3/v4/n6:.."
                " s2/r4/v5/n7:.. s2/r4/v5/n8:.."
            ),
            "",
            "C:4x2,slice=spine:4+rack:2+nvlink:2 -> CC CC CC CC .. .. .. ..",
        ),
        "slices of one rack made of slices of a spine, which it is in": (
            "s1/r1/n1:.. s1/r2/n2:.. s2/r3/n3:.. s2/r3/n4:..",
            "",
            "C:2x2,slice=rack:2+spine:2 -> .. .. CC CC",
        ),
        "never of two racks of the spine": (
            "s1/r1/n1:.. s1/r2/n2:..",
            "",
            "C:2x2,slice=rack:2+spine:2 -> .. .. | C no_node",
        ),
        "a slice of slices waits for a partly used one": (
            "s1/r1/v1/n1:.. s1/r1/v1/n2:BB s1/r1/v2/n3:.. s1/r1/v2/n4:..",
            "",
            """C:4x2,slice=rack:4+nvlink:2 -> .. BB .. .. | C no_capacity
               done B                      -> CC CC CC CC | B succeeded""",
        ),
        "a slice waits for a partly used domain": (
            "r1/n1:.. r1/n2:BB r2/n3:.. r2/n4:..",
            "",
            """C:4x2,slice=rack:2 -> .. BB .. .. | C no_capacity
               done B             -> CC CC CC CC | B succeeded""",
        ),
    }
)

test_strategies = scenarios(
    {
        "spread: a node in each rack": (
            "r1/n1:.. r1/n2:.. r2/n3:.. r2/n4:.. r3/n5:.. r3/n6:..",
            "",
            "C:3x2,how=spread -> CC .. CC .. CC ..",
        ),
        "spread: as equally as possible": (
            "r1/n1:.. r1/n2:.. r1/n3:.. r2/n4:.. r2/n5:.. r2/n6:..",
            "",
            "C:4x2,how=spread -> CC CC .. CC CC ..",
        ),
        "spread: a small rack gets what it can hold": (
            "r1/n1:.. r1/n2:AA r1/n3:AA r2/n4:.. r2/n5:.. r2/n6:..",
            "",
            "C:4x2,how=spread -> CC AA AA CC CC CC",
        ),
        "spread: the rack with the most room first": (
            "r1/n1:.. r1/n2:.. r2/n3:.. r2/n4:.. r2/n5:..",
            "",
            "C:1x2,how=spread -> .. .. CC .. ..",
        ),
        "spread: nodes with the most left": ("r1/n1:A... r1/n2:....", "", "C:1x1,how=spread -> A... C..."),
        "spread: within one rack, over its domains": (
            "s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r1/v2/n3:.. s1/r1/v2/n4:.. s1/r2/v3/n5:.. s1/r2/v3/n6:..",
            "",
            "C:2x2,how=spread,in=rack,must -> .. .. .. .. CC CC",
        ),
        "spread: over racks of a spine, and no further": (
            "s1/r1/n1:.. s1/r1/n2:.. s1/r2/n3:.. s1/r2/n4:.. s2/r3/n5:..",
            "",
            "C:2x2,how=spread,in=spine -> CC .. CC .. ..",
        ),
        "packed: the same gang": (
            "r1/n1:.. r1/n2:.. r2/n3:.. r2/n4:.. r3/n5:.. r3/n6:..",
            "",
            "C:3x2 -> CC CC CC .. .. ..",
        ),
        "balanced: two racks with two each": (
            "r1/n1:.. r1/n2:.. r1/n3:.. r2/n4:.. r2/n5:.. r3/n6:..",
            "",
            "C:4x2,how=balanced -> CC CC .. CC CC ..",
        ),
        "balanced: the same gang, packed": (
            "r1/n1:.. r1/n2:.. r1/n3:.. r2/n4:.. r2/n5:.. r3/n6:..",
            "",
            "C:4x2 -> CC CC CC .. .. CC",
        ),
        "balanced: one rack if it is large enough": (
            "r1/n1:.. r1/n2:.. r2/n3:.. r2/n4:.. r2/n5:..",
            "",
            "C:3x2,how=balanced -> .. .. CC CC CC",
        ),
        "balanced: up to the size of a rack": (
            "r1/n1:.. r1/n2:.. r1/n3:.. r2/n4:..",
            "",
            "C:4x2,how=balanced -> CC CC CC CC",
        ),
        "balanced: the tightest of the possible racks": (
            "r1/n1:.. r1/n2:.. r1/n3:.. r2/n4:.. r2/n5:.. r3/n6:.. r3/n7:..",
            "",
            "C:4x2,how=balanced -> .. .. .. CC CC CC CC",
        ),
        "balanced: slices are shared equally": (
            """s1/r1/v1/n1:.. s1/r1/v1/n2:.. s1/r1/v2/n3:.. s1/r1/v2/n4:..
               s1/r2/v3/n5:.. s1/r2/v3/n6:.. s1/r2/v4/n7:AA s1/r2/v4/n8:..""",
            "",
            "C:4x2,how=balanced,slice=nvlink:2 -> CC CC CC CC .. .. AA ..",
        ),
    }
)

test_sharing = scenarios(
    {
        "exclusive: an empty node": ("n1:A... n2:....", "", "C:1x2,exclusive -> A... CC.."),
        "exclusive: no other job starts there": ("n1:....", "", "C:1x2,exclusive D:1x1 -> CC.. | D no_capacity"),
        "exclusive: until it has ended": (
            "n1:....",
            "",
            """C:1x2,exclusive D:1x1 -> CC.. | D no_capacity
               done C                -> D... | C succeeded""",
        ),
        "exclusive: not beside a job without GPUs": ("n1:..a,cpu=8", "", "C:1x2,exclusive -> ..a | C no_capacity"),
        "exclusive: two of them": ("n1:.... n2:....", "", "C:1x2,exclusive D:1x2,exclusive -> CC.. DD.."),
        "exclusive: every node of a gang": ("n1:.... n2:A... n3:....", "", "C:2x1,exclusive -> C... A... C..."),
        "exclusive: it waits for a free node": (
            "n1:A... n2:B...",
            "",
            """C:1x2,exclusive -> A... B... | C no_capacity
               done B          -> A... CC.. | B succeeded""",
        ),
        "whole: no GPU is left over": ("n1:.... n2:..", "", "C:1x2,whole -> .... CC"),
        "whole: there is no such node": ("n1:....", "", "C:1x2,whole -> .... | C no_node"),
        "whole: not a node in use": ("n1:..a,cpu=8 n2:..", "", "C:1x2,whole -> ..a CC"),
        "shared: beside other jobs": ("n1:A... n2:....", "", "C:1x2 -> ACC. ...."),
    }
)

test_networks = scenarios(
    {
        "the requested network": ("n1:..,net=tcp n2:..,net=ib+tcp", "", "C:1x2,net=ib -> .. CC"),
        "all of a gang on one network": (
            "n1:..,net=ib n2:..,net=roce n3:..,net=roce",
            "",
            "C:2x2,net=ib+roce -> .. CC CC",
        ),
        "the first network with capacity": (
            "n1:..,net=roce n2:..,net=roce n3:..,net=ib n4:..,net=ib",
            "",
            "C:2x2,net=ib+roce -> .. .. CC CC",
        ),
        "the next if the first is full": (
            "n1:..,net=roce n2:..,net=roce n3:..,net=ib n4:AA,net=ib",
            "",
            "C:2x2,net=ib+roce -> CC CC .. AA",
        ),
        "never a mixture": ("n1:..,net=ib n2:..,net=roce", "", "C:2x2,net=ib+roce -> .. .. | C no_node"),
        "an unknown network": ("n1:..,net=tcp", "", "C:1x2,net=ib -> .. | C no_node"),
        "any network by default": ("n1:..,net=ib n2:..,net=tcp", "", "C:2x2 -> CC CC"),
        "it waits for a network in use": ("n1:AA,net=ib n2:..,net=tcp", "", "C:1x2,net=ib -> AA .. | C no_capacity"),
    }
)

test_any_of_several_types = scenarios(
    {
        "the first type": ("n1:..,a100 n2:..,h100", "", "C:1x2h100,else=a100 -> .. CC"),
        "the second type if the first is in use": ("n1:..,a100 n2:AA,h100", "", "C:1x2h100,else=a100 -> CC AA"),
        "all nodes of one type": (
            "n1:..,a100 n2:..,h100 n3:..,a100",
            "",
            "C:2x2h100,else=a100 -> CC .. CC",
        ),
        "never a mixture of types": (
            "n1:..,a100 n2:..,h100",
            "",
            "C:2x2h100,else=a100 -> .. .. | C no_node",
        ),
        "in the given order": (
            "n1:..,a100 n2:..,h100 n3:..,v100",
            "",
            "C:1x2v100,else=a100+h100 -> .. .. CC",
        ),
        "an unknown type is skipped": ("n1:..,a100", "", "C:1x2h100,else=a100 -> CC"),
        "the first type in two racks before the second in one": (
            "r1/n1:..,h100 r2/n2:..,h100 r3/n3:..,a100 r3/n4:..,a100",
            "",
            "C:2x2h100,else=a100 -> CC CC .. ..",
        ),
        "unless the rack is required": (
            "r1/n1:..,h100 r2/n2:..,h100 r3/n3:..,a100 r3/n4:..,a100",
            "",
            "C:2x2h100,else=a100,in=rack,must -> .. .. CC CC",
        ),
        "both types in use": ("n1:AA,a100 n2:BB,h100", "", "C:1x2h100,else=a100 -> AA BB | C no_capacity"),
    }
)

test_scores = scenarios(
    {
        "of equal nodes the one without suspicion": ("n1:..,doubt=1 n2:..", "", "C:1x2 -> .. CC"),
        "the least suspicious": ("n1:..,doubt=3 n2:..,doubt=1 n3:..,doubt=2", "", "C:2x2 -> .. CC CC"),
        "the faster one": ("n1:..,speed=900 n2:..,speed=980", "", "C:1x2 -> .. CC"),
        "suspicion weighs more than speed": ("n1:..,doubt=1 n2:..,speed=500", "", "C:1x2 -> .. CC"),
        "packing weighs more than both": ("n1:A..,doubt=9 n2:...", "", "C:1x2 -> ACC ..."),
        "of equal racks the less suspicious": (
            "r1/n1:..,doubt=1 r1/n2:.. r2/n3:.. r2/n4:..",
            "",
            "C:2x2 -> .. .. CC CC",
        ),
        "suspicion excludes no job": ("n1:..,doubt=9", "", "C:1x2 -> CC"),
        "of equal nodes the one that has the image": ("n1:.. n2:..,img=a n3:..,img=b", "", "C:1x2,img=b -> .. .. CC"),
        "as many as have it": ("n1:..,img=a n2:.. n3:..,img=a n4:..", "", "C:2x2,img=a -> CC .. CC .."),
        "the others are the first": ("n1:.. n2:.. n3:..,img=a", "", "C:2x2,img=a -> CC .. CC"),
        "of equal racks the one with more of it": (
            "r1/n1:..,img=a r1/n2:.. r2/n3:..,img=a r2/n4:..,img=a",
            "",
            "C:2x2,img=a -> .. .. CC CC",
        ),
        "suspicion weighs more than an image": ("n1:..,doubt=1,img=a n2:..", "", "C:1x2,img=a -> .. CC"),
        "packing weighs more than an image": ("n1:A.. n2:...,img=a", "", "C:1x2,img=a -> ACC ..."),
        "no image, no preference": ("n1:.. n2:..,img=a", "", "C:1x2 -> CC .."),
        "an image that no node has": ("n1:.. n2:..,img=a", "", "C:1x2,img=b -> CC .."),
        "an image that all have": ("n1:..,img=a n2:..,img=a", "", "C:1x2,img=a -> CC .."),
    }
)
