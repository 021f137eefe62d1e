"""Virtual time under the same loop and log: pictures, laws and crash tests run on it."""
