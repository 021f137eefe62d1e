"""The codes of every problem a face can show: the one table of them, for the documents and for programs.

A code is stable: programs compare it, people read the sentence that comes with it. Statuses are HTTP's: 4xx without
409 means that the request itself was not what the interface takes; 409 that it was, and cannot be done as things are.
Held against every place that raises one by tests/service/test_codes.py.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Code:
    """What a code means, and with which HTTP status it comes."""

    status: int
    meaning: str
    other_status: int | None = None
    """Where it comes with another status too: what is missing is 404 when it is asked for, 409 when it is needed."""


CODES: Final[dict[str, Code]] = {
    # the request
    "bad_cursor": Code(400, "the cursor of a page is none that the server gave"),
    "bad_host": Code(403, "the Host header names another host than the one that listens: a page may be behind it"),
    "bad_token": Code(401, "the token is unknown, was revoked or has expired"),
    "body_too_large": Code(413, "the body is larger than a request may be"),
    "internal_error": Code(500, "the server made a mistake; its log has it under the number that is told"),
    "invalid_request": Code(422, "a parameter or the body is not what the OpenAPI document says"),
    "local_only": Code(403, "what can only be asked over the unix socket"),
    "no_such_method": Code(405, "the resource does not know this method"),
    "no_such_route": Code(404, "there is no such resource"),
    "no_review": Code(503, "the API server of the cluster did not say whose a token is"),
    "no_token": Code(401, "a request over TCP came without a token"),
    "not_all_jobs": Code(403, "the answer names jobs of all namespaces, and whoever asks may not list these"),
    "not_your_job": Code(403, "the job is another's, and whoever asks may not list the jobs of all namespaces"),
    "read_only": Code(403, "through the API server's proxy nothing is changed, and not everything is answered"),
    "bad_request": Code(400, "the request cannot be read"),
    "too_many_ranks": Code(409, "more ranks are listed than a request may list"),
    "precondition_failed": Code(412, "the resource has changed since the version in If-Match"),
    # what is asked for is not there
    "bad_pattern": Code(409, "a pattern is no regular expression"),
    "no_stacks": Code(404, "the job was never found standing still"),
    "no_such_attempt": Code(404, "the job had no such attempt"),
    "no_such_job": Code(404, "there is no job of that id or name"),
    "no_such_maintenance": Code(404, "there is no maintenance of that id, or it is over"),
    "no_such_node": Code(404, "there is no such node", other_status=409),
    "no_such_queue": Code(404, "there is no such queue", other_status=409),
    "no_such_rank": Code(404, "the job has no such rank"),
    "no_such_secret": Code(404, "there is no secret of that name"),
    "no_such_role": Code(404, "the job has no such role"),
    "no_such_token": Code(404, "there is no token of that name"),
    # it stands against the present state
    "already_ended": Code(409, "the job has ended"),
    "conflict": Code(409, "the state changed meanwhile, or does not allow it"),
    "not_running": Code(409, "the job does not run"),
    "queue_in_use": Code(409, "jobs or other queues are in the queue"),
    "request_id_reused": Code(409, "another request was made with this request_id or Idempotency-Key"),
    "still_live": Code(409, "the job has not ended"),
    "token_exists": Code(409, "there is a token of that name"),
    "not_an_array": Code(409, "only an array has elements"),
    "is_array": Code(409, "what is asked for is one element's, and an array has many"),
    "is_element": Code(409, "what is asked for is done to a whole array"),
    # a job that cannot be
    "bad_directory": Code(409, "a directory is no absolute path"),
    "bad_ignore_file": Code(409, "an ignore file has a line that is no pattern"),
    "bad_policy": Code(409, "the policy document has faults; each is told, with its place"),
    "no_such_order": Code(409, "the queue order of the policy is not installed"),
    "no_such_version": Code(404, "there is no such version of the policy, or it is not kept any more"),
    "policy_changed": Code(409, "the policy has another version than the one that was to be changed"),
    "strands_jobs": Code(409, "live jobs would be in no queue, or could not start again"),
    "bad_maintenance": Code(409, "maintenance that is over before it begins, in the past, or twice at a time"),
    "bad_queue": Code(409, "a name, a figure or the parent of a queue cannot be"),
    "bad_spec": Code(409, "the spec has faults; each is told, with its place"),
    "bad_text": Code(409, "text has a character that no program can be given"),
    "cannot_come_true": Code(409, "a job that another is to come after has ended otherwise than is asked"),
    "code_gone": Code(409, "the snapshot of a job's code was removed"),
    "code_holds_state": Code(409, "the code directory has the state directory in it"),
    "code_link_outside": Code(409, "a link in the code directory leads out of it"),
    "code_too_large": Code(409, "the code directory is too large to be copied"),
    "code_unreadable": Code(409, "a file of the code directory cannot be read"),
    "bad_secret": Code(409, "a secret has a name or a value that no variable can have"),
    "gpu_too_small": Code(409, "no GPU has that much memory, as far as nodes say"),
    "git_failed": Code(409, "a repository cannot be fetched, or a commit of it cannot be copied"),
    "no_directory": Code(409, "a directory is not there"),
    "no_gpus": Code(409, "no node has a GPU"),
    "no_git": Code(409, "there is no git on this machine"),
    "no_interpreter": Code(409, "there is no such Python"),
    "no_module": Code(409, "the job's Python cannot import what its framework needs"),
    "no_program": Code(409, "the program of the job is not there, or cannot be run"),
    "no_script": Code(409, "the script of the job is not there"),
    "no_snapshot": Code(409, "a snapshot is not there"),
    "no_such_dependency": Code(409, "a job that another is to come after is not there"),
    "no_such_device": Code(409, "a node that the job may have has no such GPU"),
    "no_such_gpu_type": Code(404, "no node has GPUs of that type", other_status=409),
    "no_such_label": Code(409, "no node has that label"),
    "no_such_level": Code(409, "the network has no level of that name"),
    "no_such_network": Code(409, "no node is on that network"),
    "no_such_ref": Code(409, "a repository has no such branch, tag or commit"),
    "no_time_limit": Code(409, "the queue asks for a time limit"),
    "node_too_small": Code(409, "no node has that much"),
    "over_user_limit": Code(409, "it is more than the queue gives one user"),
    "quota_too_small": Code(409, "it is more than the queue can ever use"),
    "secret_not_set": Code(409, "a secret of the job is set neither in the shell nor in the store"),
    "tainted": Code(409, "every node has a taint that the job does not tolerate"),
    "too_few_nodes": Code(409, "there are fewer nodes than that, in all or in one domain"),
    "unknown_framework": Code(409, "no such framework is installed"),
    "unreadable_directory": Code(409, "a directory cannot be read"),
    # the server
    "bad_event": Code(500, "what happened cannot be taken into the state, and was dropped"),
    "corrupt_log": Code(500, "the event log cannot be read"),
    "log_failed": Code(500, "the event log cannot be used"),
    "no_room": Code(
        507, "no room on the disk; what frees something is taken all the same, with what is held in reserve"
    ),
    "secret_unreadable": Code(500, "the file of a secret cannot be read"),
    "server_stopping": Code(503, "the server ends"),
    "store_failed": Code(500, "the store of code snapshots cannot be written"),
}
