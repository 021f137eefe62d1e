"""Definitions of the figures of the report, which are its last section."""

from typing import Final

DEFINITIONS: Final = {
    "completion time (JCT)": "From submission to end. n are the jobs that ended.",
    "wait": "The part of the completion time in which the job did not run, also after a preemption.",
    "95 % interval": (
        "Of a policy with several seeds: it has the mean with 95 % confidence, by Student's t. Differences are taken "
        "seed by seed. Policies whose intervals overlap have no difference beyond the spread, and none is marked best."
    ),
    "\N{PLUS-MINUS SIGN}": "The standard deviation over the seeds.",
    "percentiles": "Elements: p99 is the one at floor(0.99 n) of the sorted values.",
    "slowdown": "Completion time over the job's own duration, shorter ones taken for 10 s or 10 min.",
    "allocated": "GPU time that jobs had, of all GPU time from the first submission to the last end.",
    "occupancy": "Allocated, of what was asked for: with 1 no GPU is idle while a job waits for as many.",
    "Jain's index": "1 where tenants had the same GPU time, and 1/n where one had all.",
    "finish-time fairness": (
        "Completion time over what it would be alone on an equal part of the cluster, one for each job that was there "
        "meanwhile."
    ),
    "quota debt": "What a tenant asked for, was entitled to and did not get; all tenants are entitled to the same.",
    "longest wait": "Uninterrupted, of every job, ended or not.",
    "fragmented GPUs": (
        "What of the idle GPUs is of no use to what is typically asked for (Weng et al., 2023); the largest gang is "
        "the one that had room, with as many GPUs on each of its nodes. Unfit for the oldest job are idle GPUs that "
        "the job that had waited longest could not use."
    ),
    "across switches": "Gangs on nodes of several racks.",
    "GPU-hours moved": "Run before a job went on on other nodes.",
    "goodput, ETTR": (
        "Useful part of the allocated GPU time, and of the time between a job's first start and its end. Lost GPU time "
        "is by cause."
    ),
    "MTTI, MTTR": "Mean time to an interruption of a job, and from it to the next step of work.",
    "cycle": "A scheduling cycle, in processor time: the only figure that differs between equal runs.",
}
