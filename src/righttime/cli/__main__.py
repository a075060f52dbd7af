"""`python -m righttime.cli`: the command line where the `righttime` script is not installed."""

from righttime.cli import main

if __name__ == "__main__":
    main()
