"""Devices of ResourceClaims: what nodes have of them, which a gang gets, and the claims that say so."""
