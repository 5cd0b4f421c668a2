"""How the programs here read their command lines."""

import argparse


class Parser(argparse.ArgumentParser):
    """One that says in a line what is wrong."""

    def error(self, message):
        """Wrong usage, as in sysexits.h."""
        self.exit(64, f"{self.prog}: {message} (see --help)\n")
