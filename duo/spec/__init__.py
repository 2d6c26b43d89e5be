"""The algorithm, pure: no thread, clock, file, socket or llama.cpp in here."""
