"""Prometheus rules from their template: ``python tools/alert_rules.py --set no_commit_for=30s > my.rules.yaml``.

``--write`` updates ``deploy/prometheus/epochal.rules.yaml``, which has the defaults.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

FOLDER = Path(__file__).parents[1] / "deploy" / "prometheus"
RULES = FOLDER / "epochal.rules.yaml"


class _Rules(Template):
    """A template with ``@{name}``, because Prometheus uses dollar signs."""

    delimiter = "@"


def defaults() -> dict[str, str]:
    """Return the parameters and defaults of ``parameters.txt``."""
    lines = (line.partition("#")[0] for line in (FOLDER / "parameters.txt").read_text().splitlines())
    pairs = (line.partition("=") for line in lines if line.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def rendered(others: Mapping[str, str]) -> str:
    """Return the rules. ``others``: values that replace defaults. Raises ``KeyError`` for an unknown name."""
    values = defaults()
    for name, value in others.items():
        if name not in values:
            raise KeyError(name)
        values[name] = value
    return _Rules((FOLDER / "rules.template.yaml").read_text()).substitute(values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="replace a default")
    parser.add_argument("--write", action="store_true", help=f"write {RULES.name} with the defaults")
    options = parser.parse_args()
    try:
        rules = rendered(dict(one.split("=", 1) for one in options.set))
    except (KeyError, ValueError) as error:
        names = ", ".join(defaults())
        print(f"{error}: use --set NAME=VALUE with one of these names: {names}", file=sys.stderr)
        return 2
    if options.write:
        RULES.write_text(rendered({}))
    else:
        sys.stdout.write(rules)
    return 0


if __name__ == "__main__":
    sys.exit(main())
