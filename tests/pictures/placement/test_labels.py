"""Required and preferred nodes, by labels and taints."""

from tests.pictures.play import scenarios

test_selectors = scenarios(
    {
        "a label": ("n1:.. n2:..,label=zone:a", "", "C:1x2,on=zone:a -> .. CC"),
        "another value is another label": ("n1:..,label=zone:b", "", "C:1x2,on=zone:a -> .. | C no_node"),
        "every one of several": (
            "n1:..,label=zone:a n2:..,label=zone:a+disk:ssd",
            "",
            "C:1x2,on=zone:a+disk:ssd -> .. CC",
        ),
        "every node of the gang": (
            "n1:..,label=zone:a n2:.. n3:..,label=zone:a",
            "",
            "C:2x2,on=zone:a -> CC .. CC",
        ),
        "nodes with labels accept other jobs": ("n1:..,label=zone:a", "", "C:1x2 -> CC"),
        "it waits for labelled nodes in use": (
            "n1:AA,label=zone:a n2:..",
            "",
            "C:1x2,on=zone:a -> AA .. | C no_capacity",
        ),
        "with a level": (
            "r1/n1:..,label=zone:a r1/n2:.. r2/n3:..,label=zone:a r2/n4:..,label=zone:a",
            "",
            "C:2x2,on=zone:a,in=rack,must -> .. .. CC CC",
        ),
        "a label that is added": (
            "n1:..",
            "",
            """C:1x2,on=zone:a      -> .. | C no_node
               list n1:..,label=zone:a -> CC""",
        ),
    }
)

test_affinity = scenarios(
    {
        "one of several values": (
            "n1:..,label=zone:c n2:..,label=zone:b",
            "",
            "C:1x2,need=zone_in_(a&b) -> .. CC",
        ),
        "another value, or none": (
            "n1:..,label=zone:a n2:..,label=zone:b n3:..",
            "",
            "C:2x2,need=zone!=a -> .. CC CC",
        ),
        "none of several values": (
            "n1:..,label=zone:a n2:..,label=zone:b n3:..,label=zone:c",
            "",
            "C:1x2,need=zone_notin_(a&b) -> .. .. CC",
        ),
        "a label, whatever its value": ("n1:.. n2:..,label=disk:ssd", "", "C:1x2,need=disk -> .. CC"),
        "no such label": ("n1:..,label=old:yes n2:..", "", "C:1x2,need=!old -> .. CC"),
        "more than a number": (
            "n1:..,label=cores:32 n2:.. n3:..,label=cores:many n4:..,label=cores:128",
            "",
            "C:1x2,need=cores>32 -> .. .. .. CC",
        ),
        "less than a number": ("n1:..,label=cores:32 n2:..,label=cores:9", "", "C:1x2,need=cores<10 -> .. CC"),
        "expressions of a term hold together": (
            "n1:..,label=zone:a n2:..,label=zone:a+disk:ssd",
            "",
            "C:1x2,need=zone=a&disk=ssd -> .. CC",
        ),
        "any term is enough": (
            "n1:..,label=zone:a n2:..,label=zone:b n3:..,label=disk:ssd",
            "",
            "C:2x2,need=zone=a|disk=ssd -> CC .. CC",
        ),
        "together with a selector": (
            "n1:..,label=zone:a n2:..,label=zone:a+disk:ssd n3:..,label=disk:ssd",
            "",
            "C:1x2,on=zone:a,need=disk -> .. CC ..",
        ),
        "it waits for matching nodes in use": (
            "n1:AA,label=zone:a n2:..",
            "",
            "C:1x2,need=zone -> AA .. | C no_capacity",
        ),
        "no node matches": ("n1:..,label=zone:b n2:..", "", "C:1x2,need=zone=a -> .. .. | C no_node"),
    }
)

test_preferred_labels = scenarios(
    {
        "a preferred label": ("n1:.. n2:..,label=disk:ssd", "", "C:1x2,like=disk=ssd -> .. CC"),
        "elsewhere if required": ("n1:.. n2:AA,label=disk:ssd", "", "C:1x2,like=disk=ssd -> CC AA"),
        "weights are added up": (
            "n1:..,label=disk:ssd n2:..,label=zone:a+new:yes n3:..,label=zone:a",
            "",
            "C:1x2,like=disk=ssd*5|zone=a*4|new*2 -> .. CC ..",
        ),
        "before packing": ("n1:A... n2:....,label=disk:ssd", "", "C:1x2,like=disk=ssd -> A... CC.."),
        "the tightest of the preferred nodes": (
            "n1:.... n2:....,label=disk:ssd n3:A...,label=disk:ssd",
            "",
            "C:1x2,like=disk=ssd -> .... .... ACC.",
        ),
        "before the default level": (
            "r1/n1:.. r1/n2:.. r2/n3:..,label=disk:ssd r3/n4:..,label=disk:ssd",
            "",
            "C:2x2,like=disk=ssd -> .. .. CC CC",
        ),
        "after the requested level": (
            "r1/n1:.. r1/n2:.. r2/n3:..,label=disk:ssd r3/n4:..,label=disk:ssd",
            "",
            "C:2x2,in=rack,like=disk=ssd -> CC CC .. ..",
        ),
        "the preferred of the racks that are large enough": (
            "r1/n1:.. r1/n2:.. r2/n3:..,label=disk:ssd r2/n4:..,label=disk:ssd r2/n5:..,label=disk:ssd",
            "",
            "C:2x2,in=rack,like=disk=ssd -> .. .. CC CC ..",
        ),
        "the worst node of a gang counts": (
            "r1/n1:..,label=gen:5 r1/n2:.. r2/n3:..,label=gen:4 r2/n4:..,label=gen:4",
            "",
            "C:2x2,like=gen=5*9|gen=4*5,in=rack -> .. .. CC CC",
        ),
        "as many preferred nodes as possible": (
            "n1:.. n2:.. n3:..,label=disk:ssd",
            "",
            "C:2x2,like=disk=ssd -> CC .. CC",
        ),
        "spread: among preferred nodes": (
            "r1/n1:..,label=disk:ssd r1/n2:..,label=disk:ssd r2/n3:..,label=disk:ssd r3/n4:..",
            "",
            "C:2x2,how=spread,like=disk=ssd -> CC .. CC ..",
        ),
        "after the first type": (
            "n1:..,h100 n2:..,a100,label=disk:ssd",
            "",
            "C:1x2h100,else=a100,like=disk=ssd -> CC ..",
        ),
        "a job does not wait for it": (
            "n1:.. n2:AA,label=disk:ssd A,time=1m",
            "",
            "C:1x2,like=disk=ssd -> CC AA",
        ),
        "the absence of a label": ("n1:..,label=old:yes n2:..", "", "C:1x2,like=!old -> .. CC"),
    }
)

test_taints = scenarios(
    {
        "a taint excludes other jobs": ("n1:..,taint=spot", "", "C:1x2 -> .. | C no_node"),
        "unless it is tolerated": ("n1:..,taint=spot", "", "C:1x2,bears=spot -> CC"),
        "by its key": ("n1:..,taint=team:nlp", "", "C:1x2,bears=team -> CC"),
        "by its key and value": ("n1:..,taint=team:nlp n2:..,taint=team:cv", "", "C:1x2,bears=team:cv -> .. CC"),
        "or all are tolerated": ("n1:..,taint=team:nlp+spot", "", "C:1x2,bears=* -> CC"),
        "each of several": ("n1:..,taint=team:nlp+spot", "", "C:1x2,bears=spot -> .. | C no_node"),
        "a job that tolerates it may go elsewhere": ("n1:AA,taint=spot n2:..", "", "C:1x2,bears=spot -> AA CC"),
        "a new taint stops no running job": (
            "n1:AA n2:..",
            "",
            """list n1:..,taint=spot n2:.. -> AA ..
               done A; C:1x2               -> .. CC | A succeeded""",
        ),
    }
)
