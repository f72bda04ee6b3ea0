"""What must be true of a built book: every page there, nothing unresolved, nothing asked of another host."""

import hashlib
import html.parser
import re

from lib import written

# elements that make a browser fetch what their attribute names; a plain link <a href> is not one
_FETCHING = {
    "script": "src", "img": "src", "iframe": "src", "embed": "src", "source": "src", "audio": "src", "video": "src",
    "track": "src", "input": "src", "object": "data", "link": "href", "image": "href", "use": "href",
}  # fmt: skip
_NOT_FETCHED = {"canonical", "search", "next", "prev", "index", "author", "license", "alternate"}  # rel= of a <link>
_REMOTE = re.compile(r"^\s*(https?:)?//", re.I)


def toc(path):
    """Names of all pages in a jupyter-book table of contents: ["intro", "stages/00_setup", ...]."""
    found = []

    def walk(node):
        if isinstance(node, dict):
            found.extend(node[key] for key in ("root", "file") if key in node)
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(child)

    walk(written.read(path))
    return [re.sub(r"\.(md|ipynb)$", "", name) for name in found]


class _Page(html.parser.HTMLParser):
    """Collects what a page would fetch, its visible text outside code, and its inline scripts and styles."""

    def __init__(self):
        super().__init__()
        self.fetched, self.prose, self.inline, self.open, self.errors = [], [], [], [], 0

    def handle_starttag(self, tag, attributes):
        given = {key: value or "" for key, value in attributes}
        if tag in _FETCHING:
            fetched = given.get(_FETCHING[tag], "")
            if not (tag == "link" and set(given.get("rel", "").split()) & _NOT_FETCHED):
                self.fetched.append(fetched)
        self.fetched += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]
        self.inline.append(given.get("style", ""))
        classes = given.get("class", "").split()
        self.errors += "problematic" in classes or "system-message" in classes
        if tag in ("script", "style", "pre", "code"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data):
        if not self.open:
            self.prose.append(data)
        elif self.open[-1] in ("script", "style"):
            self.inline.append(data)


def check(folder, pages):
    """Everything wrong with a built book, one line each: a missing page, an unresolved value, an error on a page, or a
    request to another host. Plain links are allowed."""
    problems = [f"{name}.html: in the table of contents but not built" for name in pages
                if not (folder / f"{name}.html").exists()]  # fmt: skip
    for path in sorted(folder.rglob("*.html")):
        name = path.relative_to(folder)
        if name.parts[0] == "_static":  # the theme's templates
            continue
        page = _Page()
        page.feed(path.read_text(encoding="utf8"))
        prose = "".join(page.prose)
        problems += [f"{name}: asks another host for {url}" for url in page.fetched if _REMOTE.match(url)]
        for text in page.inline:
            problems += [f"{name}: asks another host for {url}" for url in _remote_in_code(text)]
        problems += [f"{name}: unresolved {found!r}" for found in re.findall(r"\{glue[^}]*\}(?:`[^`]*`)?", prose)]
        if page.errors:
            problems.append(f"{name}: {page.errors} error(s) of the parser on the page")
        if "An Exception was encountered at" in prose or "Traceback (most recent call last)" in "".join(page.prose):
            problems.append(f"{name}: shows an execution error")
    for path in sorted((folder / "_static").rglob("*.css")):
        urls = re.findall(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)", path.read_text(encoding="utf8"))
        problems += [f"{path.relative_to(folder)}: asks another host for {url}" for url in urls]
    return problems


def _remote_in_code(text):
    """Addresses of other hosts in an inline script or style, XML namespaces excepted."""
    urls = re.findall(r"https?://[^\s'\")<>\\]+|url\(\s*['\"]?//[^'\")\s]+", text)
    return [url for url in urls if not url.startswith("http://www.w3.org/")]


def content_hash(folder):
    """sha256 over names and bytes of all files of a built book: two builds from the same inputs have the same."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            total.update(str(path.relative_to(folder)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
