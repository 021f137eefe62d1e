"""The processes of a task: started, stopped, and how each of them ended."""
