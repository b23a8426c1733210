"""Pages of HTML, read as text and shown by a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

VOID = {"meta", "path", "use", "rect", "br", "img"}


class Reader(HTMLParser):
    """Tables as lists of lines, all attributes, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.cell = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag
        if tag in ("td", "th") and self.cell is not None:
            self.tables[-1][-1].append("".join(self.cell))
            self.cell = None

    def handle_data(self, data: str) -> None:
        if self.cell is not None:
            self.cell.append(data)


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the PATH")
# Loaded with the page, it tells the frame around it what it sees. The frame is there because no window is narrower than
# 500 pixels; it writes what it hears into its root, which the browser then prints.
PROBE = """<script>
let alerts = 0; window.alert = () => { alerts += 1; };
addEventListener("load", () => {
  const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.width, b.height]; };
  const root = document.documentElement, body = getComputedStyle(document.body);
  const inScroll = e => e.closest(".scroll, figure > div, pre, svg") !== null;
  parent.postMessage(JSON.stringify({
    alerts, width: root.clientWidth, content: root.scrollWidth, colour: body.color, background: body.backgroundColor,
    rows: document.querySelectorAll("tbody tr").length, images: [...document.images].map(box),
    broken: [...document.images].filter(e => !e.complete || !e.naturalWidth).length,
    scripts: document.scripts.length, requests: performance.getEntriesByType("resource").length,
    figures: [...document.querySelectorAll("figure svg")].map(box),
    tables: [...document.querySelectorAll("table")].map(box),
    wide: [...document.body.querySelectorAll("*")].filter(e => !inScroll(e) || e.matches(".scroll"))
      .filter(e => e.getBoundingClientRect().right > root.clientWidth + 1).map(e => e.tagName),
  }), "*");
});
</script>"""
FRAME = """<!DOCTYPE html>
<script>addEventListener("message", m => document.documentElement.setAttribute("data-seen", m.data));</script>
<iframe src="index.html" style="border: 0; width: WIDTHpx; height: 2000px"></iframe>"""


def browse(shown: Path, tmp_path: Path, *options: str) -> str:
    """What headless Chromium prints about a page; nothing outside this machine can be reached."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--proxy-server=127.0.0.1:1", *options, shown.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seen(page: Path, tmp_path: Path, width: int, *options: str) -> dict[str, object]:
    """What the page is like in a browser of a width: sizes, colours, and what it asked for."""
    probed, frame = tmp_path / "index.html", tmp_path / "frame.html"
    probed.write_text(page.read_text("utf-8").replace("<title>", f"{PROBE}<title>", 1), "utf-8")
    frame.write_text(FRAME.replace("WIDTH", str(width)), "utf-8")
    waiting = "--dump-dom", "--virtual-time-budget=5000", f"--window-size={width + 100},2000"
    found = re.search(r'data-seen="([^"]*)"', browse(frame, tmp_path, *waiting, *options))
    assert found, "the page did not load"
    return json.loads(unescape(found[1]))


def brightness(colour: str) -> float:
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
