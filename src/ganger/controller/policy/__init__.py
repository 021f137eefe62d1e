"""Queue and SchedulingPolicy objects, and the usage that is written to them."""
