"""The words of Arena and of its operators: `ganger arena` and `ganger apply`."""
