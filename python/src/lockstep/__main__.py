"""`python3 -m lockstep` is `python3 -m lockstep.suggest`."""

from .suggest import main

if __name__ == "__main__":
    raise SystemExit(main())
