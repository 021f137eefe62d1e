"""The order of pending gangs: the interface of a policy, the parts of its keys, and the fair division beside it."""
