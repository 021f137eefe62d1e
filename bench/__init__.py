"""Benches: the figures ganger is held to, one file each, in a folder for each part of ganger that they measure.

`python -m bench --list` names them.
"""
