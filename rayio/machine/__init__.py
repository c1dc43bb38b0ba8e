"""Facts from the kernel about this machine: hardware, mounts, bytes fetched, page cache, CPU time."""
