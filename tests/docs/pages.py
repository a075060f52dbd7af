"""The pages of the documentation as values: their code blocks, links and headings.

In: Markdown files.
Out: blocks in reading order, each with what the page says about it.
Promise: reads text only; running the blocks is the tests' business.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.*?) -->")

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One code block; `output` is the text block that follows a program directly, `not_run` the reason if it is not to be run."""

    language: str
    code: str
    line: int
    output: str | None
    not_run: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """One Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def blocks(self) -> list[Block]:
        """Return the code blocks, without the texts that are the output of another block."""
        text, found = self.text, []
        fences = list(_FENCE.finditer(text))
        outputs = set()
        for place, fence in enumerate(fences):
            if place in outputs:
                continue
            following = fences[place + 1] if place + 1 < len(fences) else None
            output = None
            if following and following["language"] == "text" and fence["language"] in ("python", "sh") and not text[fence.end() : following.start()].strip():
                output = following["code"]
                outputs.add(place + 1)
            before = text[: fence.start()].rstrip().rpartition("\n")[2]
            mark = NOT_RUN.fullmatch(before.strip())
            found.append(Block(fence["language"], fence["code"], text.count("\n", 0, fence.start()) + 2, output, mark["reason"] if mark else None))
        return found

    def prose(self) -> str:
        """Return the text without code blocks."""
        return _FENCE.sub("", self.text)

    def links(self) -> list[str]:
        """Return the targets of all links."""
        return [link["target"] for link in _LINK.finditer(self.prose())]

    def anchors(self) -> set[str]:
        """Return what a link into this page may name after #, as GitHub makes it from headings."""
        return {re.sub(r"[^\w\- ]", "", heading["text"].lower()).strip().replace(" ", "-") for heading in _HEADING.finditer(self.prose())}

    def tables(self) -> list[list[str]]:
        """Return the cells of all table rows, heads and rulers left out."""
        rows = [line for line in self.prose().splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip("|"))] for row in rows]
        rulers = {place for place, row in enumerate(cells) if set("".join(row)) <= set("-: ")}
        return [row for place, row in enumerate(cells) if place not in rulers and place + 1 not in rulers]


README = Page(ROOT / "README.md")
REFERENCE = {path.stem: Page(path) for path in sorted((DOCS / "reference").glob("*.md"))}
RUNNABLE = [README, Page(DOCS / "tutorial.md"), *(Page(path) for path in sorted((DOCS / "how-to").glob("*.md")))]
ALL = [README, Page(ROOT / "CHANGELOG.md"), *(Page(path) for path in sorted(DOCS.rglob("*.md")))]
