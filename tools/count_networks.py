"""Count parameters and FLOPs of all networks that `flopping models` lists, and store them for it (three minutes).

    python tools/count_networks.py

Needed when a network is added, or when a layer does other work than before; tests compare what is stored.
"""

from __future__ import annotations

import csv
from pathlib import Path

import flopping.cost
from flopping.cost.overview import STORED, count_network, match_names


def main() -> None:
    rows = [count_network(name, paper) for name, paper in match_names().items()]
    path = Path(flopping.cost.__file__).with_name("networks.csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["name", *STORED])
        for row in rows:
            figures = [getattr(row, key) for key in STORED]
            table.writerow([row.name, *("" if figure is None else int(figure) for figure in figures)])


if __name__ == "__main__":
    main()
