"""What queues may have, and what they and their users have and have had: quota and fair share."""
