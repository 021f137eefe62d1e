"""Oracle of over-allocation by the raw facts."""

from tests.laws.oracles.device_oracle import on_device
from tests.laws.oracles.job_parts import OF_NODE, amount_of, parts
from tests.laws.oracles.raw_facts import RawFacts


def over_allocated(raw: RawFacts) -> list[str]:
    """Return one sentence for each thing that is allocated twice, used by foreign pods, or does not exist."""
    problems = []
    for name, node in raw.nodes.items():
        here = [(parts(raw.jobs[gang].spec)[share.part], share.devices) for gang, share in raw.shares_on(name)]
        for resource in OF_NODE:
            used = sum(part.need[resource] for part, _ in here)
            if used > amount_of(node, resource):
                problems.append(f"{name}: {used} of {amount_of(node, resource)} {resource}")
        for device in {device for _, devices in here for device in devices}:
            whole, milli, memory = on_device(device, here)
            if whole > 1 or (whole and (milli or memory)) or milli > 1000 or memory > node.gpu_memory_bytes:
                problems.append(f"{name}: device {device} has {whole} whole, {milli} milli, {memory} bytes")
            if device in node.foreign:
                problems.append(f"{name}: device {device} is used by others")
            if not 0 <= device < node.gpus:
                problems.append(f"{name}: device {device} of {node.gpus}")
    return problems + [f"{gang} on {name}, which is gone" for gang, name in raw.left if name not in raw.nodes]
