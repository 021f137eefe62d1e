"""Errors of a spec: each with its place, what is legal, and what was probably meant."""

from typing import Any

import pytest

from ganger.errors import RequestError
from ganger.spec import parse_spec, spec_from_dict


def errors(text: str | bytes) -> list[str]:
    with pytest.raises(RequestError) as refused:
        parse_spec(text, "job.yaml")
    assert (refused.value.code, refused.value.status) == ("bad_spec", 409)
    assert refused.value.next
    return refused.value.detail.splitlines()


MANY = [f"a{number}" for number in range(33)]
ONE = {
    # what is written on line 2, after `run: x` -> place and parts of the only error
    "nodes: two": "2:8 'two' is not a number of nodes|from 1 to 65536",
    "nodes: '4'": "2:8 write a whole number from 1 to 65536 without quotes",
    "nodes: 0": "2:8 0 is not a number of nodes",
    "nodes: 65537": "2:8 65537 is not",
    "nodes: true": "2:8 true is not a number",
    "nodes: 2.0": "2:8 2.0 is not",
    "nodes: [1]": "2:8 [1] is not",
    "nodes:": "2:1 nodes: nothing is not a number of nodes",
    "node: 2": "2:1 node is not a valid key|valid keys: name, queue|did you mean 'nodes'?",
    "Nodes: 2": "2:1 did you mean 'nodes'?",
    "nproc-per-node: 2": "2:1 did you mean 'nproc_per_node'?",
    "gpus: 2": "2:1 did you mean 'resources.gpu'?",
    "memory: 2": "2:1 did you mean 'resources.memory'?",
    "num_nodes: 2": "2:1 num_nodes is not a valid key: write nodes",
    "time: 4:00:00": "2:1 did you mean 'limits.time'?",
    "resources: {accelerators: H100:8}": "2:13 resources.accelerators is not a valid key: write resources.gpu",
    "workdir: .": "2:1 workdir is not a valid key: write code",
    "zzz: 2": "2:1 zzz is not a valid key",
    "counts: 2": "2:1 counts is not a valid key|did you mean 'resources.gpu.count'?",
    "resources: {rdma/hca: 1}": "2:13 an extended resource: write resources.extended: {rdma/hca: 1}",
    "resources: {extended: {rdma: 1}}": "2:24 'rdma' is not an extended resource: write DOMAIN/NAME, for instance rd",
    "resources: {extended: {rdma/hca: 0}}": "2:34 0 is not a number of units, such as 8 or 50Gi: write",
    "resources: {extended: {ephemeral-storage: 0Gi}}": "2:43 '0Gi' is not a number of units",
    "resources: {extended: {ephemeral-storage: 65Ti}}": "2:43 '65Ti' is not a number of units",
    "resources: {extended: {ephemeral-storage: 5 Gi}}": "2:43 '5 Gi' is not a number of units",
    "resources: {extended: {storage: 5Gi}}": "2:24 'storage' is not an extended resource",
    "resources: {extended: {rdma/hca: 1.5}}": "2:34 1.5 is not a number of units",
    "resources: {extended: {x.kubernetes.io/y: 1}}": "2:24 'x.kubernetes.io/y' is not an extended resource: names of",
    "resources: {extended: [rdma/hca]}": "2:23 a mapping, one `NAME: value` a line",
    "nproc_per_node: many": "2:17 write auto, or a whole number from 1 to 1024",
    "checkpoint: {keep: 0}": "2:20 0 is not a number of checkpoints: write a whole number from 1",
    "checkpoint: {keep: all}": "2:20 'all' is not a number of checkpoints",
    "checkpoint: {keep: 3, keep_every: 0}": "2:35 0 is not a number of steps",
    "checkpoint: {keep: 3, keep_every: 1k}": "2:35 '1k' is not a number of steps",
    "warm: yes please": "2:7 'yes please' is neither true nor false",
    "warm: true": "2:7 only ranks of one command python SCRIPT can be forked, and run: 'x' is not a Python interpreter",
    "limits: {time_min: 2h}": "2:20 limits.time_min: it requires limits.time: write both",
    "limits: {time: 1h, time_min: 2h}": "2:30 limits.time_min: 2h 00m is more than limits.time, 1h 00m",
    "limits: {time: 1h, time_min: 0}": "2:30 0 is not a duration",
    "checkpoint: {keep_every: 100}": "2:14 checkpoint.keep_every: without keep all checkpoints stay: add keep: 3",
    "checkpoint: {every: always}": "2:21 'always' is not a duration",
    "checkpoint: {local: nvme}": "2:21 'nvme' is not an absolute path",
    "checkpoint: {peer: true}\nnodes: 2": "2:14 checkpoint.peer: it copies what is saved on a node: add local:",
    "checkpoint: {local: /n, peer: true}": "2:25 checkpoint.peer: the job has one node, and no other one to copy to",
    "checkpoint: {pattern: out/checkpoint-*}": "2:23 'out/checkpoint-*' is not a name of files: write letters, dig",
    "checkpoint: {pattern: a*b*}": "2:23 'a*b*' is not a name of files: write letters, digits, _.=+@- and one '*'",
    "checkpoint: {dir: /data/ckpt, local: /data/ckpt/}": "2:38 checkpoint.local: /data/ckpt is dir, /data/ckpt: name a",
    "checkpoint: {dir: /data/ckpt, local: /data/ckpt/n}": "2:38 checkpoint.local: /data/ckpt/n is inside dir, /data",
    "checkpoint: {dir: /data/ckpt, local: /data}": "2:38 checkpoint.local: /data contains dir, /data/ckpt",
    "checkpoint: {keeps: 3}": "2:14 did you mean 'keep'?",
    "name: My Job!": "2:7 'My Job!' is not a name|at most 40|for instance 'my-job'",
    "name: 5": "2:7 5 is not a name|for instance '5'",
    f"name: {'a' * 41}": f"2:7 for instance '{'a' * 40}'",
    "name: '!!!'": "2:7 '!!!' is not a name",
    "name: -a": "2:7 for instance 'a'",
    "queue: A/B": "2:8 queue: 'A/B' is not a name",
    "priority: urgent": "2:11 low, normal or high, or a whole number from -1000 to 1000",
    "priority: hihg": "2:11 did you mean 'high'?",
    "priority: 1001": "2:11 1001 is not a priority",
    "framework: pytorch": "2:12 'pytorch' is not a framework|plain|torch|did you mean 'torch'?",
    "framework: {}": "2:12 {} is not a framework",
    "kind: jbo": "2:7 'jbo' is not a kind of work|did you mean 'job'?",
    "kind: [job]": "2:7 ['job'] is not a kind",
    "resources: 8": "2:12 8 is not valid: write a mapping with keys of gpu, cpu, memory",
    "resources: {cpus: 8}": "2:13 resources.cpus is not a valid key|valid keys: gpu, cpu, memory|did you mean 'cpu'?",
    "resources: {gpu: H100}": "2:18 'H100' is not a GPU request|did you mean H100:1?",
    "resources: {gpu: '8'}": "2:18 did you mean 8 without quotes?",
    "resources: {gpu: H100:0}": "2:18 'H100:0' is not a GPU request",
    "resources: {gpu: 8:H100}": "2:18 '8:H100' is not a GPU request|did you mean H100:8?",
    "resources: {gpu: 8xH100}": "2:18 '8xH100' is not a GPU request|did you mean H100:8?",
    "resources: {gpu: 4 X A100-80GB}": "2:18 '4 X A100-80GB' is not a GPU request|did you mean A100-80GB:4?",
    "resources: {gpu: gb200x4}": "2:18 'gb200x4' is not a GPU request|did you mean gb200:4?",
    "resources: {gpu: 1025}": "2:18 resources.gpu.count: 1025 is not a number of GPUs",
    "resources: {gpu: 0.5}": "2:18 0.5 is not a GPU request",
    "resources: {gpu: {type: H100}}": "2:18 a GPU type without a number",
    "resources: {gpu: {cuont: 1}}": "2:19 did you mean 'count'?",
    "resources: {gpu: {count: 1, type: 'a b'}}": "2:35 'a b' is not a GPU type",
    "resources: {cpu: many}": "2:18 'many' is not a number of CPUs: write 2, 0.5 or 500m",
    "resources: {cpu: -1}": "2:18 -1 is not",
    "resources: {cpu: .nan}": "2:18 nan is not",
    "resources: {cpu: 1e9}": "2:18 is not a number of CPUs",
    "resources: {memory: 1GiB!}": "2:21 '1GiB!' is not a size|512Mi",
    "resources: {memory: 65Ti}": "2:21 up to 64Ti",
    "resources: {memory: yes}": "2:21 'yes' is not a size",
    "resources: {memory: true}": "2:21 true is not a size",
    "limits: {time: 1:30}": "2:16 '1:30' is not a duration|90s, 30m, 1h30m",
    "limits: {time: 0}": "2:16 more than 0",
    "limits: {time: 10000d}": "2:16 at most 3650d",
    "limits: {time: .inf}": "2:16 inf is not a duration",
    f"limits: {{time: {'9' * 5000}}}": "2:16 is not a number that can be read",
    f"limits: {{time: '{'9' * 5000}'}}": "2:16 is not a duration",
    "limits: {tiem: 1h}": "2:10 did you mean 'time'?",
    "checkpoint: ckpt": "2:13 'ckpt' is not valid: write a mapping with keys of dir, every",
    "checkpoint:": "2:1 checkpoint: nothing is not valid",
    "checkpoint: {signal: USR1}": "2:22 SIGUSR1, SIGUSR2|did you mean 'SIGUSR1'?",
    "checkpoint: {signal: SIGKILL}": "2:22 is not a signal that a script can wait for",
    "checkpoint: {resume_from: Bert}": "2:27 'Bert' is neither JOB nor JOB:STEP: write a job's name or id",
    "checkpoint: {resume_from: 'bert-7f3:last'}": "2:27 is neither JOB nor JOB:STEP",
    "checkpoint: {dir: ~/ckpt}": "2:19 '~' and '$' are a shell's",
    "checkpoint: {dir: $HOME}": "2:19 write the path out",
    "checkpoint: {dir: ''}": "2:19 '' is not a directory",
    "retry: {max: -1}": "2:14 from 0 to 1000",
    "retry: {backoff: 5m..10s}": "2:18 the second is not shorter than the first",
    "retry: {backoff: soon}": "2:18 'soon' is not a pause: write 10s, or 10s..5m",
    "retry: {backoff: ..5m}": "2:18 is not a pause",
    "image: a b": "2:8 'a b' is not a container image: write its name",
    "setup: 5": "2:8 5 is not a command",
    "setup: ' '": "2:8 is not a command: write a shell line",
    "code: 5": "2:7 5 is not a directory",
    "env: [A]": "2:6 write a mapping, one `NAME: value` a line",
    "env: {1A: x}": "2:7 '1A' is not the name of a variable",
    "env: {a-b: x}": "2:7 'a-b' is not the name",
    "env: {A: [1]}": "2:10 env.A: [1] is not the value of a variable",
    "env: {GANGER_X: 1}": "2:7 env.GANGER_X: names that begin with GANGER_ are reserved",
    "env: {LOCAL_RANK: 1}": "2:7 env.LOCAL_RANK: ganger sets it for framework plain",
    'env: {A: "\\0"}': "2:10 has a character that no program can be given",
    'env: {A: "\\ud800"}': "2:10 half of a pair",
    f"env: {{A: {'x' * 131_072}}}": "2:10 longer than a variable can be|128 KiB",
    "env: {1A: }": "2:7 '1A' is not the name of a variable",
    "env: {GANGER_X: }": "2:7 names that begin with GANGER_ are reserved",
    "roles: [ps]": "2:8 is not valid: write a mapping of names to mappings with keys of count",
    "roles: {ps: 2}": "2:13 roles.ps: 2 is not valid: write a mapping with keys of count",
    "roles: {PS: {}}": "2:9 roles: 'PS' is not a name|for instance 'ps'",
    "roles: {ps: {cuont: 2}}": "2:14 roles.ps.cuont is not a valid key|did you mean 'count'?",
    "roles: {ps: {count: 0}}": "2:21 roles.ps.count: 0 is not a number of processes",
    "roles: {ps: {on_failure: retry}}": "2:26 write restart, fail or ignore",
    "roles: {ps: {resources: {cpus: 1}}}": "2:26 roles.ps.resources.cpus is not a valid key|did you mean 'cpu'?",
    "roles: {ps: {env: {WORLD_SIZE: 1}}}": "2:20 roles.ps.env.WORLD_SIZE: ganger sets it for framework plain",
    "roles: {ps: {run: ''}}": "2:19 roles.ps.run: '' is not a command",
    "stop_when: any": "2:12 'any' is not a way to end: write all or chief",
    "start_order: [ps]": "2:15 start_order: there is no role ps: the roles are worker",
    "start_order: ps": "2:14 'ps' is not a list of roles: write [A, B]",
    "start_order: [worker, worker]": "2:14 'worker' is given twice",
    "array: 0-99%0": "2:8 '0-99%0' is not an array: write 0-99, 1,3,5-9:2, or 0-99%10",
    "array: 9-0": "2:8 '9-0' has no elements: write the lower index first",
    "array: 0-100000": "2:8 has 100001 elements: an array has at most 100000",
    "array: -1": "2:8 -1 is not an array",
    "array: 0-9:0": "2:8 is not an array",
    "array: [0, 1]": "2:8 [0, 1] is not an array",
    "array: 10000000": "2:8 is at most 9999999",
    "array:": "2:1 array: nothing is not an array",
    "after: prep": "2:8 after: 'prep' is not valid: write a list of mappings with keys of job, when",
    "after: [prep]": "2:9 after[0]: 'prep' is not valid: write a mapping with keys of job, when",
    "after: [{when: ended}]": "2:9 after[0].job is missing: write it",
    "after: [{job: A}]": "2:15 after[0].job: 'A' is not a job: write its name, or its id",
    "after: [{job: a, when: failed!}]": "2:24 write succeeded, failed or ended",
    "after: [{job: a}, {job: a}]": "2:25 'a' is given twice",
    "code: {git: x}": "2:13 code.git: 'x' is not the URL of a repository: write https://",
    "code: {gti: x, git: 'file:///a'}": "2:8 code.gti is not a valid key; valid keys: git, ref; did you mean 'git'?",
    "code: {git: 'ext::sh -c id'}": "2:13 is not the URL of a repository",
    "code: {git: --upload-pack=x}": "2:13 is not the URL of a repository",
    "code: {git: 'ssh://-oProxyCommand=x/y'}": "2:13 is not the URL of a repository",
    "code: {git: '-oProxyCommand=x:y'}": "2:13 is not the URL of a repository",
    "code: {git: 'https://me:word@a.b/c'}": "2:13 the URL may have a password or a token in it",
    "code: {git: 'http://a.b/c'}": "2:13 is not the URL of a repository",
    "code: {git: 'file:///a', ref: -x}": "2:31 '-x' is not a branch, a tag or a commit",
    "code: {git: 'file:///a', ref: a..b}": "2:31 is not a branch",
    "code: {git: 'file:///a', ref: 'a b'}": "2:31 is not a branch",
    "code: [a]": "2:7 code: ['a'] is not a directory",
    "volumes: {a: /tmp}": "2:10 write a list of mappings with keys of name, path",
    "volumes: [{name: a}]": "2:11 volumes[0].path is missing",
    "volumes: [{name: a, path: b}]": "2:27 'b' is not an absolute path",
    "volumes: [{name: a, path: /b}, {name: a, path: /c}]": "2:39 'a' is given twice: choose another name",
    "secrets: TOKEN": "2:10 'TOKEN' is not a list of variables",
    "secrets: [a-b]": "2:10 'a-b' is not the name of a variable",
    "secrets: [GANGER_X]": "2:11 names that begin with GANGER_ are reserved",
    "secrets: [LOCAL_RANK]": "2:11 ganger sets it for framework plain",
    "secrets: [A, A]": "2:10 'A' is given twice",
    "secrets: [A]\nenv: {A: 1}": "2:11 secrets: A has a value in env",
    "secrets: [A]\nroles: {ps: {env: {A: 1}}}": "2:11 secrets: A has a value in roles.ps.env",
    "params: [a]": "2:9 write a mapping, one `NAME: value` a line",
    "params: {a-b: 1}": "2:10 'a-b' is not the name",
    "params: {a: [1]}": "2:13 params.a: [1] is not the value of a parameter",
    "params: {a: }": "2:10 params.a: nothing is not the value of a parameter",
    "params: {a: '${{ params.b }}'}": "2:13 is not the value of a parameter",
    "params: {lr: 1}\nsetup: echo ${{ params.lrr }}": "3:8 there is no parameter lrr|--param lrr=VALUE|mean 'lr'?",
    "env: {A: '${{params.x}}'}": "2:10 env.A: there is no parameter x: write it under params",
    "env: {A: '${{ param.x }}'}": "2:10 '${{ param.x }}' is not a parameter: write ${{ params.NAME }}",
    "env: {A: '${{ params.a-b }}'}": "2:10 is not a parameter",
    "roles: {ps: {env: {A: '${{ params.x }}'}}}": "2:23 roles.ps.env.A: there is no parameter x",
    "placement: rack": "2:12 write a mapping with keys of topology, mode",
    "placement: {topology: Rack}": "2:23 'Rack' is not a level of the network",
    "placement: {mode: required}": "2:19 placement.mode: required says nothing without a level",
    "placement: {mode: requird, topology: rack}": "2:19 'requird' is not a mode: write preferred or required; did",
    "placement: {strategy: tight}": "2:23 'tight' is not a strategy: write pack, spread or balanced",
    "placement: {sharing: none}": "2:22 'none' is not a way to share nodes",
    "placement: {network: infiniband}": "2:22 'infiniband' is not a network: write ib, roce or tcp, a list of",
    "placement: {network: [rdma]}": "2:22 'rdma' is not a network",
    "placement: {network: [ib, ib]}": "2:22 a network is given twice",
    "placement: {tolerations: [a b]}": "2:26 'a b' is not a taint",
    "placement: {node_selector: {a: 'b c'}}": "2:32 is not the value of a label",
    "placement: {affinity: {required: zone in (a}}": "2:34 is not a label selector: write KEY=VALUE",
    "placement: {affinity: {required: [zone in (a, b)]}}": "2:34 with one ',' between them, in quotes within [ ]",
    "placement: {affinity: {required: 'a=b,, c'}}": "2:34 with one ',' between them",
    "placement: {affinity: {required: ''}}": "2:34 '' is not a label selector",
    "placement: {affinity: {required: []}}": "2:34 an empty list holds for no node",
    "placement: {affinity: {required: [a, a]}}": "2:34 'a' is given twice: remove one",
    "placement: {affinity: {required: 'a, a'}}": "2:34 'a' is given twice: remove one",
    "placement: {affinity: {required: 7}}": "2:34 7 is not a label selector",
    "placement: {affinity: {required: [7]}}": "2:34 7 is not a label selector",
    "placement: {affinity: {required: {zone: a}}}": "2:34 is not a label selector",
    "placement:\n  affinity:\n    required: !old": "4:5 the tag '!old' is not supported: remove it, or put text that",
    "placement: {affinity: {required: cores>many}}": "2:34 'many' is not a whole number: > and < compare with one",
    "placement: {affinity: {required: cores > }}": "2:34 '' is not a whole number",
    "placement: {affinity: {required: a b}}": "2:34 'a b' is not a label expression: write KEY=VALUE",
    "placement: {affinity: {required: a=b=c}}": "2:34 'a=b=c' is not a label expression",
    "placement: {affinity: {required: a in ()}}": "2:34 'a in ()' names no value: write a in (A, B)",
    "placement: {affinity: {required: 'a in (b c)'}}": "2:34 'b c' is not the value of a label",
    "placement: {affinity: {required: -a=b}}": "2:34 '-a' is not the key of a label",
    f"placement: {{affinity: {{required: '{', '.join(MANY)}'}}}}": "2:34 has more than 32 expressions",
    f"placement: {{affinity: {{required: [{', '.join(MANY)}]}}}}": "2:34 a list of more than 32 terms",
    "placement: {affinity: {requird: a}}": "2:24 placement.affinity.requird is not a valid key; valid keys: required",
    "placement: {affinity: zone=a}": "2:23 write a mapping with keys of required, preferred",
    "placement: {affinity: {preferred: a=b}}": "2:35 write a list of mappings with keys of match, weight",
    "placement: {affinity: {preferred: [{weight: 2}]}}": "2:36 placement.affinity.preferred[0].match is missing",
    "placement: {affinity: {preferred: [{match: a, weight: 0}]}}": "2:55 0 is not a weight",
    "placement: {affinity: {preferred: [{match: a, weight: 101}]}}": "2:55 101 is not a weight",
    f"placement: {{affinity: {{preferred: [{{match: {'}, {match: '.join(MANY)}}}]}}}}": "2:35 a list of more than 32",
    "placement: {slices: [{level: rack}]}": "2:22 placement.slices[0]: write nodes or ranks, one of them",
    "placement: {slices: [{nodes: 2}]}": "2:22 placement.slices[0].level is missing",
    "nodes: 3\nplacement: {slices: [{level: rack, nodes: 2}]}": "3:43 2 does not divide the job's 3 nodes",
    "nodes: 2\nnproc_per_node: 4\nplacement: {slices: [{level: rack, ranks: 6}]}": "4:43 6 does not fit the job's 8",
    "placement: {slices: [{level: rack, nodes: 1}]}\nroles: {worker: {}}": "2:21 slices divide the nodes",
    "placement: {slices: {level: rack, nodes: 1}}": "2:21 write a list of mappings with keys of level, nodes, ranks",
    "placement: {slice: {level: rack, nodes: 1}}": "2:13 did you mean 'slices'?",
    "nodes: 8\nplacement: {slices: [{level: rack, nodes: 4}, {level: rack, nodes: 2}]}": "3:55 'rack' is given twice",
    "nodes: 12\nplacement: {slices: [{level: rack, nodes: 6}, {level: nvlink, nodes: 4}]}": (
        "3:70 4 does not divide the 6 nodes of the slice around it: change one"
    ),
    "nodes: 4\nplacement: {slices: [{level: rack, nodes: 2}, {level: nvlink, nodes: 4}]}": "3:70 4 does not divide",
    "nodes: 4\nnproc_per_node: 8\nplacement: {slices: [{level: rack, nodes: 2}, {level: nvlink, ranks: 24}]}": (
        "4:70 24 does not fit the 16 processes of the slice around it: change one of them"
    ),
    "nodes: 4\nplacement: {slices: [{level: rack, nodes: 2}, {level: nvlink}]}": "3:47 write nodes or ranks",
    "nodes: 4\nplacement: {slices: [{level: rack, nodes: 0}]}": "3:43 0 is not a number of nodes",
    "placement: {sharing: whole}\nroles: {ps: {}}": "2:22 placement.sharing: whole is for nodes that are all alike",
    "resources: {gpu: {count: 1, type: []}}": "2:35 an empty list of GPU types",
    "resources: {gpu: {count: 1, type: [H100, h100]}}": "2:35 'h100' is given twice",
    "parallel: 4": "2:11 write a mapping with keys of tp, pp, dp",
    "parallel: {tp: 0}": "2:16 0 is not a number of processes",
    "parallel: {tp: two}": "2:16 'two' is not a number of processes",
    "parallel: {tp: 2}": "2:11 tp 2 x pp 1 is 2, which does not divide the job's 1 process (1 x 1, nodes x",
    "nproc_per_node: 8\nparallel: {tp: 2, pp: 2, dp: 4}": "3:11 tp 2 x pp 2 x dp 4 is 16, and the job has 8 processes",
    "labels: {-a: b}": "2:10 '-a' is not the key of a label",
    "labels: {a..b/c: d}": "2:10 is not the key of a label",
    "labels: {a/b/c: d}": "2:10 is not the key of a label",
    f"labels: {{{'a' * 64}: d}}": "2:10 is not the key of a label: write at most 63",
    "labels: {a: 'b c'}": "2:13 labels.a: 'b c' is not the value of a label",
    f"labels: {{a: {'b' * 64}}}": "2:13 is not the value of a label",
    "labels: [a]": "2:9 write a mapping, one `NAME: value` a line",
    "notes: 5": "2:8 5 cannot be notes",
    f"notes: {'x' * 16_385}": "2:8 at most 16 KiB",
    "retry: {rules: [{do: again}]}": "2:22 write retry, fail or exclude_node",
    "retry: {rules: [{log: x}]}": "2:17 retry.rules[0].do is missing",
    "retry: {rules: [{log: '(', do: fail}]}": "2:23 '(' is not a regular expression",
    "retry: {rules: [{cause: oom, do: fail}]}": "2:25 'oom' is not a cause of a failure: write rank_failed",
    "retry: {rules: [{do: fail}]}": "2:17 retry.rules[0]: it fits everything: write log, cause or both",
    "retry: {rules: {do: fail}}": "2:16 write a list of mappings with keys of log, cause, do",
    "<<: {nodes: 2}": "2:1 '<<' is not supported",
    "? [a]\n: b": "2:3 a key is one word of text",
    "nodes: !foo 2": "2:8 the tag '!foo' is not supported: remove it, or put text that begins with '!' in quotes",
    "nodes: !!int many": "2:8 'many' is not a number",
    "resources: !!set {gpu}": "2:12 the tag|is not supported",
    "run: y": "2:1 'run' is given twice, first on line 1",
    "resources:\n  cpu: 1\n  cpu: 2": "4:3 'cpu' is given twice, first on line 3",
}  # fmt: skip


@pytest.mark.parametrize(("text", "want"), ONE.items(), ids=lambda value: value[:40])
def test_one_error_at_its_place(text: str, want: str) -> None:
    (error,) = errors(f"run: x\n{text}")
    place, _, parts = want.partition(" ")
    assert error.startswith(f"job.yaml:{place}: ")
    for part in parts.split("|"):
        assert part in error


RUNS = {
    "nodes: 1": "1:1 run is missing",
    "roles: {}": "1:1 run is missing",
    "roles: {ps: {}}": "1:9 roles.ps has no command: write run in it, or for the whole job",
    "roles: {ps: {run: x}, chief: {}}": "1:23 roles.chief has no command",
    "roles: {worker: {}}": "1:9 roles.worker has no command",
    "roles: {ps: {run: x}}\nnodes: 2": "2:1 nodes is for workers, and they have no command: write run",
    "roles: {worker: {run: x}}\nnodes: 2": "2:1 nodes: roles.worker replaces it: write roles.worker.count",
    "roles: {ps: {run: x}}\nstop_when: chief": "2:12 stop_when: there is no role chief|the roles are ps",
    "run:": "1:1 run: nothing is not a command",
    "run: []": "1:6 write a list of words",
    "run: ['']": "1:6 the program first",
    "run: [[a]]": "1:6 write a list of words",
    "run: ' '": "1:6 write a shell line, or a list of words",
    "run: 5": "1:6 5 is not a command",
    "run: {a: b}": "1:6 is not a command",
    "[run]": "1:1 a job is a mapping of keys",
    "run": "1:1 a job is a mapping of keys such as `run: python train.py`, not 'run'",
    "5": "1:1 a job is a mapping",
    "": "1:1 the file is empty",
    "# nothing\n": "1:1 the file is empty",
    "run: a: b": "1:7 put text that contains ': ' in quotes",
    "run: x\n\tnodes: 2": "2:1 a tab: YAML is indented with spaces",
    "apiVersion: v1\nkind: Job\nspec: {}": "1:1 kind 'Job', is no job file|`spec` of a GangJob",
    "run: [a": "1:8 this is not YAML",
    "run: 'a": "1:8 this is not YAML",
    "run: *a": "1:6 begins with '*' in quotes",
    "run: @a": "1:6 begins with '@'",
    "run: `a`": "1:6 begins with '`'",
    "run: %a": "1:6 begins with '%'",
    "run: x\n---\nrun: y": "2:1 takes a file of several jobs",
    "run: x\nname: a\x01b": "2:8 character 0x1 cannot be in a text file",
    'run: "\\U99999999"': "1:1 a character code that does not exist",
    'run: "\\q"': "1:8 this is not YAML",
    "a: &a [*a]": "the document is nested more than 32 deep",
    "[" * 100_000: "1:33 the document is nested more than 32 deep",
    "- " * 100_000: "1:65 the document is nested more than 32 deep",
    "a: [" + "1," * 50_000: "the document has more than 10000 values",
    "x" * (1 << 20) + "x": "1:1 the file is longer than 1 MiB",
}


@pytest.mark.parametrize(("text", "want"), RUNS.items(), ids=lambda value: value[:40])
def test_a_text_that_is_no_job(text: str, want: str) -> None:
    (error,) = errors(text)
    place, _, what = want.partition(" ")
    if place[0].isdigit():
        assert error.startswith(f"job.yaml:{place}: ")
        assert all(part in error for part in what.split("|"))
    else:
        assert want in error


ROLES = {
    "framework: mxnet": "2:1 framework: framework mxnet needs one scheduler|has none: write roles: {scheduler:",
    "framework: mxnet\nroles: {server: {run: x}}": "3:1 needs one scheduler",
    "framework: mxnet\nroles: {scheduler: {count: 2}, server: {}}": "3:1 needs one scheduler|and has 2",
    "framework: mxnet\nroles: {scheduler: {}}": "3:1 needs a server, and has none",
    "framework: mxnet\nroles: {scheduler: {}, server: {}, ps: {}}": "3:36 it knows scheduler, server or worker",
    "framework: tensorflow\nroles: {ps: {}, workers: {}}": "3:17 tensorflow has no such role|did you mean 'worker'?",
    "framework: tensorflow\nroles: {chief: {count: 2}}": "3:1 can have one chief or master, and has 2",
    "framework: tensorflow\nroles: {chief: {}, master: {}}": "3:1 can have one chief or master, and has 2",
    "framework: tensorflow\nroles: {evaluator: {count: 2}}": "3:1 can have one evaluator, and has 2",
    "framework: ray\nroles: {head: {count: 2}}": "3:1 has one head, on which the command runs, and not 2",
    "framework: ray\nroles: {ps: {}}": "3:9 framework ray has no such role: it knows head or worker",
    "framework: paddle\nroles: {pserver: {}}": "3:9 framework paddle has no such role|did you mean 'server'?",
}


@pytest.mark.parametrize(("text", "want"), ROLES.items(), ids=lambda value: value[:40])
def test_roles_that_a_framework_cannot_use(text: str, want: str) -> None:
    (error,) = errors(f"run: x\n{text}")
    place, _, parts = want.partition(" ")
    assert error.startswith(f"job.yaml:{place}: ")
    for part in parts.split("|"):
        assert part in error


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("framework: paddle\nroles: {ps: {run: x}, server: {run: x}}", "paddle has servers and no trainers"),
        ("framework: tensorflow\nroles: {ps: {run: x}, evaluator: {run: x}}", "tensorflow has no process that trains"),
        ("framework: mxnet\nroles: {scheduler: {run: x}, server: {run: x}}", "needs a worker, and has none"),
    ],
)
def test_roles_without_a_process_that_trains(text: str, says: str) -> None:
    (error,) = errors(text)
    assert error.startswith("job.yaml:2:1: roles: ")
    assert says in error


def test_aliases_do_not_explode() -> None:
    lines = ["run: x", "a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "more than 10000 values" in errors("\n".join(lines))[0]


def test_bytes_that_are_not_text() -> None:
    assert errors(b"run: x\nname: \xc3\x28") == ["job.yaml:2:7: byte 0xc3 is not UTF-8: save it as UTF-8"]


def test_all_errors_in_the_order_of_the_file() -> None:
    text = """\
nodes: two
resources:
  gpu: {count: -1, kount: 1}
  shm: 1Gi
env:
  RANK: 1
  TOKEN:
  1x: y
framework: torch
imagee: x
limits: {time: soon, idle: 5m}
nodes: 3
name: A
"""
    places = [error.split(": ")[0].removeprefix("job.yaml:") for error in errors(text)]
    want = "1:1 1:8 3:16 3:20 4:3 6:3 8:3 10:1 11:16 11:22 12:1 13:7"
    assert places == want.split()


def test_one_error_is_one_line() -> None:
    text = 'run: x\n"a\\nb": 1\nenv: {"c\\nd": 1, "GANGER_\\n": 2}\nname: "x\\ny"\nframework: "\\n"'
    assert len(errors(text)) == 6
    assert all(error.startswith("job.yaml:") for error in errors(text))


def test_a_long_value_is_quoted_short() -> None:
    assert all(len(error) < 300 for error in errors(f"run: x\nname: {'A' * 9999}\nnodes: {'B' * 9999}"))


LATER = {
    "kind: service": "write job, or leave it out",
    "data: [{name: a, path: /b}]": "volumes:",
    "services: {ssh: {}}": "by hand",
    "sweep: {lr: [1]}": "shell loop",
    "notify: []": "ganger wait",
    "resources: {shm: 64Gi}": "resources.shm",
    "resources: {rdma: true}": "resources.rdma",
    "limits: {idle: 30m}": "set time",
    "limits: {cost: 500}": "set time",
    "retry: {on: [hang]}": "set max",
}  # fmt: skip


@pytest.mark.parametrize(("text", "instead"), LATER.items(), ids=LATER)
def test_what_comes_later_is_refused_by_name(text: str, instead: str) -> None:
    (error,) = errors(f"run: x\n{text}")
    assert error.startswith("job.yaml:2:")
    assert "not yet supported" in error
    assert instead in error


@pytest.mark.parametrize(
    ("framework", "name", "legal"),
    [
        ("plain", "RANK", True),
        ("torch", "RANK", False),
        ("torch", "MASTER_PORT", False),
        ("plain", "MASTER_PORT", True),
        ("torch", "OMP_NUM_THREADS", True),
        ("plain", "CUDA_VISIBLE_DEVICES", False),
        ("plain", "WORLD_SIZE", False),
        ("plain", "PYTHONUNBUFFERED", True),
    ],
)
def test_variables_of_the_framework_are_its_own(framework: str, name: str, *, legal: bool) -> None:
    text = f"run: x\nframework: {framework}\nenv: {{{name}: 1}}"
    if legal:
        assert parse_spec(text, "job.yaml").env == {name: "1"}
    else:
        assert errors(text) == [f"job.yaml:3:7: env.{name}: ganger sets it for framework {framework}: leave it out"]


MAPPINGS: dict[str, tuple[Any, str]] = {
    "a wrong value": ({"run": "x", "nodes": "two"}, "flags: nodes: 'two' is not a number of nodes"),
    "nothing": ({}, "flags: run is missing"),
    "an order of no roles": ({"roles": {}, "start_order": ["ps"]}, "there is no role ps: the roles are none"),
    "a key that is no text": ({"run": "x", 5: 1}, "flags: a key of it is not text"),
    "a value that is nothing known": ({"run": "x", "name": b"x"}, "flags: name: b'x' is not a name"),
    "null": ({"run": "x", "name": None}, "flags: name: nothing is not a name"),
    "half of a pair": ({"run": "x\ud800"}, "half of a pair"),
    "a huge number": ({"run": "x", "nodes": 10**5000}, "about 5000 digits"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "want"), MAPPINGS.values(), ids=MAPPINGS)
def test_a_mapping_that_is_no_job(data: Any, want: str) -> None:
    with pytest.raises(RequestError) as refused:
        spec_from_dict(data, "flags")
    assert want in refused.value.detail


def test_errors_of_file_and_command_line_are_reported_together() -> None:
    with pytest.raises(RequestError) as refused:
        parse_spec("run: x\nnodes: two", "job.yaml", {"retry": {"max": -1}, "naem": "x"})
    file, *flags = refused.value.detail.splitlines()
    assert file.startswith("job.yaml:2:8: nodes:")
    assert [line.split(": ")[0] for line in flags] == ["the command line"] * 2
