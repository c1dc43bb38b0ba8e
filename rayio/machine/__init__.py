"""What the kernel says of this machine: its hardware, its mounts, what was fetched from them, what is in memory."""
