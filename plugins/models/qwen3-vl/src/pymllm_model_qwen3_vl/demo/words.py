"""What there is in the pictures, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Language = Literal["en", "zh"]

LANGUAGES: tuple[Language, ...] = ("en", "zh")


@dataclass(frozen=True)
class Term:
    """A word in both languages."""

    en: str
    zh: str

    def say(self, language: Language) -> str:
        return self.en if language == "en" else self.zh


KINDS = {
    "circle": Term("circle", "圆形"),
    "square": Term("square", "方形"),
    "triangle": Term("triangle", "三角形"),
    "star": Term("star", "星形"),
    "cross": Term("cross", "十字形"),
    "heart": Term("heart", "心形"),
}

COLOURS = {
    "red": Term("red", "红色"),
    "orange": Term("orange", "橙色"),
    "yellow": Term("yellow", "黄色"),
    "green": Term("green", "绿色"),
    "cyan": Term("cyan", "青色"),
    "blue": Term("blue", "蓝色"),
    "purple": Term("purple", "紫色"),
    "pink": Term("pink", "粉色"),
    "black": Term("black", "黑色"),
    "white": Term("white", "白色"),
}

SIZES = {"small": Term("small", "小"), "large": Term("large", "大")}

PLACES = (
    (Term("top left", "左上"), Term("top", "上面"), Term("top right", "右上")),
    (Term("left", "左边"), Term("centre", "中间"), Term("right", "右边")),
    (Term("bottom left", "左下"), Term("bottom", "下面"), Term("bottom right", "右下")),
)
"""By row and column of a third of the picture."""

PLURALS = {**{name: f"{name}s" for name in KINDS}, "cross": "crosses"}
