"""Places that a gang keeps on its nodes for pods that do not exist: replacements of ended ones, and expected ones."""
