"""What is watched while ranks run: hangs, leftovers, memory."""
