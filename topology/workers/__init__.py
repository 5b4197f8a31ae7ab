"""How the bolts run that the executor stops at: on the event loop, in threads, or in order."""
