"""The command line."""

import os

# Cases are small: a second BLAS thread costs more than it brings, and spins. NumPy reads this once, when first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
