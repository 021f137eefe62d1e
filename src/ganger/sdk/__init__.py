"""SDK: jobs from Python. The package `ganger` exports its names and imports them on first use."""
