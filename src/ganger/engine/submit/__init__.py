"""From a request to a job: read, checked, its code kept."""
