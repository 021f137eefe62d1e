"""Paths of recorded traces, and good rows of every format."""

import gzip
from pathlib import Path

TRACES = Path(__file__).parents[3] / "shared" / "traces"
"""Beside a checkout where there are any; tests that read them have nothing to do elsewhere."""

GOOD = {
    # format -> the first line of the file, then rows
    "ganger": (
        "name,submitted_ms,duration_ms,gpus,gpu_milli,nodes,gpu_types,priority,x_note",
        "a,0,1000,8,,2,h100|a100,-5,",
        'b,500,,0,250,1,,,"one, two"',
    ),
    "openb": (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time",
        "p0,12000,16384,1,1000,,LS,Running,0,12537496,5",
        "p1,6000,12288,1,460,V100M16|V100M32,LS,Running,427061,12902960,427061",
        "p2,6000,12288,0,0,,LS,Pending,427062,12902960,",
        "p3,6000,12288,8,1000,,BE,Failed,427063,427063,427063",
    ),
    "elasticflow": (
        "job_id,submission_time,duration,num_gpu,num_iteration,model_name,batch_size,deadline",
        "0,1932025,2429,64,45775,resnet50,256,1933904",
        "1,2000581,1532,1,11197,gpt2,128,2002204",
    ),
    "muri": (
        "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,priority",
        "0,1,0,5853661,dqn,128,2868294000,46122000,490,1",
        "1,8,201694000,8787693,dqn,128,4472936000,201694000,509,0",
    ),
    "tiresias": (
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval",
        "0,1,0,606,vgg19,164,30",
        "1,8,30,133,vgg11,147,23",
    ),
    "gavel": (
        "LM (batch size 10)\tpython3 main.py\tlm\t--steps\t1\t134583\t1\tgns\t1\t-1.000000\t1418\t0",
        "CycleGAN\tpython3 main.py --x\tgan\t--num_steps\t1\t143450\t2\tstatic\t1\t-1.000000\t3338.5\t55.25",
    ),
    "swf": (
        "; MaxProcs: 256",
        "1 0 5 100 8 -1 -1 8 3600 -1 1 3 1 -1 1 -1 -1 -1",
        "2 10 -1 -1 -1 -1 512 4 -1 -1 5 -1 1 -1 -1 -1 -1 -1",
    ),
    "sacct": (
        "JobID|User|Partition|Submit|Start|End|Elapsed|Timelimit|NNodes|ReqTRES|State",
        "7|ada|gpu|2026-01-05T10:00:00|2026-01-05T10:05:00|2026-01-05T12:05:00|02:00:00|1-00:00:00|2|gres/gpu=16|X",
        "8_1|ben|gpu|1767607260|Unknown|Unknown|00:00:00|UNLIMITED|1|cpu=2,mem=4G|PENDING",
    ),
}


def write(path: Path, text: str | bytes) -> Path:
    """Write a file, packed if its name ends in .gz."""
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
