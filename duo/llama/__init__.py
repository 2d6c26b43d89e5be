"""llama.cpp, through llama_cpp: the only package that imports it."""
