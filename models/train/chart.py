"""A line chart as a PNG file, with the standard library alone.

The image is an indexed-colour bitmap: white ground, black axes and text, one colour per curve.
"""

import struct
import zlib
from itertools import pairwise
from pathlib import Path

# Five rows of three bits for each glyph, one octal digit per row.
CHARACTERS = "0123456789.-ABCDEFGHIJKLMNOPQRSTUVWXYZ "
FONT = """
75557 26227 71747 71717 55711 74717 74757 71111 75757 75717 00002 00700
25755 65656 34443 65556 74647 74644 34553 55755 72227 11152 55655 44447 57755
65555 25552 65644 25573 65655 34216 72222 55557 55552 55775 55255 55222 71247 00000
"""
GLYPHS = dict(zip(CHARACTERS, FONT.split(), strict=True))
WHITE, BLACK, GREY = 0, 1, 2
PALETTE = [(255, 255, 255), (0, 0, 0), (220, 220, 220), (38, 96, 180), (205, 84, 20)]
COLOURS = [3, 4]
SCALE = 2


class Canvas:
    """Palette indices, row by row; pixels outside are ignored."""

    def __init__(self, width: int, height: int):
        self.width, self.height = width, height
        self.rows = [bytearray(width) for _ in range(height)]

    def dot(self, x: int, y: int, colour: int) -> None:
        """Sets one pixel."""
        if 0 <= x < self.width and 0 <= y < self.height:
            self.rows[y][x] = colour

    def line(self, start: tuple[float, float], end: tuple[float, float], colour: int) -> None:
        """A line two pixels thick."""
        steps = int(max(abs(end[0] - start[0]), abs(end[1] - start[1]))) + 1
        for i in range(steps + 1):
            x = round(start[0] + (end[0] - start[0]) * i / steps)
            y = round(start[1] + (end[1] - start[1]) * i / steps)
            self.dot(x, y, colour)
            self.dot(x, y + 1, colour)

    def text(self, x: int, y: int, text: str, colour: int = BLACK) -> None:
        """Capital letters, digits, point and dash, from the top left corner (x, y)."""
        for character in text.upper():
            for row, bits in enumerate(GLYPHS[character]):
                for column in range(3):
                    if int(bits) >> (2 - column) & 1:
                        for dx in range(SCALE):
                            for dy in range(SCALE):
                                self.dot(x + column * SCALE + dx, y + row * SCALE + dy, colour)
            x += 4 * SCALE

    def save(self, path: Path) -> None:
        """Writes the PNG."""

        def chunk(kind: bytes, data: bytes) -> bytes:
            checksum = struct.pack(">I", zlib.crc32(kind + data))
            return struct.pack(">I", len(data)) + kind + data + checksum

        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 3, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self.rows), 9)
        palette = bytes(c for colour in PALETTE for c in colour)
        path.write_bytes(
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", header)
            + chunk(b"PLTE", palette)
            + chunk(b"IDAT", pixels)
            + chunk(b"IEND", b"")
        )


def draw_chart(
    path: Path, curves: dict[str, list[tuple[float, float]]], x_title: str, y_title: str
) -> None:
    """Up to two named curves of (x, y) points over whole-number y grid lines; x starts at 0."""
    width, height, left, top, right, bottom = 800, 420, 60, 40, 20, 50
    canvas = Canvas(width, height)
    points = [point for curve in curves.values() for point in curve]
    x_most = max(x for x, _ in points)
    low = int(min(y for _, y in points))
    high = int(max(y for _, y in points)) + 1

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + (width - left - right) * x / x_most,
            top + (height - top - bottom) * (high - y) / (high - low),
        )

    for level in range(low, high + 1):
        y = int(place(0, level)[1])
        canvas.line((left, y), (width - right, y), GREY)
        canvas.text(left - 30, y - 4, str(level))
    for part in range(5):
        label = str(round(x_most * part / 4))
        x = int(place(x_most * part / 4, low)[0])
        canvas.text(min(x, width - right - 8 * len(label)), height - bottom + 12, label)
    canvas.line(place(0, low), place(x_most, low), BLACK)
    canvas.line(place(0, low), place(0, high), BLACK)
    canvas.text(left, 12, y_title)
    canvas.text(width // 2 - 4 * len(x_title), height - 16, x_title)
    for index, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[index]
        for start, end in pairwise(curve):
            canvas.line(place(*start), place(*end), colour)
        canvas.text(width - right - 180, top + 10 + 18 * index, name, colour)
    canvas.save(path)
