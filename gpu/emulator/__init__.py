"""The CPU emulator: builds a CUDA C++ source with g++ and runs it on NumPy arrays, one fiber a thread."""
