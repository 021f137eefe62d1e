"""Networks of a job's pods as its ranks see them: one for each profile that may serve the job."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ganger.model.job import JobSpec
from ganger.model.network_profile import NetworkProfile
from ganger.model.terms import SHARED
from ganger.networks.render import PodFacts, PodNetwork, fits, render
from ganger.networks.variables import ReplacedVariable, replaced


@dataclass(frozen=True, slots=True)
class JobNetwork:
    """Network of a job's pods by one profile.

    Attributes:
        profile: the profile.
        pod: additions to each pod, with the variables as ranks see them: those of the job where it replaces any.
        replaced: variables that the job replaces.
        whole_node: only pods that have a node for themselves may use the profile.
    """

    profile: NetworkProfile
    pod: PodNetwork
    replaced: list[ReplacedVariable]
    whole_node: bool


def gpu_conflict(spec: JobSpec, profile: NetworkProfile) -> str:
    """Return why a job may not use a profile whose rails bring GPUs, since it asks for others; empty if it may."""
    asked = (resources.gpu for resources in (spec.resources, *(role.resources for role in spec.roles.values())))
    if profile.gpu_class is None or not any(gpu.count or gpu.is_share for gpu in asked):
        return ""
    what = f"network profile {profile.name} gives a pod a GPU of {profile.gpu_class} with each rail"
    return f"{what}, and resources.gpu asks for others"


def job_networks(
    spec: JobSpec, profiles: Sequence[NetworkProfile], node_gpus: int, gpu_resource: str
) -> list[JobNetwork]:
    """Return the networks that a job may get, best first: in the order of its fabrics, then of the profiles."""
    roles = [spec.resources, *(role.resources for role in spec.roles.values())]
    pod = PodFacts(
        gpus=max(resources.gpu.count for resources in roles),
        node_gpus=node_gpus,
        gpu_resource=gpu_resource,
        exclusive=spec.placement.sharing != SHARED,
        job=spec.name or "JOB",
    )
    found = []
    for fabric in spec.placement.network:
        for profile in profiles:
            if profile.fabric == fabric:
                rendered = render(profile, pod)
                changes = replaced(rendered.env, spec)
                env = {**rendered.env}
                for change in changes:
                    if change.role:
                        continue  # other ranks see the profile's value
                    if change.job_value is None:
                        del env[change.name]
                    else:
                        env[change.name] = change.job_value
                found.append(JobNetwork(profile, replace(rendered, env=env), changes, not fits(profile, pod)))
    return found
