"""Judgement of failures: signature, attribution and retry decision."""
