"""Commands about the server itself: tokens, secrets, completion, installation."""
