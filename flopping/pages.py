"""Pages of HTML that need no network, no script and no other file: what all of them share."""

from __future__ import annotations

from html import escape

STYLE = """
:root { color-scheme: light dark; --paper: #fefefe; --ink: #1f2328; --soft: #59636e; --line: #d8dee4; --band: #f6f8fa; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #15181c; --ink: #e3e7ec; --soft: #9aa4af; --line: #343a42; --band: #1d2127;
    --resmlp: #f0843c; --vit: #56aee8; --convnext: #2fc79a; --others: #e39cc4; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem clamp(1rem, 3vw, 2rem) 4rem; max-width: 90rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, "Segoe UI", "Liberation Sans", Helvetica, Arial, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 1rem 0 .5rem; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .6rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
h1, h2, p, li, figcaption { overflow-wrap: anywhere; }
p, li, figcaption { max-width: 46rem; }
.soft, figcaption, caption { color: var(--soft); }
@media (max-width: 40rem) { body { padding-top: .5rem; } }
@media print {
  :root { color-scheme: light; --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --band: #fff; }
  body { padding: 0; max-width: none; }
  figure, tr, pre { break-inside: avoid; } h2 { break-after: avoid; }
}
"""
"""Light and dark, for screens of any width and for paper."""


def generator(command: str) -> str:
    """What tells a page that a command of ours has made from others."""
    return f'<meta name="generator" content="flopping {command}">'


def document(title: str, command: str, style: str, body: str) -> str:
    """A page with a title, by a command of ours; `style` and `body` are CSS and HTML, `title` is text."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{generator(command)}
<title>{escape(title)}</title>
<style>{STYLE}{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
