"""The engine whose clock jumps: nothing waits, nothing is read."""
