"""Elastic gangs: where they grow, what keeps them from it, and what becomes of a resize that is interrupted."""

from ganger.engine.eventlog.projection import project
from ganger.model.units import HOUR_MS
from tests.laws.policies import POLICIES
from tests.pictures.film import Film
from tests.pictures.play import scenarios

test_growth = scenarios(
    {
        "it starts with all that is idle, up to its maximum": (
            "n1:.. n2:.. n3:.. n4:..",
            "",
            "A:1x2,to=3,time=9h -> AA AA AA ..",
        ),
        "it starts with its minimum where no more is idle, and waits for that": (
            "n1:.. n2:BB n3:CC B,time=9h C,time=9h",
            "",
            """A:2x2,to=3,time=1h -> .. BB CC | A no_capacity
               done B             -> AA AA CC | B succeeded
               up A; +3m; done C  -> AA AA AA | A resizing, C succeeded
               gone A             -> AA AA AA
               up A               -> AA AA AA""",
        ),
        "a unit of two nodes in one rack": (
            "r1/n1:.. r1/n2:.. r1/n3:.. r2/n4:.. r2/n5:.. r2/n6:..",
            "",
            "A:2x2,to=6,unit=2,unit_in=rack,time=9h -> AA AA .. AA AA ..",
        ),
        "two gangs share what is idle": (
            "n1:.. n2:.. n3:.. n4:.. n5:..",
            "",
            "A:1x2,to=9,time=9h B:1x2,to=9,time=9h -> AA BB AA AA BB",
        ),
        "nodes that a reservation needs before it ends stay idle": (
            "n1:.. n2:.. n3:BB B,time=1h",
            "",
            """C:3x2,time=1h      -> .. .. BB | C no_capacity
               A:1x2,to=2,time=2h -> .. .. BB | C no_capacity, A reserved
               done B             -> CC CC CC | A no_capacity, B succeeded""",
        ),
        "nodes that a reservation needs later are lent": (
            "n1:.. n2:.. n3:BB B,time=1h",
            "",
            """C:3x2,time=1h       -> .. .. BB | C no_capacity
               A:1x2,to=2,time=30m -> AA AA BB | C no_capacity""",
        ),
        "a gang that has little time left does not grow, since the restart costs more than it brings": (
            "n1:AA n2:BB A,from=1,to=2,time=10m B,time=9h",
            "",
            """+9m    -> AA BB
               done B -> AA .. | B succeeded""",
        ),
        "it does not grow again within some minutes": (
            "n1:AA n2:BB n3:CC A,from=1,to=3,time=9h B,time=9h C,time=9h",
            "",
            """+5m; done B  -> AA AA CC | A resizing, B succeeded
               gone A       -> AA AA CC
               up A; done C -> AA AA .. | C succeeded
               +1m          -> AA AA ..
               +1m          -> AA AA AA | A resizing""",
        ),
        "a quota limits it, and one job of a user is one job at every size": (
            "n1:.. n2:.. n3:.. n4:..",
            "q=6,borrow=0,user_jobs=1",
            "A:1x2,q=q,to=4,time=9h -> AA AA AA ..",
        ),
        "it grows next to what it has": (
            "r1/n1:BB r1/n2:.. r2/n3:.. r2/n4:AA A,from=1,to=2,time=9h B,time=9h",
            "",
            "+5m -> BB .. AA AA | A resizing",
        ),
        "it stays in the rack that it must be in": (
            "r1/n1:.. r1/n2:CC r2/n3:BB r2/n4:AA A,from=1,to=2,time=9h,in=rack,must B,time=9h C,time=9h",
            "",
            """+5m    -> .. CC BB AA
               done B -> .. CC AA AA | A resizing, B succeeded""",
        ),
        "it moves to a rack with room for more than the one that it must not leave": (
            "r1/n1:AA r1/n2:BB r2/n3:CC r2/n4:.. r2/n5:.. A,from=1,to=3,time=9h,in=rack,must B,time=9h C,time=9h",
            "",
            """+5m          -> AA BB CC AA AA | A resizing
               gone A       -> .. BB CC AA AA
               up A; done C -> .. BB .. AA AA | C succeeded
               +2m          -> .. BB AA AA AA | A resizing""",
        ),
        "it does not move where it can have no more than beside what it has": (
            "r1/n1:AA r1/n2:.. r2/n3:.. r2/n4:.. A,from=1,to=3,time=9h,in=rack,must",
            "",
            "+5m -> AA AA .. .. | A resizing",
        ),
        "it starts in the rack where it can have most": (
            "r1/n1:.. r1/n2:BB r2/n3:.. r2/n4:.. B,time=9h",
            "",
            "A:1x2,to=3,time=9h,in=rack,must -> .. BB AA AA",
        ),
        "a node that it moves to is lost": (
            "r1/n1:AA r1/n2:BB r2/n4:.. r2/n5:.. A,from=1,to=3,time=9h,in=rack,must B,time=9h",
            "",
            """+5m     -> AA BB AA AA | A resizing
               lose n5 -> AA BB AA ..x | A resizing
               gone A  -> .. BB AA ..x""",
        ),
        "it keeps to the GPU type that it has": (
            "n1:BB,h100 n2:..,a100 n3:CC,a100 n4:..,h100 B,time=9h C,time=9h",
            "",
            """A:1x2a100,else=h100,to=4,time=9h -> BB AA CC ..
               up A; +5m; done B; done C        -> .. AA AA .. | A resizing, B succeeded, C succeeded""",
        ),
    },
    policy="dynamic",
)

test_nodes_taken_away = scenarios(
    {
        "without a drained node it goes on with the others, and grows back when the node is there again": (
            "n1:AA n2:AA n3:AA A,from=1,to=3,time=9h,save",
            "",
            """step A; drain n2           -> AA AA# AA | A resizing
               gone A                     -> AA ..# AA
               up A; +5m; uncordon n2     -> AA AA AA | A resizing
               gone A                     -> AA AA AA""",
        ),
        "two nodes are drained at once": (
            "n1:AA n2:AA n3:AA A,from=1,to=3,time=9h",
            "",
            """drain n1; drain n3 -> AA# AA AA# | A resizing
               gone A             -> ..# AA ..#""",
        ),
        "at its minimum it queues again": (
            "n1:AA n2:AA A,from=2,to=3,time=9h",
            "",
            "drain n2 -> AA AA# | A requeueing",
        ),
        "maintenance of a node": (
            "n1:AA n2:AA n3:AA A,from=1,to=3,time=9h",
            "",
            """maintain n3 0s 1h -> AA AA AA | A resizing
               gone A            -> AA AA ..""",
        ),
        "a node that is taken away with a notice": (
            "n1:AA n2:AA n3:AA A,from=1,to=3,time=9h,save",
            "",
            """spot n1 2m -> AA# AA AA | A resizing
               gone A     -> ..# AA AA""",
        ),
        "it leaves the whole unit of the node": (
            "r1/n1:AA r1/n2:AA r2/n3:AA r2/n4:AA A,from=2,to=4,unit=2,unit_in=rack,time=9h",
            "",
            """drain n2 -> AA AA# AA AA | A resizing
               gone A   -> .. ..# AA AA""",
        ),
    },
    policy="dynamic",
)

test_lost_nodes = scenarios(
    {
        "it goes on with the others at once, and not through the queue": (
            "n1:AA n2:AA n3:AA A,from=2,to=3,time=9h,save",
            "a b",
            """step A; B:2x2,q=b,time=9h -> AA AA AA | B no_capacity
               lose n2                   -> AA ..x AA | A resizing, B no_capacity
               gone A                    -> AA ..x AA | B no_capacity""",
        ),
        "an idle node is its own before a younger gang's": (
            "n1:AA n2:AA n3:.. A,from=1,to=2,time=9h,save",
            "",
            """step A; lose n2; B:1x2,time=9h -> AA ..x BB | A resizing
               gone A                         -> AA ..x BB""",
        ),
        "its next attempt grows into what is idle": (
            "n1:AA n2:AA n3:BB A,from=1,to=2,time=9h,save B,time=9h",
            "",
            """step A; lose n2; done B -> AA ..x .. | A resizing, B succeeded
               gone A                  -> AA ..x AA""",
        ),
        "two of them, one after the other": (
            "n1:AA n2:AA n3:AA n4:AA A,from=2,to=4,time=9h",
            "",
            """lose n2; lose n3 -> AA ..x ..x AA | A resizing
               gone A           -> AA ..x ..x AA""",
        ),
        "it leaves the whole unit of the node": (
            "r1/n1:AA r1/n2:AA r2/n3:AA r2/n4:AA A,from=2,to=4,unit=2,unit_in=rack,time=9h",
            "",
            """lose n2 -> AA ..x AA AA | A resizing
               gone A  -> .. ..x AA AA""",
        ),
        "it does not start again on one that is closed": (
            "n1:AA n2:AA n3:AA A,from=1,to=3,time=9h",
            "",
            """cordon n2; lose n1 -> ..x AA# AA | A resizing
               gone A             -> ..x ..# AA""",
        ),
        "at its minimum it queues again": (
            "n1:AA n2:AA A,from=2,to=3,time=9h",
            "",
            "lose n2 -> AA ..x | A requeueing",
        ),
    },
    policy="dynamic",
)

test_scale = scenarios(
    {
        "it gives up nodes at once, and takes no more than it was asked for": (
            "n1:AA n2:AA n3:AA A,from=1,to=3,time=9h,save",
            "",
            """scale A 1 -> AA AA AA | A resizing
               gone A    -> AA .. ..
               up A; +1h -> AA .. ..
               scale A 2 -> AA AA .. | A resizing
               gone A    -> AA AA ..""",
        ),
        "it finishes while it is resized, and gets nothing more": (
            "n1:AA n2:.. n3:.. A,from=1,to=3,time=9h,save",
            "",
            """scale A 2 -> AA AA .. | A resizing
               done A    -> .. .. .. | A succeeded""",
        ),
        "it keeps the nodes that are next to each other": (
            "r1/n1:AA r1/n2:BB r2/n3:AA r2/n4:AA A,from=1,to=3,time=9h B,time=9h",
            "",
            """scale A 2 -> AA BB AA AA | A resizing
               gone A    -> .. BB AA AA""",
        ),
        "it gets more nodes as soon as they are idle, though it has just started": (
            "n1:AA n2:BB n3:BB A,from=1,to=3,time=9h B,time=9h",
            "",
            """scale A 3 -> AA BB BB
               done B    -> AA AA AA | A resizing, B succeeded""",
        ),
        "asked for less while it is resized, it starts with that, and what it does not take is free": (
            "n1:AA n2:.. n3:.. A,from=1,to=3,time=9h,save",
            "",
            """scale A 3      -> AA AA AA | A resizing
               B:2x2,time=9h  -> AA AA AA | A resizing, B no_capacity
               +1s; scale A 1 -> AA AA AA | A resizing, B no_capacity
               gone A         -> AA BB BB""",
        ),
        "asked for more while it is resized, it starts with that": (
            "n1:AA n2:.. n3:.. A,from=1,to=3,time=9h,save",
            "",
            """scale A 2      -> AA AA .. | A resizing
               +1s; scale A 3 -> AA AA .. | A resizing
               gone A         -> AA AA AA""",
        ),
    },
    policy="dynamic",
)

RESIZED = "n1:AA n2:.. n3:BB A,from=1,to=2,time=9h,save B,time=9h"
test_interrupted_resizes = scenarios(
    {
        "a new node that is lost: it goes on with what it had": (
            RESIZED,
            "",
            """+5m     -> AA AA BB | A resizing
               lose n2 -> AA ..x BB | A resizing
               gone A  -> AA ..x BB""",
        ),
        "a node that it keeps is lost": (
            RESIZED,
            "",
            """+5m     -> AA AA BB | A resizing
               lose n1 -> ..x AA BB""",
        ),
        "all that it is to have is lost: it waits for its minimum again, with its place in the queue": (
            RESIZED,
            "",
            """+5m              -> AA AA BB | A resizing
               lose n2; lose n1 -> ..x ..x BB | A no_capacity
               return n1        -> AA ..x BB""",
        ),
        "a new node that is drained": (
            RESIZED,
            "",
            """+5m      -> AA AA BB | A resizing
               drain n2 -> AA ..# BB | A requeueing
               gone A   -> AA ..# BB""",
        ),
        "a stop while it is resized": (
            RESIZED,
            "",
            """+5m    -> AA AA BB | A resizing
               stop A -> AA .. BB | A stopping
               gone A -> .. .. BB | A stopped""",
        ),
        "a stop after it has left, and before it starts again": (
            RESIZED,
            "",
            """+5m            -> AA AA BB | A resizing
               gone A; stop A -> .. .. BB | A stopped""",
        ),
        "suspended while it is resized": (
            RESIZED,
            "",
            """+5m       -> AA AA BB | A resizing
               suspend A -> AA .. BB | A suspending
               gone A    -> .. .. BB | A suspended
               resume A  -> AA AA BB""",
        ),
        "a process that fails while it is resized has no consequence": (
            RESIZED,
            "",
            """+5m     -> AA AA BB | A resizing
               fails A -> AA AA BB | A resizing
               gone A  -> AA AA BB""",
        ),
        "a resized gang that fails waits for its minimum": (
            RESIZED,
            "",
            """+5m          -> AA AA BB | A resizing
               gone A        -> AA AA BB
               up A; step A; fails A -> AA AA BB | A requeueing
               gone A                -> .. .. BB | A backoff
               +1s                   -> AA AA BB""",
        ),
    },
    policy="dynamic",
)


def test_its_gpu_time_is_that_of_the_nodes_that_it_held() -> None:
    film = Film(POLICIES["dynamic"], "n1:AA n2:AA n3:AA A,from=1,to=3,time=9h,save", "")
    film.play(
        """step A; +1h; drain n3; drain n2 -> AA AA# AA# | A resizing
           gone A                          -> AA ..# ..#
           up A; step A; +3h               -> AA ..# ..#"""
    )
    gang = film.state.gangs["A"]
    assert gang.held_node_ms(film.now_ms) == (1 * 3 + 3 * 1) * HOUR_MS
    assert gang.mean_gpu_milli(film.now_ms) == 3_000, "12 GPU-hours in 4 hours"
    film.do("done A")
    ended = project(gang, film.now_ms)
    assert ended.gpu_milli * ended.ledger.held_ms == 12 * HOUR_MS * 1_000
