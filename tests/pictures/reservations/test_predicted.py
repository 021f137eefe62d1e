"""Jobs without a time limit: their estimated run time and its effect on reservations."""

from ganger.model.units import MINUTE_MS
from tests.laws.policies import POLICIES
from tests.pictures.film import Film
from tests.pictures.play import scenarios

FREE = "n1:.... n2:...."
HALF_HOURS = "took 1x2 30m 30m 30m 20m 10m"

test_predicted = scenarios(
    {
        "predicted from its user's jobs, it ends before the reserved start": (
            FREE,
            "",
            f"""{HALF_HOURS}; A:1x2,time=1h -> AA.. ....
                S:2x4,time=2h D:1x2 -> AADD .... | S no_capacity
                +30m; done D; +30m; done A -> SSSS SSSS | D succeeded, A succeeded""",
        ),
        "to the minute": (
            FREE,
            "",
            f"""{HALF_HOURS}; A:1x2,time=30m -> AA.. ....
                S:2x4,time=2h D:1x2 -> AADD .... | S no_capacity""",
        ),
        "a minute too long": (
            FREE,
            "",
            f"""{HALF_HOURS}; A:1x2,time=29m -> AA.. ....
                S:2x4,time=2h D:1x2 -> AA.. .... | S no_capacity, D reserved""",
        ),
        "four jobs are too few to predict": (
            FREE,
            "",
            """took 1x2 30m 30m 30m 20m; A:1x2,time=1h -> AA.. ....
               S:2x4,time=2h D:1x2 -> AA.. .... | S no_capacity, D reserved""",
        ),
        "the ninth of ten counts": (
            FREE,
            "",
            """took 1x2 1m 1m 1m 1m 1m 1m 1m 1m 50m 3h; A:1x2,time=1h -> AA.. ....
               S:2x4,time=2h D:1x2 -> AADD .... | S no_capacity""",
        ),
        "jobs of another size if there are too few of its own": (
            FREE,
            "",
            """took 2x4 30m 30m 30m 20m; took 1x2 10m; A:1x2,time=1h -> AA.. ....
               S:2x4,time=2h D:1x2 -> AADD .... | S no_capacity""",
        ),
        "its own size comes first": (
            FREE,
            "",
            f"""{HALF_HOURS}; took 2x4 9h 9h 9h 9h 9h; A:1x2,time=1h -> AA.. ....
                S:2x4,time=2h D:1x2 -> AADD .... | S no_capacity""",
        ),
        "another user's jobs do not count": (
            FREE,
            "",
            f"""{HALF_HOURS}; A:1x2,time=1h -> AA.. ....
                S:2x4,time=2h,user=bob D:1x2,user=bob -> AA.. .... | S no_capacity, D reserved""",
        ),
        "a failed job does not count": (
            FREE,
            "",
            """took 1x2 30m 30m 30m 20m; E:1x2,max=0 -> EE.. ....
               +5m; fails E; gone E; A:1x2,time=1h -> AA.. .... | E failed
               S:2x4,time=2h D:1x2 -> AA.. .... | S no_capacity, D reserved""",
        ),
        "a job stopped by its limit counts": (
            FREE,
            "",
            """took 1x2 30m 30m 30m 20m; E:1x2,time=10m -> EE.. ....
               +10m -> EE.. .... | E stopping
               gone E; A:1x2,time=1h -> AA.. .... | E stopped
               S:2x4,time=2h D:1x2 -> AADD .... | S no_capacity""",
        ),
        "the forecast of a pending job uses the prediction": (
            FREE,
            "",
            """took 1x2 30m 30m 30m 20m; A:1x2,time=1h -> AA.. ....
               S:2x4,time=2h D:1x2 E:1x2,time=10m -> AAEE .... | S no_capacity, D reserved
               +10m; done E -> AADD .... | S no_capacity, E succeeded""",
        ),
        "the reservation uses the prediction": (
            "n1:....",
            "",
            f"""{HALF_HOURS}; D:1x2 -> DD..
                S:1x4,time=2h -> DD.. | S no_capacity
                E:1x1,time=30m F:1x1,time=31m -> DDE. | S no_capacity, F reserved
                +30m; done E; done D -> SSSS | F no_capacity, E succeeded, D succeeded""",
        ),
        "a job past its prediction continues, and is expected to for half of its age": (
            "n1:....",
            "",
            f"""{HALF_HOURS}; D:1x2 -> DD..
                S:1x4,time=2h -> DD.. | S no_capacity
                +30m -> DD.. | S no_capacity
                E:1x1,time=15m F:1x1,time=16m -> DDE. | S no_capacity, F reserved
                +15m; done E -> DDF. | S no_capacity, E succeeded
                G:1x1,time=22m H:1x1,time=23m -> DDFG | S no_capacity, H no_capacity
                +16m; done F -> DD.G | S no_capacity, H reserved, F succeeded
                +4m; done G; done D -> SSSS | H no_capacity, G succeeded, D succeeded""",
        ),
        "after a wrong prediction no other is used": (
            "n1:.... n2:....",
            "",
            f"""{HALF_HOURS}; D:1x2 A:1x4,time=2h -> DD.. AAAA
                S:2x4,time=2h B:1x1 -> DDB. AAAA | S no_capacity
                +2h; done B -> DD.. AAAA | A stopping, S no_capacity, B succeeded
                C:1x2 E:1x2,time=10m -> DDEE AAAA | A stopping, S no_capacity, C no_capacity""",
        ),
        "an array, predicted by its first elements": (
            FREE,
            "",
            """A:1x2,time=1h C:1x1,array=6%1 -> AAC. .... | C array_limit
               S:2x4,time=2h -> AAC. .... | C array_limit, S no_capacity""",
        ),
        "no prediction lets a job start before maintenance": (
            "n1:....",
            "",
            f"""{HALF_HOURS}; maintain n1 5h 1h; D:1x2 E:1x1,time=30m -> E... | D maintenance
                +6h; done E -> DD.. | E succeeded""",
        ),
        "nor does it get such a reservation": (
            "n1:.... n2:....",
            "",
            f"""{HALF_HOURS}; maintain n1 5h 1h; A:1x4,time=1h B:1x4,time=2h -> AAAA BBBB
                D:1x4 -> AAAA BBBB | D no_capacity
                +1h; done A -> .... BBBB | D maintenance, A succeeded
                +1h; done B -> .... DDDD | B succeeded""",
        ),
    },
    policy="dynamic",
)


def test_what_is_predicted_is_marked_and_says_from_what() -> None:
    film = Film(POLICIES["dynamic"], "n1:....", "")
    film.play(f"{HALF_HOURS}; D:1x2 -> DD..\n +10m; S:1x4 -> DD.. | S no_capacity")
    explanation = film.explanation("S")
    assert explanation.predicted == (
        "S is expected to run for 30m 00s, predicted from the last 5 jobs of ann",
        "D is expected to end in 20m 00s, predicted from the last 5 jobs of ann like it",
    )
    assert explanation.domains == (
        "cluster: 0 of 1 nodes have 4 free GPUs, 4 free CPUs; D (predicted to end in 20m 00s)",
    )
    assert explanation.reserved_start_ms == explanation.earliest_ms == film.now_ms + 20 * MINUTE_MS
    film.play("+20m -> DD.. | S no_capacity")
    longer = "D is expected to end in 15m 00s, longer than the last 5 jobs of ann like it"
    assert film.explanation("S").predicted[1] == longer
