"""`python -m specjax.cli`: the same program where the script is not on the PATH."""

import sys

from specjax.cli import main

sys.exit(main())
