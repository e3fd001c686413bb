"""`python -m trainers`, which can be interrupted from its first moment on; the commands are in `trainers.commands`."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command; what it imports takes seconds, in which Ctrl-C ends as quietly as later."""
    try:
        from trainers.commands import main as command
    except KeyboardInterrupt:
        print("\nInterrupted. Nothing was written yet.", file=sys.stderr)
        return 130
    return command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
