"""Judgement of failures: signature, attribution, reaction and retry decision."""
