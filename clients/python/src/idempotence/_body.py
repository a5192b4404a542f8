"""What is compared of a request: two requests are the same if their signatures are."""

from __future__ import annotations

import email.message
import hashlib

from ._options import Facts


def signature(facts: Facts, body: bytes) -> dict[str, str]:
    digest = hashlib.sha256(parts(facts.content_type, body) or body).hexdigest()
    return {"method": facts.method.upper(), "path": facts.path, "query": facts.query, "body": digest}


def parts(content_type: str, body: bytes) -> bytes | None:
    """The parts of a multipart body, each as `LENGTH:PART,`. A client makes a new boundary for each attempt, and the
    boundary is all that may differ. None: the body is compared as it is."""
    header = email.message.Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if header.get_content_maintype() != "multipart" or not boundary:
        return None
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1", "replace"))
    last = pieces.pop()
    if len(pieces) < 2 or pieces[0] or last not in (b"--", b"--\r\n"):
        return None
    if not all(piece.startswith(b"\r\n") for piece in pieces[1:]):
        return None
    return b"multipart:" + b"".join(b"%d:%s," % (len(piece) - 2, piece[2:]) for piece in pieces[1:])
