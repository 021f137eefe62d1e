"""Directories that jobs bring as their code: which files go along, copies by content, and archives to send."""
