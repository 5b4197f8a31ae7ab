"""`make faults`: the crash points and the fault matrix, played on real servers."""
