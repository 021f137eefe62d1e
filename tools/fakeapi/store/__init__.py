"""Objects of the API server, their resources and history, and how clients read them: lists, watches, selectors."""
