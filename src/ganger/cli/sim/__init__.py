"""`ganger sim`: commands that simulate."""
