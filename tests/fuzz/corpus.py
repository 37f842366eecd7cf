"""Pictures of every kind that is read, and ways of spoiling them."""

import io
import random
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

rng = np.random.default_rng(0)
COLOUR = rng.integers(0, 256, (23, 31, 3), np.uint8)
SMOOTH = np.linspace(0, 255, 23 * 31 * 3).astype(np.uint8).reshape(23, 31, 3)


def _saved(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def pictures() -> dict[str, bytes]:
    """The content of good files by name."""
    colour, smooth = Image.fromarray(COLOUR), Image.fromarray(SMOOTH)
    grey, other = colour.convert("L"), Image.fromarray(255 - COLOUR)
    alpha = smooth.convert("RGBA")
    alpha.putalpha(grey)
    frames = {"save_all": True, "append_images": [other, colour]}
    deep = Image.fromarray(rng.integers(0, 65536, (23, 31)).astype(np.uint16))
    return {
        "grey.png": _saved(grey, "PNG"),
        "colour.png": _saved(colour, "PNG"),
        "alpha.png": _saved(alpha, "PNG"),
        "palette.png": _saved(smooth.convert("P"), "PNG"),
        "deep.png": _saved(deep, "PNG"),
        "animated.png": _saved(colour, "PNG", **frames),
        "colour.jpg": _saved(smooth, "JPEG"),
        "grey.jpg": _saved(grey, "JPEG"),
        "progressive.jpg": _saved(colour, "JPEG", progressive=True),
        "lossy.webp": _saved(smooth, "WEBP"),
        "lossless.webp": _saved(alpha, "WEBP", lossless=True),
        "animated.webp": _saved(colour, "WEBP", **frames),
        "plain.tif": _saved(colour, "TIFF"),
        "lzw.tif": _saved(smooth, "TIFF", compression="tiff_lzw"),
        "deflate.tif": _saved(deep, "TIFF", compression="tiff_adobe_deflate"),
        "colour.bmp": _saved(colour, "BMP"),
        "grey.bmp": _saved(grey, "BMP"),
        "plain.gif": _saved(smooth.convert("P"), "GIF"),
        "animated.gif": _saved(colour, "GIF", **frames),
        "colour.ppm": _saved(colour, "PPM"),
        "grey.pgm": _saved(grey, "PPM"),
    }


def truncated(content: bytes, count: int) -> Iterator[bytes]:
    for i in range(count):
        yield content[: len(content) * i // count]


def flipped(content: bytes, count: int) -> Iterator[bytes]:
    """One to eight bits the other way round; the first bytes, where headers are, more often than others."""
    for seed in range(count):
        generator, changed = random.Random(seed), bytearray(content)
        for _ in range(generator.randint(1, 8)):
            end = min(len(changed), 64) if generator.random() < 0.5 else len(changed)
            changed[generator.randrange(end)] ^= 1 << generator.randrange(8)
        yield bytes(changed)


def claiming(width: int, height: int) -> dict[str, bytes]:
    """Headers that claim a size, with next to nothing behind them."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    crc = struct.pack(">I", zlib.crc32(b"IHDR" + header))
    tags = [(256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (278, 4, height)]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in [*tags, (279, 4, 16)])
    return {
        "x.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + header + crc + b"\0\0\0\0IDAT\0\0\0\0",
        "x.bmp": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 70, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0),
        "x.gif": b"GIF89a" + struct.pack("<HHBBB", width % 65536, height % 65536, 0, 0, 0) + b",\0\0\0\0" * 4,
        "x.ppm": b"P6 %d %d 255\n" % (width, height) + bytes(16),
        "x.pgm": b"P5 %d %d 255\n" % (width, height) + bytes(16),
        "x.tif": b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", 8) + entries + bytes(64),
    }
