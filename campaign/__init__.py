"""A campaign of faults: damaged inputs, kills, full disks, a server under abuse, and degenerate data."""
