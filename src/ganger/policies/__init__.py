"""Queue orders, one file each, found by `registry`. What a file must have is in
`core.queue_order.policy_interface`."""
