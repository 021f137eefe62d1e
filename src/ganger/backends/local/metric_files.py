"""Curves of a job's metrics, from the files that its launchers wrote."""

from ganger.backends.local.job_files import JobFiles
from ganger.model.job_metrics import MAX_METRICS, Curve


def curves(files: JobFiles, job: str) -> tuple[Curve, ...]:
    """Return the curves over all generations, in the order in which the job first reported them.

    Of a generation, the lowest rank that reports a metric counts.
    """
    by_name: dict[str, Curve] = {}
    tasks = list(files.tasks(job))
    for generation in sorted({number for task in tasks for number in task.generations()}):
        lowest: dict[str, tuple[int, Curve]] = {}
        for task in tasks:
            for name, curve in task.curves(generation).items():
                if name not in lowest or curve["rank"] < lowest[name][0]:
                    lowest[name] = curve["rank"], Curve(name=name, points=tuple(curve["points"]))
        for name, (_, of_generation) in lowest.items():
            if name in by_name:
                by_name[name] = by_name[name].followed_by(of_generation)
            elif len(by_name) < MAX_METRICS:
                by_name[name] = of_generation
    return tuple(by_name.values())
