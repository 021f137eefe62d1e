"""The SDK: jobs from Python. `ganger` itself has its names, and fetches them from here when they are used."""
