"""Benches: the figures ganger is held to, one file each; `python -m bench --list` names them."""
