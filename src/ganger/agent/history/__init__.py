"""History of an agent's samples: the newest in memory, figures of a month in a database."""
