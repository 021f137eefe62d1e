"""State that outlives the controller and its objects: events and logs of ended ranks, in a directory or a bucket."""
