"""Programs and images of a test cluster: built, cached, and checked for on this machine."""
