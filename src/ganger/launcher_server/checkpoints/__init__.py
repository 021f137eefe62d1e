"""Agreement of a gang's ranks on the steps at which they save."""
