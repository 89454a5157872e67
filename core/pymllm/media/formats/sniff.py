"""Formats by their first bytes; names and media types are only what a sender says."""

from __future__ import annotations

from typing import Literal

PictureKind = Literal["PNG", "JPEG", "WebP", "GIF", "BMP"]
FilmKind = Literal["MP4", "WebM"]

PICTURES: tuple[PictureKind, ...] = ("PNG", "JPEG", "WebP", "GIF", "BMP")
FILMS: tuple[FilmKind, ...] = ("MP4", "WebM")

_STARTS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, b"GIF87a", "GIF"),
    (0, b"GIF89a", "GIF"),
    (8, b"WEBP", "WebP"),
    (0, b"BM", "BMP"),
    (4, b"ftypavi", "AVIF"),
    (4, b"ftyphei", "HEIC"),
    (4, b"ftypmif1", "HEIC"),
    (4, b"ftyp", "MP4"),
    (4, b"moov", "MP4"),
    (4, b"mdat", "MP4"),
    (4, b"wide", "MP4"),
    (0, b"\x1a\x45\xdf\xa3", "WebM"),
    (8, b"AVI ", "AVI"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (4, b"jP  ", "JPEG 2000"),
    (4, b"JXL ", "JPEG XL"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"8BPS", "Photoshop"),
    (0, b"%PDF", "PDF"),
    (0, b"\0\0\1\0", "ICO"),
    (0, b"\x1f\x8b", "gzip"),
    (0, b"PK\3\4", "ZIP"),
    (0, b"<", "HTML, XML or SVG"),
    (0, b"{", "JSON"),
)


def sniff(data: bytes) -> str:
    """The name of the format, one of PICTURES or FILMS for those that are decoded; "" if it is not known."""
    start = data[:64].lstrip(b"\t\n\r \xef\xbb\xbf") if data[:1] in (b"\t", b"\n", b"\r", b" ", b"\xef") else data
    for offset, magic, name in _STARTS:
        if start.startswith(magic, offset):
            return name
    return ""
