"""Test of nodes before a large gang starts on them: pairs of nodes exchange data, and the rounds find the bad ones."""
