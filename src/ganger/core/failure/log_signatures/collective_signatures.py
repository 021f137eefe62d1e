"""Signatures of collective operations and of what ranks meet by: NCCL, gloo, MPI, torch, JAX, TensorFlow, Ray."""

from typing import Final

from ganger.core.failure.failure_classes import NOISE_CLASS, UNKNOWN_CLASS, Depth
from ganger.core.failure.log_signatures.log_signature import LogSignature, rows

_TIMEOUT, _PEER, _NETWORK, _BOOTSTRAP, _MEETING = (
    "nccl_timeout_unknown_cause",
    "peer_connection_lost",
    "nccl_network_error",
    "nccl_bootstrap_network",
    "rendezvous_failure",
)
_NCCL, _TORCH, _DATE = "NCCL", "torch.distributed", "2025-08"

COLLECTIVE_SIGNATURES: Final[tuple[LogSignature, ...]] = (
    *rows(
        _TORCH,
        _DATE,
        (
            "collective_mismatch",
            (
                r"detected mismatch between collectives|mismatch(?:ed)? (?:between )?collective"
                r"|collectives? .*mismatch|inconsistent(?:ly)? (?:collective|tensor shapes? across)"
                r"|collective type mismatch|ranks? .*(?:is"
                r"|are) running (?:a )?(?:different )?collective.*\bbut\b|(?:differing"
                r"|different) collectives|not all ranks (?:joined|called|reached)|mismatched (?:op|shape"
                r"|size|dtype|order)\w* (?:across|between) ranks|message truncated: .*(?:mpi|bcast|reduce)"
                r"|mpi_err_truncate|incompatible tensor shapes.*ranks|gloo.*enforce fail.*(?:size|nbytes)"
                r"|op\.preamble\.length <= op\.nbytes|submitted (?:duplicate|mismatched)"
                r"|mismatched (?:allreduce|allgather|broadcast|data types)"
                r"|sizes do not match across (?:processes|ranks)|message truncated, error stack"
            ),
        ),
    ),
    *rows(
        _TORCH,
        _DATE,
        (
            "hang_device_sync",
            (
                r"watchdog (?:thread )?got stuck|hang blocking the watchdog|hang detected|no progress (?:for"
                r"|in|since)|heartbeat (?:file )?(?:not updated|is stale)|stuck (?:for|in|at) .*(?:step"
                r"|iteration|sync)|(?:training|job|rank|process) (?:seems?|appears?|is) (?:to be )?(?:hung"
                r"|hanging|stuck)|in cu(?:da)?(?:stream|device|event|ctx)\w*synchronize"
                r"|cudamemcpy\w* \(\) from|culaunchkernel \(\) from|(?:synchronize|cudastreamsync\w*"
                r"|_cuda_synchronize) \([^)]*:\d+\)|in \?\? \(\) from \S*libcuda\.so"
                r"|gpu utili[sz]ation .*(?:flat|stuck)"
            ),
        ),
        (
            _TIMEOUT,
            (
                r"watchdog caught collective operation time-?out|collective operation timeout"
                r"|timeout at nccl work|(?:exception|failure) .*detected by watchdog at work"
                r"|failure detected by watchdog|some nccl operations have failed or timed out"
                r"|to avoid data inconsistency|watchdog thread terminated with exception.*(?:timeout"
                r"|timed out)|heartbeat ?monitor timed out"
                r"|(?:received a )?(?:dump signal due to a )?collective timeout"
                r"|observed flight recorder dump signal|nccl (?:communicator )?(?:was aborted on rank"
                r"|timeout)|(?:allreduce|all_reduce|collective|broadcast|allgather|reduce_scatter"
                r"|all_gather) .*tim(?:ed ?out|eout)|monitoredbarrier|timed ?out (?:waiting|after) .*(?:recv"
                r"|send) operation|stall(?:ed)? (?:ranks|tensors|ops)"
                r"|one or more tensors were submitted to be reduced|waiting for (?:remainder of )?(?:ranks"
                r"|subset of ranks)|worknccl\(.*timeout\(ms\)="
            ),
        ),
    ),
    *rows(
        _NCCL,
        _DATE,
        (
            "nccl_invalid_usage",
            (
                r"duplicate gpu detected|ncclinvalidusage|ncclinvalidargument|nccl.*invalid (?:usage"
                r"|argument)|invalid usage|invalid device ordinal|cuda_error_invalid_device"
                r"|using the same (?:gpu|cuda device)|invalid rank requested|barrier using gpu.*(?:unknown"
                r"|hang)|world size .*(?:exceeds|larger than) .*(?:gpus|devices)"
                r"|tensors? must be (?:cuda and dense|contiguous|on a)|mismatched? nccl version"
                r"|nccl version mismatch"
            ),
        ),
        (
            _NETWORK,
            (
                r"got completion (?:from peer .*)?with (?:status|error)|completion with status=\d"
                r"|ibv_wc_\w*err|(?:got async|async) (?:fatal )?event ?:|ib(?:v)?_\w+ failed"
                r"|call to ibv?_\w+ (?:failed|error)|ibv_\w+.*(?:failed|timed out)"
                r"|retry (?:count(?:er)? )?exceeded|work request flushed|local (?:protection"
                r"|qp operation) error|net/(?:ofi|ib|gdr|socket) .*(?:fail|error|timed? ?out|retry)"
                r"|(?:request|rdma) .*completed with error|fi_\w+ .*(?:failed|error)|ofi .*(?:failed|error)"
                r"|ucx +error|ucp_\w+ .*(?:failed|error)|endpoint timeout|port .*(?:state )?(?:changed to|is"
                r"|went) (?:down|init)\b|mlx\d?_?\w*.*(?:link (?:is )?down|cable error|high temperature"
                r"|fatal|module event\[error\])|(?:link_downed|symbol_error|port_rcv_errors"
                r"|local_ack_timeout_err|rnr_nak_retry)|infiniband.*(?:link.*down|error)|(?:roce|rdma|hca"
                r"|ib) (?:link|port|device|nic).*(?:down|flap|fail|error|fatal)|nic (?:link )?(?:is )?down"
                r"|link flap|detected insufficient power on the pcie slot|mlx\w*: .*(?:health poll"
                r"|firmware).*(?:fail|error)|gid.*(?:changed|not found)"
            ),
        ),
    ),
    *rows(
        _NCCL,
        _DATE,
        (
            _BOOTSTRAP,
            (
                r"connect to \S+ (?:failed|returned)|no socket interface|socket(?:start|poll|try"
                r"|progress)?connect|socket(?:bind|listen|accept)\w*.*fail|bootstrap.*(?:fail|no socket"
                r"|error|timed? ?out|refused|could not)|call to (?:connect|bind) .*(?:fail|returned)"
                r"|connectfullmesh|unable to (?:resolve|find) (?:hostname|address for|network interface)"
                r"|network is unreachable|no route to host|host is unreachable|host is down"
                r"|nccl_socket_ifname|gloo_socket_ifname|failed to find .*interface"
                r"|unable to establish .*(?:tcp|connection).*(?:mpi|btl)|btl_tcp\w*.*(?:connect|fail)"
                r"|no such device.*ifname|retr(?:y|ies) .*(?:connect|bootstrap).*exceed"
                r"|exceeded error retry count|ncclcommInitrank.*(?:timed out|fail)"
            ),
        ),
        (_NETWORK, r"ncclsystemerror|unhandled system error|system call \(e\.g\. socket|ncclinternalerror"),
        depth=Depth.NETWORK,
    ),
    *rows(
        _TORCH,
        _DATE,
        (
            _MEETING,
            (
                r"rendezvous\w*(?:timeout|closed|connection|state|graceful\w*)?error|rendezvous .*(?:fail"
                r"|time|clos|error|has been shut)|timed out waiting for clients|\d+/\d+ clients joined"
                r"|client socket has (?:timed out|failed to connect)|tcpstore.*(?:timed? ?out|timeout"
                r"|failed to (?:connect|listen)|refused)|(?:diststore|distnetwork)error"
                r"|wait timeout after .*keys|store .*(?:timed? ?out|timeout)|socket timeout"
                r"|failed to connect to (?:the )?(?:coordinat|master|head|rendezvous)"
                r"|coordination service.*(?:timed? ?out|deadline|unavailable|fail|error)"
                r"|barrier timed out.*tasks|(?:deadline_exceeded|unavailable).*(?:barrier|coordinat"
                r"|rendezvous|task|connect)|could not (?:reach|connect to) (?:the )?(?:master|head"
                r"|coordinator|gcs)|gcs .*(?:unavailable|timed? ?out|fail)|waiting for \d+ (?:more )?(?:node"
                r"|member|worker|agent)s?.*(?:timed? ?out|gave up)|(?:nodes|agents|members) (?:did not"
                r"|failed to) (?:join|check in|arrive)|(?:prte|orte|hydra|pmix|prrte)\w*.*(?:unable|fail"
                r"|error|lost|unreach)|unable to (?:reliably )?start (?:one or more )?daemons"
                r"|daemon .*died unexpectedly|missing (?:ranks|nodes|workers|members)|etcd.*(?:timed? ?out"
                r"|timeout|unavailable)|init_process_group.*timed? ?out|master_addr.*(?:unreach|timed? ?out)"
                r"|the (?:server|client) socket .*(?:cannot|has failed)|world size .*never reached"
            ),
        ),
        (
            _PEER,
            (
                r"connection (?:was )?(?:likely )?(?:reset|closed|aborted|lost)"
                r"|failed to check the \"should dump\" flag|closed (?:the connection )?by (?:peer"
                r"|local ?rank|remote)|reset by peer|broken pipe|socket (?:was )?closed"
                r"|remote process (?:exited|has)|ncclremoteerror|recvvalue failed|failed to (?:recv|send)"
                r"|(?:peer|remote) .*(?:disconnected|died|exited|lost|closed|gone)|another task .*died"
                r"|horovod has been shut ?down|lost connection to|connection refused|mpi_abort"
                r"|\beof\b.*(?:peer|socket|stream removed)|stream removed|actordiederror|(?:worker|actor"
                r"|owner|node) (?:died|crashed|has died)|workercrashederror|process group .*abort"
                r"|nccl communicator was aborted|(?:no|missed) heartbeat|heartbeat.*(?:timed? ?out|missing)"
                r"|unexpected(?:ly)? (?:closed|disconnect)"
            ),
        ),
        depth=Depth.EFFECT,
    ),
    *rows(
        "torch.distributed.elastic",
        _DATE,
        (NOISE_CLASS, r"sending process \d+ closing signal|destroy_process_group|process group has not been destroyed"),
        (UNKNOWN_CLASS, r"childfailederror|failed \(exitcode: ?\d+\)|error_file: ?<n/a>|to enable traceback see"),
        depth=Depth.END,
    ),
)
