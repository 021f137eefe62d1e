"""GangJobs in an API server, as the backend and the client know them: resources, names, pods, archives and logs."""
