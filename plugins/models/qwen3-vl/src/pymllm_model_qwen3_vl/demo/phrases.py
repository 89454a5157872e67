"""How questions are put."""

from __future__ import annotations

from pymllm_model_qwen3_vl.demo.words import Language

QUESTIONS: dict[str, dict[Language, tuple[str, ...]]] = {
    "colour": {
        "en": ("What colour is the {it}?", "Which colour does the {it} have?", "Name the colour of the {it}."),
        "zh": ("{it}是什么颜色?", "图中的{it}是什么颜色的?", "请说出{it}的颜色。"),
    },
    "shape": {
        "en": ("What shape is the {it}?", "Which shape does the {it} have?", "Name the shape of the {it}."),
        "zh": ("{it}是什么形状?", "图中的{it}是什么形状的?", "请说出{it}的形状。"),
    },
    "count": {
        "en": ("How many {it} are there?", "How many {it} do you see?", "Count the {it}."),
        "zh": ("有几个{it}?", "图中有多少个{it}?", "请数一数{it}。"),
    },
    "position": {
        "en": ("Where is the {it}?", "In which part of the picture is the {it}?", "Where do you see the {it}?"),
        "zh": ("{it}在哪里?", "{it}在图中的什么位置?", "你在哪里看到{it}?"),
    },
    "size": {
        "en": ("Is the {it} small or large?", "Is the {it} large or small?", "What size is the {it}?"),
        "zh": ("{it}是大还是小?", "{it}是小还是大?", "请说出{it}的大小。"),
    },
    "larger": {
        "en": ("Which is larger, the {it} or the {other}?", "Which one is bigger, the {it} or the {other}?"),
        "zh": ("{it}和{other}哪个更大?", "哪个比较大,{it}还是{other}?"),
    },
    "smaller": {
        "en": ("Which is smaller, the {it} or the {other}?", "Which one is smaller, the {it} or the {other}?"),
        "zh": ("{it}和{other}哪个更小?", "哪个比较小,{it}还是{other}?"),
    },
    "left": {
        "en": (
            "Which is further left, the {it} or the {other}?",
            "Which is more to the left, the {it} or the {other}?",
        ),
        "zh": ("{it}和{other}哪个更靠左?", "哪个在左边,{it}还是{other}?"),
    },
    "right": {
        "en": (
            "Which is further right, the {it} or the {other}?",
            "Which is more to the right, the {it} or the {other}?",
        ),
        "zh": ("{it}和{other}哪个更靠右?", "哪个在右边,{it}还是{other}?"),
    },
    "higher": {
        "en": ("Which is higher, the {it} or the {other}?", "Which is further up, the {it} or the {other}?"),
        "zh": ("{it}和{other}哪个更高?", "哪个在上面,{it}还是{other}?"),
    },
    "lower": {
        "en": ("Which is lower, the {it} or the {other}?", "Which is further down, the {it} or the {other}?"),
        "zh": ("{it}和{other}哪个更低?", "哪个在下面,{it}还是{other}?"),
    },
}
"""What is asked -> language -> ways to ask it; the first six by kind of question, the others are comparisons."""
