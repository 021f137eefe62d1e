"""The figures ganger is held to, each measured by one file: `python -m bench --list` names them."""
