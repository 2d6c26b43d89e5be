"""The algorithm: pure functions and classes without threads, clocks, files, sockets or llama.cpp."""
