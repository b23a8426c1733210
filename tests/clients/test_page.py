"""The blocks of docs/clients.md, which need packages that `make clients` installs."""

from support.doc_pages import ROOT, blocks


def test_python_blocks_run() -> None:
    names: dict[str, object] = {}
    found = [block for block in blocks(ROOT / "docs" / "clients.md") if block.language == "python"]
    for block in found:
        exec(compile("\n" * block.line + block.text, block.place, "exec"), names)
    assert len(found) >= 6
