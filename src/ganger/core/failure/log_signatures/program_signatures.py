"""Signatures of programs: Python and its libraries, data, checkpoints, loss; and services that programs call."""

from typing import Final

from ganger.core.failure.log_signatures.log_signature import LogSignature, numbered, rows

_DATE = "2025-08"

ERRNO_CLASSES: Final = {
    5: "shared_storage_error",
    11: "os_resource_limit",
    12: "host_oom_killed",
    13: "permission_denied",
    1: "permission_denied",
    23: "os_resource_limit",
    24: "os_resource_limit",
    26: "python_error_user",
    28: "disk_full",
    30: "permission_denied",
    32: "peer_connection_lost",
    98: "port_in_use",
    101: "nccl_bootstrap_network",
    104: "peer_connection_lost",
    107: "shared_storage_error",
    108: "shared_storage_error",
    110: "peer_connection_lost",
    111: "peer_connection_lost",
    112: "nccl_bootstrap_network",
    113: "nccl_bootstrap_network",
    116: "shared_storage_error",
    121: "shared_storage_error",
    122: "disk_full",
}
"""errno of Linux -> class (errno(3)). A read-only file system is a mount of the user's unless the kernel reports a
fault of the disk."""

HTTP_CLASSES: Final = {
    401: "permission_denied",
    403: "permission_denied",
    404: "python_error_user",
    **dict.fromkeys((408, 409, 425, 429, *range(500, 512), *range(520, 531)), "external_service_error"),
}
"""Status of HTTP -> class (RFC 9110; 520 to 530 of Cloudflare)."""

PROGRAM_SIGNATURES: Final[tuple[LogSignature, ...]] = (
    *rows(
        "the C library, Python",
        _DATE,
        (
            "dns_failure",
            (
                r"name resolution|name or service not known|nodename nor servname|getaddrinfo"
                r"|could not resolve|couldn't resolve|gaierror|nameresolutionerror|failed to resolve"
                r"|lookup \S+(?: on \S+)?: |nxdomain|no address associated with hostname|unknown host"
                r"|unresolvable|dns (?:lookup|resolution|query|server|error)\w* ?.*(?:fail|timed? ?out|error"
                r"|refused)?|hostname .*cannot be resolved"
            ),
        ),
        (
            "port_in_use",
            (
                r"address already in use|eaddrinuse|port \d+ is (?:already )?(?:in use|taken|not available"
                r"|occupied)|bind: .*in use"
            ),
        ),
    ),
    *rows(
        "checkpoint formats of torch, DeepSpeed, Megatron, safetensors, orbax",
        _DATE,
        (
            "disk_full",
            (
                r"no space left|enospc|disk quota exceeded|edquot|storagefull|disk (?:is )?full"
                r"|quota (?:has been )?exceeded|not enough (?:free )?(?:disk )?space|filesystem is full"
                r"|out of disk space|insufficient (?:disk )?(?:space|storage)|exceeded .*quota"
            ),
        ),
        (
            "checkpoint_corrupt",
            (
                r"failed finding central directory|pytorchstreamreader failed|invalid (?:magic number"
                r"|load key)|corrupt\w* (?:check ?point|file.*\.(?:pt|pth|ckpt|bin|safetensors|distcp))"
                r"|(?:check ?point|model file|weights|\.(?:pt|pth|ckpt|bin|distcp"
                r"|safetensors)\b).*(?:corrupt|truncated|incomplete|damaged|unreadable|checksum"
                r"|hash mismatch)|error while deserializing header|headertoolarge|invalidheader"
                r"|metadataincompletebuffer|incompletemetadata|unpicklingerror|pickle data was truncated"
                r"|storage has wrong size|ran out of input|unexpected eof, expected|file might be corrupted"
                r"|file in archive is not in a subdirectory|not a zip archive|checkpoint .*(?:missing"
                r"|not found|does not exist|is invalid).*(?:shard|file|metadata)"
                r"|data ?loss(?:error)?:.*(?:checkpoint|tensor|bundle|sstable|table)|bad magic number"
                r"|cannot find latest .*checkpoint.*(?:complete|valid)"
                r"|latest_checkpointed_iteration.*(?:invalid|empty|missing)|unable to open object .*(?:h\d"
                r"|hdf\d)|unable to (?:synchronously )?open file.*truncated"
            ),
        ),
        (
            "checkpoint_shape_mismatch",
            (
                r"size mismatch for|error\(s\) in loading state_dict|(?:missing"
                r"|unexpected) key\(s\) in state_dict|shape mismatch.*(?:load|checkpoint|param|tensor)"
                r"|(?:checkpoint|state.?dict).*(?:shape|size|dimension|world.?size|parallel).*(?:mismatch"
                r"|differ|match|expected|but|not equal|is not)|checkpoint .*used a (?:dp|tp|pp|tensor"
                r"|pipeline|data).*world size|global shape mismatch|parameter group that doesn't match"
                r"|(?:tensor|pipeline).(?:model.)?parallel.*(?:checkpoint|saved|loaded)|(?:checkpoint|saved"
                r"|loaded).*(?:tensor|pipeline).(?:model.)?parallel|loaded state dict has a different number"
                r"|incompatible ?keys|(?:missing|unexpected) keys? .*(?:checkpoint|load|state)"
                r"|key .*not found in checkpoint|requested (?:shape|sharding).*checkpoint"
            ),
        ),
        (
            "checkpoint_write_failed",
            (
                r"pytorchstreamwriter failed|inline_container|unexpected pos \d|failed to (?:save|write"
                r"|persist|upload|commit|flush)\b.*(?:check ?point|state|shard|\.(?:pt|ckpt|distcp)|model"
                r"|weights)|(?:check ?point|state.?dict) .*(?:save|writ|upload)\w* .*(?:fail|error"
                r"|timed? ?out|abort)|(?:saving|writing|save|write) (?:the |of )?(?:model "
                r"|optimizer )?(?:check ?point|state).*(?:fail|error|timed? ?out|abort)"
                r"|check ?point\w* ?exception|(?:save|write|writer) failed on rank|error while serializing"
                r"|(?:could not|cannot|unable to) (?:save|write) .*(?:check ?point|model|state)"
                r"|async (?:save|checkpoint).*(?:fail|error)|basic_ios::clear: iostream error|iostream error"
                r"|file write failed"
            ),
        ),
    ),
    *rows(
        "training loops: Megatron, DeepSpeed, Lightning, torch, Keras",
        _DATE,
        (
            "loss_nan_or_divergence",
            (
                r"loss(?: is|\w*)?[ =:'\"]+[-+]?(?:nan|inf)\b|(?:lm |train\w* |val\w* )?loss.{0,12}\b(?:nan"
                r"|infinite|diverg|explod)|found (?:nan|inf)|(?:nan|inf)(?:s)? (?:or|and|/) ?(?:inf|nan)"
                r"|grad\w*[ _](?:norm)?.{0,14}\b(?:nan|inf)\b|loss scale (?:is )?(?:already )?(?:at|below"
                r"|reached).*minimum|minimum loss scale|cannot decrease (?:loss )?scale|returned nan values"
                r"|floatingpointerror|non-?finite (?:loss|grad|value)|nan (?:loss|detected|encountered"
                r"|grad\w*|values?)\b|loss (?:spike|diverge|explod|blew up)|diverged|logits? (?:contains?"
                r"|are|is) nan|contains? (?:either )?[`'\"]?(?:nan|inf)\b|gradient(?:s)? .*(?:nan|infinite"
                r"|overflow.*abort)|unstable.*(?:nan|loss)"
            ),
        ),
    ),
    *rows(
        "torch.utils.data",
        _DATE,
        (
            "dataloader_worker_killed",
            (
                r"dataloader worker .*(?:killed|exited unexpectedly|is killed by signal)"
                r"|dataloader'?s? workers? .*out of shared memory|out of shared memory"
                r"|insufficient shared memory|unable to (?:write to file|open shared memory object)"
                r"|/dev/shm.*(?:full|space|too small|limit)|bus error.*(?:shm|shared memory|dataloader)"
                r"|worker process .*(?:dataloader|data loading).*(?:killed|died)|(?:data|dataset"
                r"|prefetch) worker .*(?:killed|died|exited)"
            ),
        ),
    ),
    *rows(
        "data formats",
        _DATE,
        (
            "data_corrupt",
            (
                r"readerror|unicodedecodeerror|codec can't decode|jsondecodeerror|unidentifiedimageerror"
                r"|cannot identify image|truncated file read|image file is truncated"
                r"|unexpected end of (?:data|file|stream)|parquet magic bytes|arrowinvalid|badzipfile"
                r"|not a (?:gzip|zip) file|badgzipfile|end-of-stream marker|crc(?:-?\d+)? (?:check|mismatch"
                r"|error|fail)|corrupt(?:ed)? (?:record|data|shard|sample|image|file|input|block|archive"
                r"|parquet|tar|index)|(?:record|shard|sample|image|tar|tfrecord|parquet|index|mmap"
                r"|dataset).*(?:corrupt|truncated|damaged|malformed|checksum)|data ?loss(?:error)?\b"
                r"|lzmaerror|zlib\.error|zstd.*(?:corrupt|checksum|error)|invalid (?:tar )?header"
                r"|bad (?:tar )?header|empty header|truncated header|premature end of|error parsing (?:json"
                r"|line)|malformed (?:line|record|json|csv)|error tokenizing data|snappy.*corrupt"
                r"|thrift.*(?:deserialize|couldn't)|index file doesn't match expected format"
            ),
        ),
    ),
    *rows(
        "urllib3",
        _DATE,
        ("external_service_error", r"max retries exceeded with url|https?connectionpool\(host"),
    ),
    numbered(
        "errno of Linux",
        "2025-08",
        r"\[errno (?P<number>\d+)\]|\(errno: (?P<errno>\d+) - |os error (?P<os>\d+)\)",
        ERRNO_CLASSES,
    ),
    *rows(
        "the C library",
        _DATE,
        (
            "shared_storage_error",
            (
                r"stale (?:nfs )?file handle|estale|input/output error|\beio\b|nfs: server .*not responding"
                r"|nfs.*(?:timed? ?out|not responding|error|lost)|lustre(?:error)?:|lustre.*(?:evict"
                r"|timed? ?out|error|lost)|transport endpoint is (?:not connected|shutdown)|remote i/o error"
                r"|\bost\b.*(?:inactive|timed? ?out|unavailable)|gpfs|mmfs|beegfs.*(?:error|fail"
                r"|timed? ?out)|ceph.*(?:error|fail|timed? ?out|slow|lost)|fuse.*(?:error|not connected|fail"
                r"|abort)|rpc_wait_bit_killable|nfs\d?_\w+|mount(?:ing)? .*(?:fail|timed? ?out|error|stale"
                r"|refused)|failedmount|(?:shared|network) (?:file ?system|storage).*(?:fail|error"
                r"|timed? ?out|unavail|hang|not respond)|weka\w*.*(?:error|fail|timed? ?out)|(?:efs|fsx"
                r"|filestore|juicefs|alluxio)\b.*(?:error|fail|timed? ?out|not respond)"
            ),
        ),
        (
            "os_resource_limit",
            (
                r"too many open files|emfile|enfile|can't start new thread|resource temporarily unavailable"
                r"|pthread_create|thread creation failed|fork: retry|unable to fork|cannot fork|rlimit_\w+"
                r"|ulimit|received \d+ items of ancdata|inotify.*(?:limit|watch)|max locked memory"
                r"|locked memory limit|memlock|pids? limit|pids\.max|max user processes|nproc limit"
                r"|too many (?:processes|threads)|unable to (?:mmap|create).*thread"
                r"|file descriptors?.*(?:limit|exhaust)|cannot allocate memory.*(?:ibv|reg_mr|thread)"
                r"|ibv_reg_mr.*cannot allocate|vm\.max_map_count|no locks available"
                r"|thread .*could not be created|resource limit"
            ),
        ),
        (
            "permission_denied",
            (
                r"permission ?denied|eacces|\beperm\b|operation not permitted|access ?denied|not authorized"
                r"|unauthorized|forbidden|read-only file ?system|\berofs\b|gatedrepo|gated repo"
                r"|restricted and you are not in|no credentials|nocredentials|unable to locate credentials"
                r"|expiredtoken|expired token|invalidaccesskey|authentication (?:failed|required|error)"
                r"|invalid (?:api key|credentials|token)|must be authenticated|publickey"
                r"|host key verification failed|login required|invalid username or password"
            ),
        ),
    ),
    numbered(
        "HTTP",
        "2025-08",
        (
            r"(?:status(?:[ _]code)?|\bhttp(?:/[\d.]+)?|(?:client|server|http) ?error"
            r"|\(status code)[ =:'\"(]*(?P<number>\d+)\b|\b(?P<reason>\d+) (?:client|server) error"
            r"|error \((?P<code>\d+)\)"
        ),
        HTTP_CLASSES,
    ),
    *rows(
        "HTTP clients, object stores, hubs, trackers",
        _DATE,
        (
            "external_service_error",
            (
                r"max retries exceeded|maxretryerror|too many requests|service unavailable|bad gateway"
                r"|gateway time-?out|internal server error|slow ?down\b.*(?:request|rate|please)|rate limit"
                r"|ratelimit|hfhubhttperror|localentrynotfound|couldn't (?:connect|reach) .*(?:http|hub"
                r"|server)|(?:https?|s\d|gs|api|hub|wandb|mlflow|comet|neptune|clearml)\b.*(?:readtimeout"
                r"|read timed out|timed? ?out|connecttimeout|connection (?:error|aborted|reset)"
                r"|remotedisconnected|unreachable)|read timed out|readtimeout|connecttimeout|httperror"
                r"|http error|client ?error: .*(?:error|server)|server error\b|endpointconnectionerror"
                r"|could not connect to the endpoint|wandb.*(?:commerror|error|timed? ?out|fail)|commerror"
                r"|sslerror|ssl: |certificate verify failed|proxyerror|tunnel connection failed"
                r"|mlflow\w*exception|requesttimeout|connection to \S+ timed out|incompleteread"
                r"|chunkedencodingerror|remote end closed connection without response|offline mode|botocore"
                r"|(?:license|metadata|token) server.*(?:unreach|timed? ?out|fail|unavail)"
            ),
        ),
    ),
    *rows(
        "Python",
        _DATE,
        (
            "missing_module",
            (
                r"modulenotfounderror|no module named|cannot import name|importerror|undefined symbol"
                r"|cannot open shared object|dll load failed|libraries? not found"
                r"|package .*(?:is not installed|was not found|not found)|requires the .* (?:library"
                r"|package)|distributionnotfound|packagenotfound"
            ),
        ),
        (
            "host_oom_killed",
            (
                r"memoryerror|std::bad_alloc|cannot allocate memory|can't allocate memory|not enough memory"
                r"|out of memory|unable to allocate .*(?:array|memory|bytes)"
            ),
        ),
        (
            "python_error_user",
            (
                r"unrecognized arguments|the following arguments are required|invalid choice: "
                r"|no such option|missing (?:required )?argument|command not found|no such file or directory"
                r"|can't open file|syntax ?error|usage: |not found in path|executable file not found"
                r"|exec format error|key not found in config|mandatory value|missingmandatory"
                r"|configattributeerror|could not override|invalid config|unknown (?:option|argument|flag)"
                r"|ambiguous option|unbound variable"
            ),
        ),
    ),
)
