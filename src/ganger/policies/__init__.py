"""Queue orders, one module each, found by `registry`; their interface is `core.queue_order.policy_interface`."""
