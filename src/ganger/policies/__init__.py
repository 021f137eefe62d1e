"""Queue orders, one file each, found by `registry`. What a file must have is in
`core.queues.policy_interface`."""
