"""The page `docs/explanation/way-of-a-job.md`: the code that a job passes through, found by tracing real jobs.

`python -m tools.way_of_a_job` traces and writes it; `tests/docs/test_way_of_a_job.py` traces again and compares.
"""
