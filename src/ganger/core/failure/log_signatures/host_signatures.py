"""Signatures of the host and the platform: kernel, disks, OOM killer, signals, Slurm, Kubernetes, image registries."""

from typing import Final

from ganger.core.failure.failure_classes import NOISE_CLASS, UNKNOWN_CLASS, Depth
from ganger.core.failure.log_signatures.log_signature import LogSignature, numbered, rows

_DATE = "2025-08"
_KILL, _CRASH, _STOP, _CANCEL = (
    "host_oom_or_external_kill",
    "process_segfault",
    "preempted_or_sigterm",
    "user_cancelled",
)
SIGNAL_CLASSES: Final = {
    1: _CANCEL,
    2: _CANCEL,
    3: _CANCEL,
    4: _CRASH,
    5: _CRASH,
    6: _CRASH,
    7: _CRASH,
    8: _CRASH,
    9: _KILL,
    10: _STOP,
    11: _CRASH,
    12: _STOP,
    15: _STOP,
}
"""Signal -> class, for the end of a process about which nothing else is known (signal(7))."""
_SIGNAL: Final = (
    r"(?:with|by|on|from|of) signal:? (?P<number>\d+)|exit ?code *: *-(?P<code>\d+)|signal:? (?P<plain>\d+) \(sig"
)
_EXIT: Final = (
    r"exit(?:ed)?(?: with)?(?: non-zero)?(?: exit)?[ _]?(?:code|status)s?\W{0,4}(?P<number>\d+)"
    r"|returned? (?:code|exit code|non-zero exit status) (?P<other>\d+)"
    r"|status=(?P<plain>\d+)/\w+"
)
_CRASHES: Final = dict.fromkeys((4, 5, 7, 8, 11), _CRASH)
SIGNAL_DEPTHS: Final = (
    (_CRASHES, Depth.ERROR),
    ({9: _KILL}, Depth.NETWORK),
    ({6: _CRASH} | {number: name for number, name in SIGNAL_CLASSES.items() if name in (_CANCEL, _STOP)}, Depth.END),
)
"""A crash or a kill explains the errors of connections to it; an abort or a termination rather follows from them."""
_EXIT_DEPTHS: Final = (
    *(({128 + number: name for number, name in classes.items()}, depth) for classes, depth in SIGNAL_DEPTHS),
    ({1: UNKNOWN_CLASS, 2: "python_error_user", 126: "permission_denied", 127: "python_error_user"}, Depth.END),
)
"""A shell reports signal N as 128 + N."""

PLATFORM_SIGNATURES: Final[tuple[LogSignature, ...]] = (
    *rows(
        "Slurm, PBS, LSF, Kubernetes",
        _DATE,
        (
            "time_limit",
            (
                r"due to time limit|walltime|wall.?clock (?:limit|time)|time limit (?:exceeded|reached)"
                r"|exceeded (?:its |the )?(?:time|wall\w*|run) ?(?:limit|time)|term_runlimit|run.?limit"
                r"|activedeadlineseconds|deadlineexceeded\b.*(?:job|pod)"
                r"|job was active (?:on the node )?longer|(?:job|pod).*deadlineexceeded|time is up"
                r"|reached (?:the )?(?:max(?:imum)?|time) (?:run ?time|limit)|timelimit|max(?:imum)? (?:run"
                r"|wall) ?time"
            ),
        ),
        (
            "node_lost",
            (
                r"due to node ?fail|node_fail|node failure|nodelost|node ?(?:status is now: |is |became "
                r"|condition )?(?:node)?not ?ready|nodenotready|kubelet stopped posting"
                r"|node.kubernetes.io/(?:unreachable|not-ready)|node (?:is )?(?:unreachable|not responding"
                r"|down|lost|gone|rebooted|shut ?down|dead)|nodes? \S+ (?:not responding|down)"
                r"|lost (?:contact|communication|connection) (?:with|to) (?:the )?node"
                r"|no heartbeat from (?:node|host|agent)|node \S+ (?:has )?(?:disappeared|vanished"
                r"|unexpectedly rebooted|lost)|unexpectedly rebooted|instance (?:was )?(?:terminated|stopped"
                r"|deleted) unexpectedly|host .*(?:unreachable|is down)|machine check|kernel panic|mce: "
                r"|pod .*(?:deleted|lost).*node|taintmanagereviction|(?:srun|slurm\w*): .*node failure"
            ),
        ),
        (
            _STOP,
            (
                r"due to (?:preempt|job requeue)|preempt(?:ed|ing|ion)|spot (?:instance|interruption|reclaim"
                r"|vm|node)|instance-action|scheduled event|maintenance (?:event|window|notice)|reclaim(?:ed"
                r"|ing)?\b|being (?:terminated|reclaimed)|rebalance recommendation|interruption (?:notice"
                r"|warning)|requeue(?:d|ing)? .*(?:preempt|higher)|higher.priority|disruptiontarget"
                r"|draining (?:node|for)|evicted by the (?:scheduler|autoscaler)|scale ?down"
            ),
        ),
        (
            "pod_evicted_node_pressure",
            (
                r"\bevicted\b|the node was low on resource|diskpressure|memorypressure|pidpressure"
                r"|ephemeral.?storage|exceeds the total limit of containers|evictionthreshold|node ?pressure"
                r"|usage of emptydir|threshold (?:quantity|met)"
            ),
        ),
        (
            "image_pull_failure",
            (
                r"errimagepull|imagepullbackoff|failed to (?:pull|resolve|fetch|import|extract"
                r"|unpack).*(?:image|reference|manifest|layer|docker|oci|registry)|manifest (?:unknown"
                r"|for .* not found)|toomanyrequests|pull access denied|pull rate limit"
                r"|back-off pulling image|invalidimagename|errimageneverpull|no matching manifest"
                r"|registry.*(?:unavail|timed? ?out|unauthorized|refused|denied|error)|error (?:pulling"
                r"|response from daemon).*(?:image|manifest|pull|registry)|pyxis: .*(?:fail|error|import)"
                r"|enroot.*(?:fail|error)|unable to (?:pull|handle) (?:docker|image|oci)|(?:pull"
                r"|get(?:ting)?) (?:the )?image .*(?:fail|error|time)|image .*(?:not found"
                r"|could not be pulled|pull fail)"
            ),
        ),
    ),
    *rows(
        "Linux kernel, cgroups, Kubernetes, Slurm",
        _DATE,
        (
            "host_oom_killed",
            (
                r"oom.?kill|invoked oom-killer|out of memory: (?:kill|process)|memory cgroup out of memory"
                r"|killed process \d+|oomkilled|oom_kill\b|oom_reaper|exceeded (?:job |step )?memory limit"
                r"|memory limit (?:exceeded|reached)|out.of.memory.handler|oom event|running low on memory"
                r"|outofmemorykiller|container .*memory limit|task_memcg|term_memlimit"
                r"|mem(?:ory)? usage .*(?:exceed|limit.*kill)"
            ),
        ),
        (
            "local_disk_failure",
            (
                r"nvme\w*.*(?:timeout|timed out|reset controller|i/o error|device not ready|removing after"
                r"|frozen|abort status|controller is down)|i/o error, dev|blk_update_request"
                r"|buffer i/o error|medium error|remounting filesystem read-only|ext\d?-fs (?:error"
                r"|\(\S+\): .*(?:error|abort))|xfs \(\S+\): .*(?:i/o error|corrupt|shutting down|shutdown)"
                r"|btrfs.*(?:error|corrupt)|smart .*(?:fail|error)|unrecovered read error|media error"
                r"|aborting journal|jbd\d?: |sd\w: .*(?:error|sense key)|device offlined"
                r"|critical target error|journal has aborted|raid.*(?:degraded|fail)"
                r"|ata\d.*(?:failed command|exception|hard resetting)"
            ),
        ),
        ("shared_storage_error", r"nfs: |task \S+:\d+ blocked for more than|lustre"),
        ("hang_device_sync", r"soft lockup|hard lockup|rcu.*(?:stall|self-detected)|hung task|blocked for more than"),
    ),
)

PROCESS_SIGNATURES: Final[tuple[LogSignature, ...]] = (
    *rows(
        "Linux kernel, the C library, Python's faulthandler",
        _DATE,
        (
            _CRASH,
            (
                r"segfault at|segmentation fault|sigsegv|sigbus|sigill|sigfpe|general protection"
                r"|trap invalid opcode|traps: |double free|free\(\): |malloc\(\): |malloc_consolidate"
                r"|corrupted size|munmap_chunk|invalid pointer|stack smashing|illegal instruction"
                r"|\bbus error|fatal python error|buffer overflow detected|heap corruption"
                r"|floating point exception|invalid next size|corrupted (?:double|unsorted)|stack overflow"
                r"|pure virtual method|access violation"
            ),
        ),
    ),
    *rows(
        "signals",
        _DATE,
        (
            _CANCEL,
            (
                r"cancell?ed (?:at|by)\b(?!.*due to task failure)|cancell?ed by (?:user|uid|admin)|scancel"
                r"|keyboardinterrupt|sigint\b|sighup\b|\^c\b|interrupted by (?:the )?user|ctrl-c"
                r"|user (?:requested|interrupt|abort|cancel|stop)|(?:killed|stopped|deleted|cancell?ed"
                r"|terminated) by (?:the )?(?:user|admin|owner|operator)|term_owner|term_admin"
                r"|cancellation requested|manual(?:ly)? (?:stop|cancel|abort)|job .*(?:has been"
                r"|was) (?:cancell?ed|deleted)"
            ),
        ),
        (
            _STOP,
            (
                r"sigterm|signals\.sigterm|due to preempt|caught termination|received (?:a )?(?:termination"
                r"|shutdown) (?:signal|notice|request)|graceful(?:ly)? (?:shut|terminat|stop)"
                r"|termination signal|time to checkpoint and exit|sigusr[^\w]"
            ),
        ),
        (_CRASH, r"\baborted\b|core dumped|dumped core|sigabrt|terminate called"),
        depth=Depth.END,
    ),
    *rows(
        "signals",
        _DATE,
        (_KILL, r"sigkill|exit reason: killed|\bkilled$|: killed\b|\bkilled +(?:python|torchrun|bash|/)"),
        depth=Depth.NETWORK,
    ),
    numbered(
        "torch.distributed.elastic",
        _DATE,
        r"(?:process \d+ got|received|caught) signal:? (?P<number>\d+)",
        SIGNAL_CLASSES,
        depth=Depth.FACT,
    ),
    *(numbered("torchrun, mpirun, srun", _DATE, _SIGNAL, classes, depth=depth) for classes, depth in SIGNAL_DEPTHS),
    *(
        numbered("torchrun, mpirun, srun, systemd", _DATE, _EXIT, classes, depth=depth)
        for classes, depth in _EXIT_DEPTHS
    ),
    *rows(
        "noise of torch, NCCL, TensorFlow and the kernel",
        _DATE,
        (
            NOISE_CLASS,
            (
                r"perf: interrupt took too long|futurewarning|system being overloaded|userwarning"
                r"|deprecat\w*warning|omp_num_threads|nccl_avoid_record_streams"
                r"|could not find:? \S*libnccl-net|plugin.*not found.*using internal|no plugin found"
                r"|tf-trt warning|unable to register cu\w+ factory|hardware_concurrency|non-fatal"
                r"|will be ignored|harmless|cpu frequency scaling|setlocale: lc_all|corrected (?:error"
                r"|hardware)|hwmon|acpi (?:error|warning)|retrying in|will retry|retry(?:ing)? \(?\d+ ?(?:/"
                r"|of) ?\d+"
            ),
        ),
        depth=Depth.NOISE,
    ),
)
