"""Entry point of ``python -m torchmultiset``, which runs the command ``multiset``."""

import sys

from torchmultiset.cli import main

if __name__ == "__main__":
    sys.exit(main())
