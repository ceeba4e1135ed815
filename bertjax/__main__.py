"""`python -m bertjax` is the command `bertjax`."""

import sys

from bertjax.cli import main

sys.exit(main())
