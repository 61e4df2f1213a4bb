"""What a process has once, for threads and tasks alike: the timer, the start of threads, wake-ups, hooks, signals."""
