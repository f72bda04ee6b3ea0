"""Parameters checked, notebooks executed, the book built and checked."""
