"""Other clusters' traces: jobs, nodes, faults and spot nodes as they were recorded, and what could not be read of them.

`read` has the readers, `documented` the writer of ganger's own format (docs/reference/trace-format.md), and `fit` says
which jobs a cluster could never hold. Called by whoever replays a trace in a `World`."""
