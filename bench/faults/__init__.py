"""Benches of random faults and kills, and the audits of what they leave."""
