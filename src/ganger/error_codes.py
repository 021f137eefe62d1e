"""The codes of every problem that a client can show: one table, for the documents and for programs.

A code is stable: programs compare it, users read the sentence that comes with it. Statuses are HTTP's: 409 means that
the request was understood and is refused, by the present state or for an error in what it submits, other 4xx that the
request itself was not what the interface accepts. tests/service/test_codes.py compares the table with every place that
raises a code.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Code:
    """The meaning of a code and its HTTP status."""

    status: int
    meaning: str
    other_status: int | None = None
    """A second status: a missing object is 404 when it is the resource, 409 when the request needs it."""


CODES: Final[dict[str, Code]] = {
    # the request
    "bad_agent_message": Code(400, "the message of a node's agent is not understood: it may be of another version"),
    "bad_cursor": Code(400, "the cursor of a page was not issued by the server"),
    "bad_host": Code(403, "the Host header names another host than the listener's: it may be a DNS rebinding attack"),
    "bad_token": Code(401, "the token is unknown, was revoked or has expired"),
    "body_too_large": Code(413, "the body is larger than the limit"),
    "insufficient_scope": Code(403, "the token's scope does not allow the request"),
    "internal_error": Code(500, "internal error of the server; its log has the details under the number given"),
    "invalid_request": Code(422, "a parameter or the body does not match the OpenAPI document"),
    "local_only": Code(403, "the resource is served on the unix socket only"),
    "no_such_method": Code(405, "the resource does not support this method"),
    "no_such_route": Code(404, "there is no such resource"),
    "no_metrics": Code(403, "the service account may not read the metrics"),
    "no_review": Code(503, "the API server of the cluster did not review the token"),
    "not_leader": Code(503, "the controller is a standby; another one leads"),
    "no_token": Code(401, "a request over TCP came without a token"),
    "not_administrator": Code(403, "it moves jobs of all namespaces, which the caller may not administer"),
    "not_all_jobs": Code(403, "the answer names jobs of all namespaces, which the caller may not list"),
    "not_your_node": Code(403, "the token is that of the agent of another node"),
    "not_your_namespace": Code(403, "the code is of a namespace in which the caller may not create jobs"),
    "not_your_job": Code(
        403, "the job belongs to another user, and the caller may not list the jobs of all namespaces, or run in theirs"
    ),
    "not_permitted": Code(403, "the policy does not permit what the job names or asks for on Kubernetes"),
    "read_only": Code(403, "the request is not one of the read-only requests served through the API server's proxy"),
    "bad_request": Code(400, "the request cannot be read"),
    "too_many_files": Code(409, "the files of the job are more, or larger, than one answer may have"),
    "too_many_ranks": Code(409, "the request lists more ranks than the limit"),
    "too_many_requests": Code(
        503, "one token has as many requests at one time as it may have, or all users as many commands"
    ),
    "too_many_uploads": Code(503, "other uploads of code were in progress for as long as the request waited"),
    "upload_too_slow": Code(408, "the code was not received within the time limit of an upload"),
    "server_stops": Code(503, "the server shut down before the request was done"),
    "precondition_failed": Code(412, "the resource has changed since the version in If-Match"),
    # what the request names does not exist
    "bad_pattern": Code(409, "a pattern is not a valid regular expression"),
    "no_such_parameter": Code(409, "the job has no parameter of the name for which a value is given"),
    "no_stacks": Code(404, "the job has neither hung nor been silent for long, so no stacks were recorded"),
    "no_such_attempt": Code(404, "the job had no such attempt"),
    "no_such_job": Code(404, "there is no job of that id or name"),
    "no_such_file": Code(404, "the job has written no such file into its run directory or its copy of the code"),
    "no_such_maintenance": Code(404, "there is no maintenance window of that id, or it has ended"),
    "no_such_resource": Code(409, "no node has an extended resource that the job asks for"),
    "no_such_node": Code(404, "there is no such node", other_status=409),
    "no_such_queue": Code(404, "there is no such queue", other_status=409),
    "no_such_rank": Code(404, "the job has no such rank"),
    "no_such_secret": Code(404, "there is no secret of that name"),
    "no_such_role": Code(404, "the job has no such role"),
    "no_such_token": Code(404, "there is no token of that name"),
    # not possible in the present state
    "already_ended": Code(409, "the job has ended"),
    "conflict": Code(409, "the state changed in the meantime, or does not allow it"),
    "not_running": Code(409, "the job is not running"),
    "queue_in_use": Code(409, "the queue still has jobs or child queues"),
    "request_id_reused": Code(409, "another request was made with this request_id or Idempotency-Key"),
    "still_live": Code(409, "the job has not ended"),
    "token_exists": Code(409, "there is a token of that name"),
    "not_an_array": Code(409, "the job is not an array"),
    "is_array": Code(409, "the request applies to one element, and the job is an array"),
    "is_element": Code(409, "the request applies to a whole array, not to an element"),
    "bad_scale": Code(409, "the job cannot have that number of nodes"),
    "no_checkpoint": Code(409, "the job has no checkpoint to return to, or to begin from"),
    "has_checkpoints": Code(409, "the job's checkpoints are in its copy of the code, and would be deleted with it"),
    "directory_in_use": Code(409, "a live job saves its checkpoints in that directory"),
    "not_elastic": Code(409, "the job has one size, and only a job with a range of nodes can be scaled"),
    # an invalid or impossible job
    "bad_archive": Code(409, "an archive of code is damaged, or has an entry that leads outside it"),
    "bad_directory": Code(409, "a directory is not an absolute path"),
    "bad_ignore_file": Code(409, "an ignore file has an invalid pattern"),
    "bad_network_profile": Code(409, "a network profile is not valid"),
    "bad_policy": Code(409, "the policy document has errors; all are listed with their positions"),
    "no_such_order": Code(409, "the queue order of the policy is not installed"),
    "no_such_backend": Code(409, "the backend of the settings file is not installed"),
    "no_such_score": Code(409, "the placement score of the policy is not installed"),
    "no_such_version": Code(404, "there is no such version of the policy, or it is no longer kept"),
    "policy_changed": Code(409, "the policy in force is not the version that the request expects"),
    "jobs_stranded": Code(409, "live jobs would lose their queue, or could not start again"),
    "bad_maintenance": Code(409, "the maintenance window ends before it begins, lies in the past, or overlaps another"),
    "bad_queue": Code(409, "the name, a value or the parent of a queue is invalid"),
    "bad_spec": Code(409, "the spec has errors; all are listed with their positions"),
    "bad_text": Code(409, "text has a character that cannot be passed to a program"),
    "dependency_failed": Code(409, "a dependency has ended in a way that can no longer satisfy it"),
    "code_removed": Code(409, "the snapshot of a job's code was removed"),
    "code_holds_state": Code(409, "the code directory contains the state directory"),
    "code_link_outside": Code(409, "a link in the code directory points outside it"),
    "code_too_large": Code(409, "the code directory is too large to be copied"),
    "code_unreadable": Code(409, "a file of the code directory cannot be read"),
    "bad_secret": Code(409, "the name or the value of a secret cannot be an environment variable"),
    "gpu_too_small": Code(409, "no GPU is known to have that much memory"),
    "git_failed": Code(409, "a repository cannot be fetched, or a commit of it cannot be copied"),
    "no_directory": Code(409, "a directory does not exist"),
    "no_gpus": Code(409, "no node has a GPU"),
    "no_git": Code(409, "there is no git on this machine"),
    "no_interpreter": Code(409, "there is no such Python"),
    "no_module": Code(409, "the job's Python cannot import a module that its framework needs"),
    "no_program": Code(409, "the program of the job does not exist, or is not executable"),
    "no_script": Code(409, "the script of the job does not exist"),
    "no_snapshot": Code(409, "a copy of code does not exist, or was not sent", other_status=404),
    "bad_claim": Code(409, "a ResourceClaim of the job does not exist, or no node can ever satisfy it as it is"),
    "no_such_claim": Code(409, "a volume of the job is a claim that does not exist"),
    "no_such_storage_class": Code(409, "a volume of the job is a claim whose storage class does not exist"),
    "claim_not_bound": Code(
        409, "a volume of the job is a claim that is not bound, and for which no volume is available"
    ),
    "claim_of_one_node": Code(409, "a volume of the job is a claim for pods of one node, and the job may have several"),
    "no_such_dependency": Code(409, "a dependency does not exist"),
    "no_such_device": Code(409, "no node that the job may use has such a GPU"),
    "no_such_gpu_type": Code(404, "no node has GPUs of that type", other_status=409),
    "no_such_label": Code(409, "no node has that label"),
    "no_such_level": Code(409, "the topology has no level of that name"),
    "no_such_network": Code(409, "no node is on that network"),
    "no_such_ref": Code(409, "a repository has no such branch, tag or commit"),
    "no_time_limit": Code(409, "the queue requires a time limit"),
    "node_too_small": Code(409, "no node has that much"),
    "over_user_limit": Code(409, "the request is over the queue's limit per user"),
    "quota_too_small": Code(409, "the request is more than the queue can ever use"),
    "secret_not_set": Code(409, "a secret of the job is set neither in the shell nor in the store"),
    "tainted": Code(409, "every node has a taint that the job does not tolerate"),
    "too_few_nodes": Code(409, "there are too few nodes, in total or in one domain"),
    "unknown_framework": Code(409, "no such framework is installed"),
    "unreadable_directory": Code(409, "a directory cannot be read"),
    # the server
    "bad_event": Code(500, "an event cannot be folded into the state, and was dropped"),
    "corrupt_log": Code(500, "the event log cannot be read"),
    "log_failed": Code(500, "the event log cannot be used"),
    "disk_full": Code(507, "the disk is full; requests that free something are still accepted, from the disk reserve"),
    "code_store_full": Code(
        507, "the code of jobs in the controller's store, of a namespace or of all, has reached its limit"
    ),
    "secret_unreadable": Code(500, "the file of a secret cannot be read"),
    "server_stopping": Code(503, "the server is stopping"),
    "unsupported_log_format": Code(500, "the event log was written by another version of ganger"),
    "store_failed": Code(500, "the store of code snapshots cannot be written"),
}
