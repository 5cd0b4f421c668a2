"""The command line parser of the programs in this folder."""

import argparse


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line."""

    def error(self, message):
        """Exits with EX_USAGE of sysexits.h."""
        self.exit(64, f"{self.prog}: {message} (see --help)\n")
