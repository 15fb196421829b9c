"""Draw figures 3.14 and 3.16 of the thesis: one schedule, a consistent cut of Chandy-Lamport, an epoch cut."""

from __future__ import annotations

from tests.kit.cuts.figures import aligned, consistent_only, drawn
from tests.kit.cuts.judgement import epoch_violations, validity_violations


def main() -> None:
    for title, execution in (
        ("Chandy-Lamport (algorithm 3; figure 3.14)", consistent_only()),
        ("Epoch alignment (algorithms 5 and 6; figure 3.16)", aligned()),
    ):
        consistent, complete = not validity_violations(execution, 1), not epoch_violations(execution, 1)
        print(f"{title}: consistent: {_yes_no(consistent)}, epoch-complete: {_yes_no(complete)}")
        print(drawn(execution, 1))
        print("\n".join(f"  {problem}" for problem in epoch_violations(execution, 1)))


def _yes_no(fact: bool) -> str:
    return "yes" if fact else "no"


if __name__ == "__main__":
    main()
