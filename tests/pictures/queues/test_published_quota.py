"""Published bugs of other schedulers with queues and quotas, by issue number, and what happens here."""

import pytest

from ganger.core.queue_order.fair_division import QueueDemand, divide
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

FAIR = ("priority", "fair_share", "dynamic")


def plays(policy: str, cluster: str, queues: str, film: str) -> None:
    Film(POLICIES[policy], cluster, queues).play(film)


@pytest.mark.parametrize("policy", FAIR)
def test_kueue_4809_a_pending_head_does_not_keep_others_from_borrowing(policy: str) -> None:
    """Let other queues borrow although the head of a strict queue waits.

    In Kueue such a head, which itself had no room, kept the other queues of its cohort from borrowing what its own
    queue left idle.
    """
    plays(
        policy,
        "n1:AAAA.... A,q=p",
        "q=4 p=4",
        "S:1x8,q=q,user=bob B:1x4,q=p -> AAAABBBB | S no_capacity",
    )


@pytest.mark.parametrize("policy", FAIR)
def test_kueue_4809_nor_does_one_that_can_never_start_however_long_it_waits(policy: str) -> None:
    """Reserve nothing for a head that is larger than its queue may ever be, even when it starves."""
    plays(
        policy,
        "n1:AAAA.... A,q=p",
        "q=4,borrow=0 p=4",
        """S:1x8,q=q,user=bob -> AAAA.... | S over_quota
           +9h; B:1x4,q=p     -> AAAABBBB | S over_quota""",
    )


@pytest.mark.parametrize("policy", FAIR)
def test_kueue_8309_a_head_that_waits_for_one_type_blocks_no_other(policy: str) -> None:
    """Start gangs of another GPU type than the one that the head waits for.

    In Kueue a queue in strict order stood still behind a head whose flavor was full.
    """
    plays(
        policy,
        "n1:AAAA,h100 n2:....,a100",
        "",
        """S:1x4h100              -> AAAA .... | S no_capacity
           +9h; C:1x4a100,user=bob -> AAAA CCCC | S no_capacity
           D:1x1,user=cat          -> AAAA CCCC | S no_capacity, D no_capacity""",
    )


@pytest.mark.parametrize("policy", FAIR)
def test_kueue_8309_a_gang_starts_though_small_jobs_never_end(policy: str) -> None:
    """Start a large gang although small jobs arrive without end.

    In Kueue's best-effort order small jobs took every GPU as it became free.
    """
    plays(
        policy,
        "n1:AABB A,user=bob B,user=bob",
        "",
        """S:1x4                     -> AABB | S no_capacity
           +31m; done A; C:1x2,user=cat -> ..BB | S no_capacity, C reserved, A succeeded
           done B                    -> SSSS | C no_capacity, B succeeded""",
    )


@pytest.mark.parametrize("policy", FAIR)
def test_volcano_1096_no_part_of_a_gpu_keeps_whole_ones_idle(policy: str) -> None:
    """Use all GPUs although fair shares are fractions.

    In Volcano two queues of equal weight deserved 1.5 of 3 GPUs each; both had jobs of 2, neither might exceed what it
    deserved, and all GPUs stood idle.
    """
    plays(
        policy,
        "n1:...",
        "a= b=",
        """C:1x2,q=a D:1x2,q=b,user=bob -> CC. | D no_capacity
           done C                       -> DD. | C succeeded""",
    )
    assert divide(3, [QueueDemand(1, 0, 2), QueueDemand(1, 0, 2)]) == [2, 1], "GPUs are shared whole"


@pytest.mark.parametrize("policy", FAIR)
def test_volcano_3725_a_guarantee_that_is_no_multiple_of_a_job_wastes_nothing(policy: str) -> None:
    """Use all GPUs although a configured quota is no multiple of the job size.

    In Volcano a quota of 3 and jobs of 2 left one GPU of the quota idle for ever.
    """
    plays(policy, "n1:......", "a=3 b=3", "C:1x2,q=a D:1x2,q=b,user=bob E:1x2,q=a -> CCDDEE")
