"""What is measured side by side, each in a process of its own; those of others in an environment of their own."""
