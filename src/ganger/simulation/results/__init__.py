"""Results of a run for other programs: its jobs as columns, files of them, and a call from Python."""
