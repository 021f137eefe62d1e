"""`make demo` after set-up, with its own checks."""

from bench.measure import ROOT, Figure, median, wall_s

RUNS = 3
BAR_S = 90.0


def run() -> list[Figure]:
    wall_s(["make", "setup-torch"])
    python = ROOT / ".venv-torch" / "bin" / "python"
    return [median("demo", "s", [wall_s([python, "examples/demo.py"]) for _ in range(RUNS)], under=BAR_S)]
